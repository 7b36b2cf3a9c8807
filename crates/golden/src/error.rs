//! Errors of golden images.

use std::path::PathBuf;

/// Reason why a golden image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// The source cannot be used, and the cache does not know the image.
    #[error("the source {origin} of the golden image: {problem}")]
    Source {
        /// Address of the source.
        origin: String,
        /// Problem, with its remedy.
        problem: SourceError,
    },
    /// The source has another image than the one that is wanted, and the cache has nothing of it.
    #[error(
        "the source {origin} has the image {found}, and {wanted} is wanted; give the source its \
         former image, or attach the disk without an identity"
    )]
    OtherImage {
        /// Address of the source.
        origin: String,
        /// Identity of the image that the source has.
        found: String,
        /// Identity that is wanted.
        wanted: String,
    },
    /// The image has a size that cannot be served.
    #[error("the golden image {origin} has {size} bytes{problem}")]
    Size {
        /// Address of the source.
        origin: String,
        /// Size in bytes.
        size: u64,
        /// Problem, with its remedy.
        problem: String,
    },
    /// The directory of the cache cannot be used.
    #[error("cannot use the cache directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

/// Reason why a source does not give a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The source cannot be reached, or does not answer in time. Requests wait.
    #[error("{0}")]
    Unreachable(String),
    /// The source has another image now. Requests wait, until it has the former one again.
    #[error("{0}")]
    Changed(String),
    /// The source answers and cannot read. The request fails after some attempts.
    #[error("{0}")]
    Failed(String),
}

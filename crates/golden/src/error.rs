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
    /// The kernel refuses a thread.
    #[error("no thread for the golden image {origin} can start: {source}; end other processes")]
    Thread {
        /// Address of the source.
        origin: String,
        /// Cause.
        source: std::io::Error,
    },
    /// The cache file cannot be used, so blocks are in memory only.
    #[error("the cache file {} is not used: {problem}", path.display())]
    CacheFile {
        /// The file.
        path: PathBuf,
        /// Problem, with its remedy.
        problem: String,
    },
    /// No disk of the process uses the image.
    #[error("no disk here uses a golden image {identity}; attach a disk on it first")]
    Unknown {
        /// Identity of the image.
        identity: String,
    },
    /// No machine has read from the image yet.
    #[error("the golden image {identity} has no boot set yet; boot a machine from it first")]
    NoBootSet {
        /// Identity of the image.
        identity: String,
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

/// Longest text of a problem in bytes: some of it comes from a server.
const TEXT_MAX: usize = 512;

impl SourceError {
    /// Returns the error with at most [`TEXT_MAX`] bytes of text, and a space for each control
    /// character.
    pub(crate) fn bounded(mut self) -> Self {
        let (Self::Unreachable(text) | Self::Changed(text) | Self::Failed(text)) = &mut self;
        *text = text.replace(char::is_control, " ");
        text.truncate(text.floor_char_boundary(TEXT_MAX));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_of_a_server_is_cut() {
        let long = SourceError::Changed(format!("\u{1b}[2J{}", "ä".repeat(1000))).bounded();
        let text = long.to_string();
        assert!(text.len() <= TEXT_MAX && text.starts_with(" [2Jä"), "{text}");
    }
}

//! Errors of images.

use std::io;

use rustix::io::Errno;

/// Reason why an image cannot be read, checked or created.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file failed.
    #[error("cannot {action} the image at byte {offset}: {source}")]
    Io {
        /// Attempted action.
        action: &'static str,
        /// Offset in the file in bytes.
        offset: u64,
        /// Error of the file.
        #[source]
        source: io::Error,
    },
    /// The file does not begin like an image of this format.
    #[error("the file is not a {format} image: {problem}; state the format that it has")]
    WrongFormat {
        /// Stated format.
        format: &'static str,
        /// Difference to the format.
        problem: String,
    },
    /// The header contradicts itself or the file.
    #[error("the header is invalid: {problem}; restore the image from a copy")]
    Header {
        /// Field, value and rule.
        problem: String,
    },
    /// The image needs a feature that is not supported.
    #[error("the image has {feature}, which is not supported; {next}")]
    Unsupported {
        /// Name of the feature.
        feature: String,
        /// Remedy.
        next: &'static str,
    },
    /// The image must be repaired before it is written.
    #[error("the image is marked as {state}; it can be read; to write it, {next}")]
    NeedsRepair {
        /// State in the header.
        state: &'static str,
        /// Remedy.
        next: &'static str,
    },
    /// The image below is not the one that the image needs.
    #[error("the image cannot be used over this one: {problem}")]
    Parent {
        /// Difference and remedy.
        problem: String,
    },
    /// An entry of a table, or what it refers to, is invalid.
    #[error("{structure} at byte {offset} of the file is invalid: {problem}; check the image")]
    Corrupt {
        /// Damaged structure.
        structure: &'static str,
        /// Offset of the entry, or of the data that it refers to, in bytes.
        offset: u64,
        /// Value and rule.
        problem: String,
    },
    /// The guest offset is behind the end of the disk.
    #[error("offset {offset} is behind the end of the disk, which has {size} bytes")]
    Outside {
        /// Guest offset in bytes.
        offset: u64,
        /// Size of the disk in bytes.
        size: u64,
    },
    /// An image cannot be created as requested.
    #[error("cannot create the image: {problem}")]
    Create {
        /// Requested value and rule.
        problem: String,
    },
    /// The disk cannot get the requested size.
    #[error("cannot resize the disk: {problem}")]
    Resize {
        /// Reason and remedy.
        problem: String,
    },
    /// A repair is not safe.
    #[error("cannot repair the image: {problem}")]
    Repair {
        /// Reason and remedy.
        problem: String,
    },
    /// The journal of an image cannot be used.
    #[error(transparent)]
    Journal(#[from] crate::journal::JournalError),
    /// The storage has no room for the image.
    #[error("the storage is full")]
    Full,
    /// The caller has requested an end.
    #[error("stopped before the end of the image, because the time limit passed")]
    Stopped,
    /// A future of a file was not ready at once.
    #[error("an operation on the image was suspended, which its file must never do here")]
    Suspended,
}

impl ImageError {
    /// Returns a function that makes an error of the file.
    pub fn io(action: &'static str, offset: u64) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, offset, source }
    }

    /// Returns whether the storage has no room.
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), Errno::NOSPC | Errno::DQUOT)
    }

    /// Returns the error number that a request ends with.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Full => Errno::NOSPC,
            Self::Io { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            _ => Errno::IO,
        }
    }

    /// Makes an error of the header.
    pub(crate) fn header(problem: impl Into<String>) -> Self {
        Self::Header { problem: problem.into() }
    }
}

//! Errors of disks and of requests.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Reason why a disk cannot be opened, locked or resized.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Os {
        /// Attempted action.
        action: &'static str,
        /// Path of the image.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: Errno,
    },
    /// The path is neither a regular file nor a block device.
    #[error("{} is {what}; give a raw image file or a block device", path.display())]
    WrongType {
        /// Given path.
        path: PathBuf,
        /// Type of the file.
        what: &'static str,
    },
    /// A descriptor that was handed in does not allow what the disk needs.
    #[error("{} is not open for {needed}; open it for that, or {remedy}", path.display())]
    Access {
        /// Name of the descriptor.
        path: PathBuf,
        /// Kind of access that the disk needs.
        needed: &'static str,
        /// Other remedy.
        remedy: &'static str,
    },
    /// The image is empty.
    #[error("{} is empty; give it a size first, for example with `truncate -s 8G`", path.display())]
    Empty {
        /// Path of the image.
        path: PathBuf,
    },
    /// The size is not a multiple of the block size, or of the blocks that direct I/O needs.
    #[error(
        "{} has {size} bytes, not a multiple of the block size {block_size}; \
         grow it to {next} bytes, for example with `truncate -s {next}`", path.display()
    )]
    OddSize {
        /// Path of the image.
        path: PathBuf,
        /// Size in bytes.
        size: u64,
        /// Block size in bytes.
        block_size: u32,
        /// Next larger multiple of the block size, in bytes.
        next: u64,
    },
    /// The file system does not support O_DIRECT.
    #[error("the file system of {} has no direct I/O; use --cache writeback", path.display())]
    NoDirectIo {
        /// Path of the image.
        path: PathBuf,
    },
    /// Another process uses the image.
    #[error("{} is in use: {holder}; stop that first, or open both read-only", path.display())]
    Locked {
        /// Path of the image.
        path: PathBuf,
        /// Use of the image by the other process, as far as its locks show.
        holder: String,
    },
    /// A process that has ended still has I/O in flight on the image.
    #[error(
        "the kernel has not ended all I/O on {} of a process that served this disk before; \
         wait until it has", path.display()
    )]
    Fenced {
        /// Path of the image.
        path: PathBuf,
    },
    /// The image has shrunk since it was opened.
    #[error(
        "{} has {found} bytes now, {size} when it was attached; detach and attach it again",
        path.display()
    )]
    Shrunk {
        /// Path of the image.
        path: PathBuf,
        /// Current size in bytes.
        found: u64,
        /// Size that guests see, in bytes.
        size: u64,
    },
    /// An image in a format with metadata cannot be opened, written or flushed.
    #[error("cannot use the image {}: {problem}", path.display())]
    Image {
        /// Path of the image.
        path: PathBuf,
        /// Cause, and the remedy.
        problem: String,
    },
    /// The disk cannot have the requested size.
    #[error("cannot resize: {problem}")]
    Resize {
        /// Reason, and what would be possible.
        problem: String,
    },
    /// The range is not one that another disk contains.
    #[error("the window of {size} bytes at {offset} {problem}; give another offset and size")]
    Window {
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        size: u64,
        /// Reason.
        problem: String,
    },
    /// There is no memory for a memory disk.
    #[error("cannot make a memory disk of {size} bytes")]
    Memory {
        /// Size in bytes.
        size: u64,
        /// Cause.
        #[source]
        source: memory::MemoryError,
    },
}

impl DiskError {
    /// Returns the conversion of the error of a system call that was to do `action` to `path`.
    pub fn os<E: Into<io::Error>>(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |error| {
            let source = Errno::from_io_error(&error.into()).unwrap_or(Errno::IO);
            Self::Os { action, path, source }
        }
    }
}

/// Reason why a request failed, as far as a guest can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The storage failed.
    #[error("storage error: {0}")]
    Storage(Errno),
    /// The kernel cannot reach the memory of the request's buffers.
    #[error(
        "the memory of the request cannot be reached: it was truncated, or the host has no room for it"
    )]
    Memory,
    /// The storage ends before the disk does.
    #[error("storage is shorter than the disk")]
    Short,
    /// The storage is full, and the disk is not set to wait for space.
    #[error("storage is full")]
    Full,
    /// The source of the disk's image cannot be reached, and the queue waits no more.
    #[error("the source of the image cannot be reached")]
    Unreachable,
    /// The disk is read-only and refuses the write.
    #[error("disk is read-only")]
    ReadOnly,
    /// The range is outside of the disk or not a whole number of blocks.
    #[error("range is outside of the disk or not aligned to its blocks")]
    Range,
    /// The disk does not support the operation.
    #[error("operation is not supported")]
    Unsupported,
}

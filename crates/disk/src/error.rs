//! What can go wrong with a disk and with a request.

use std::path::PathBuf;

use rustix::io::Errno;

/// Why a disk cannot be opened, locked or resized.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Os {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Its answer.
        #[source]
        source: Errno,
    },
    /// Neither a regular file nor a block device.
    #[error("{} is {what}; give a raw image file or a block device", path.display())]
    WrongType {
        /// What was given.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// An image without a byte.
    #[error("{} is empty; give it a size first, for example with `truncate -s 8G`", path.display())]
    Empty {
        /// The image.
        path: PathBuf,
    },
    /// The size is no whole number of blocks.
    #[error(
        "{} has {size} bytes, not a multiple of the block size {block_size}; \
         grow it to {next} bytes, for example with `truncate -s {next}`", path.display()
    )]
    OddSize {
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// Block size in bytes.
        block_size: u32,
        /// Next multiple.
        next: u64,
    },
    /// Direct I/O needs larger blocks than asked for.
    #[error(
        "block size {asked} is below the {needed} bytes that direct I/O on {} needs; \
         use --block-size {needed} or --cache writeback", path.display()
    )]
    BlockSize {
        /// The image.
        path: PathBuf,
        /// What was asked for, in bytes.
        asked: u32,
        /// What the storage needs, in bytes.
        needed: u32,
    },
    /// No O_DIRECT here.
    #[error("the file system of {} has no direct I/O; use --cache writeback", path.display())]
    NoDirectIo {
        /// The image.
        path: PathBuf,
    },
    /// Somebody else uses the image.
    #[error("{} is in use: {holder}; stop that first, or open both read-only", path.display())]
    Locked {
        /// The image.
        path: PathBuf,
        /// By whom and how, as far as the kernel tells.
        holder: String,
    },
    /// A process that is gone has I/O on the image under way.
    #[error(
        "the kernel has not ended all I/O on {} of a process that served this disk before; \
         wait until it has", path.display()
    )]
    Fenced {
        /// The image.
        path: PathBuf,
    },
    /// The image became smaller since it was opened.
    #[error(
        "{} has {found} bytes now, {size} when it was attached; detach and attach it again",
        path.display()
    )]
    Shrunk {
        /// The image.
        path: PathBuf,
        /// Its size now, in bytes.
        found: u64,
        /// The size that guests were told, in bytes.
        size: u64,
    },
    /// The size cannot become what was asked for.
    #[error("cannot resize: {problem}")]
    Resize {
        /// Why, and what would be possible.
        problem: String,
    },
    /// No memory for a memory disk.
    #[error("cannot make a memory disk of {size} bytes")]
    Memory {
        /// Its size.
        size: u64,
        /// Why.
        #[source]
        source: memory::MemoryError,
    },
}

/// Why a request failed, as far as a guest can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The storage failed.
    #[error("storage error: {0}")]
    Storage(Errno),
    /// The storage ended before the disk did.
    #[error("storage is shorter than the disk")]
    Short,
    /// No room, and waiting was not asked for.
    #[error("storage is full")]
    Full,
    /// A write to a disk that refuses writes.
    #[error("disk is read-only")]
    ReadOnly,
    /// Outside of the disk, or not a whole number of blocks.
    #[error("range is outside of the disk or not aligned to its blocks")]
    Range,
    /// The disk cannot do that.
    #[error("operation is not supported")]
    Unsupported,
}

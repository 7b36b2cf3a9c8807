//! Golden images: one read cache of an immutable image for all disks of a process.
//!
//! # Words
//! - **Source**: where the image is: a file, an NBD export, or a web server that answers ranges.
//! - **Identity**: text that changes with the image. A cache has blocks of one identity only.
//! - **Block**: 64 KiB of the image, the unit of cache and source.
//! - **Flight**: a block that is being loaded. All requests that need it wait for the same one.
//!
//! # Model
//! ```text
//! request -> blocks in memory: copied at once
//!         -> others: the first request begins a flight, later ones join it
//!              cache file has the block and its checksum is right -> memory
//!              else: source -> cache file -> memory
//!            the thread of the flight puts the block in the mailbox of each waiting channel
//! ```
//!
//! # Design
//! **Reactors never wait.** Threads with deadlines read the cache file and the source, in two lanes: a
//! source that hangs delays no block of the cache file.
//!
//! **A block of the cache file proves itself.** Each block has its own place in the file. Its index
//! entry is a checksum over identity, number and data. So entry and data need no order and no sync: a
//! torn or foreign block is a miss and is fetched again. Several processes may share a file for the same
//! reason: all of them write the same bytes. Reactors look at a bitmap of the index in memory, which may
//! lack what other processes have stored; a thread looks at the file before it asks the source.
//!
//! **A source that is gone makes requests wait**, as full storage does. A source that has another image
//! than before counts as gone: its blocks are never mixed with those of the cache. A source that
//! answers and cannot read the block fails the request after some attempts.
//!
//! **A scan flushes nothing**: S3-FIFO decides which blocks stay in memory.
//!
//! **A boot set is fetched ahead**: the first blocks that machines read, in their order; then the whole
//! image, if an operator asks for it. Half of the threads at most do so, and only if no request waits.
//!
//! **A thread of each lane stays** while a disk uses the image, so that no request waits for a thread
//! that cannot start: that is an error of the open.
//!
//! # How to test
//! `tests/` runs real servers on loopback that count what they serve.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod background;
mod blocking;
mod boot_set;
mod cache_file;
mod channel;
mod checksum;
mod cleanup;
mod digest;
mod disk;
mod error;
mod fetch;
mod files;
mod image;
mod link;
mod loader;
mod mailbox;
mod open;
mod registry;
mod s3fifo;
mod source;
mod stalled;
mod state;

pub use self::cleanup::clean_up;
pub use self::disk::GoldenDisk;
pub use self::error::{GoldenError, SourceError};
pub use self::open::open;
pub use self::registry::{cancel_warm, export_boot_set, import_boot_set, warm};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 64 << 10;

//! Counters of an overlay.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

/// Counters that all threads of a disk add to. Zero at first.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes moved to the overflow file.
    pub(crate) moved: AtomicU64,
    /// Granules that took space for the first time, less those that gave it back.
    pub(crate) grown: AtomicI64,
    /// Writes that waited for memory.
    pub(crate) waits: AtomicU64,
    /// Reads that memory alone has answered; parts of reads from the overflow file and from the base.
    pub(crate) memory_reads: AtomicU64,
    pub(crate) overflow_reads: AtomicU64,
    pub(crate) base_reads: AtomicU64,
    /// Bytes of the writes that wait for memory now.
    pub(crate) waiting_bytes: AtomicU64,
    /// Most bytes that the overflow file can have, as its storage had room when the cleaner last
    /// looked. 0 before it has.
    pub(crate) overflow_limit: AtomicU64,
    /// Writes to the overflow file that failed.
    pub(crate) errors: AtomicU64,
    /// True if neither memory nor the overflow file has space.
    pub(crate) is_full: AtomicBool,
}

//! Counters of an overlay.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

/// Counters that all threads of a disk add to.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes moved to the overflow file.
    pub(crate) moved: AtomicU64,
    /// Granules that took space for the first time, less those that gave it back.
    pub(crate) grown: AtomicI64,
    /// Writes that waited for memory.
    pub(crate) waits: AtomicU64,
    /// Writes to the overflow file that failed.
    pub(crate) errors: AtomicU64,
    /// True if neither memory nor the overflow file has space.
    pub(crate) is_full: AtomicBool,
}

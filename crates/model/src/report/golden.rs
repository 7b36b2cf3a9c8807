//! Report of the golden image below a disk.

use serde::{Deserialize, Serialize};

/// Cache of the golden image below a disk. All disks of the process on the image share it, so they
/// report the same counts, since the process opened the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GoldenStats {
    /// Identity of the image.
    pub identity: String,
    /// Blocks of 64 KiB that requests found in memory.
    pub hits: u64,
    /// Blocks that requests had to wait for.
    pub misses: u64,
    /// Blocks that came from the cache file.
    pub loaded: u64,
    /// Blocks that came from the source.
    pub fetched: u64,
    /// Bytes that came from the source.
    pub fetched_bytes: u64,
    /// Blocks that left the memory.
    pub evicted: u64,
    /// Reason why requests wait for the source, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

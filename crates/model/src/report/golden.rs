//! Report of the golden image below a disk.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Cache of the golden image below a disk. All disks of the process on the image share it, so they
/// report the same counts, since the process opened the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GoldenStats {
    /// Identity of the image.
    pub identity: String,
    /// Size of the image in bytes.
    pub size: u64,
    /// Path of the cache file.
    pub file: PathBuf,
    /// Blocks of 64 KiB in the cache file.
    pub stored: u64,
    /// Reason why new blocks are not in the cache file, if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_problem: Option<String>,
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
    /// Fetching of the whole image, if an operator asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<WarmStats>,
    /// SHA-256 of the bytes, if a warm image had another one than its identity says. Machines that use
    /// the image read wrong bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_digest: Option<String>,
    /// Whether the bytes had the digest of the identity when the image was warmed.
    pub is_verified: bool,
}

/// Cache file of an image, as a clean-up has found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoldenFile {
    /// Identity of the image.
    pub identity: String,
    /// Path of the file.
    pub file: PathBuf,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Seconds since its last use: the last open, or the last store of a block.
    pub unused_seconds: u64,
    /// Whether it was removed.
    pub is_removed: bool,
    /// Reason why it was not removed although it is old enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Fetching of a whole golden image into its cache file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmStats {
    /// Whether it goes on, and how it ended.
    pub phase: WarmPhase,
    /// Most bytes a second. `None` without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Phase of the fetching of a whole golden image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmPhase {
    /// Blocks are being fetched, or wait for the source.
    Running,
    /// All blocks are in the cache file. Their digest is calculated.
    Checking,
    /// All blocks are in the cache file. If the identity is a digest, it is theirs.
    Done,
    /// An operator has ended it.
    Canceled,
    /// It cannot go on.
    Failed,
}

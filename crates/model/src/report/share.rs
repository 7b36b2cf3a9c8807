//! Report of a disk's share of its storage.

use serde::{Deserialize, Serialize};

use crate::share::DiskShare;

/// Share of a disk in its storage, and what the scheduler did with its requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShareReport {
    /// Weight and floors in effect.
    #[serde(flatten)]
    pub share: DiskShare,
    /// Time for which requests have waited for their share, in seconds; sum over all requests.
    pub waited_seconds: f64,
    /// Requests that wait now.
    pub waiting: u64,
    /// Disk whose requests go first while those of this one wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// Requests that went to the storage in pieces.
    pub splits: u64,
    /// Size of their pieces in bytes, while few requests are in flight. `None` if the storage gains
    /// nothing from pieces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece_bytes: Option<u64>,
    /// Device time that may be in flight on the storage, in seconds. More would only add latency.
    #[serde(default)]
    pub depth_seconds: f64,
    /// Requests in flight on the storage, of all its disks.
    #[serde(default)]
    pub in_flight: u64,
    /// Number of times that high latency has made `depth_seconds` smaller.
    #[serde(default)]
    pub tightened: u64,
}

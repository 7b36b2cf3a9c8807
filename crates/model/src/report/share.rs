//! Report of a disk's share of its storage.

use serde::{Deserialize, Serialize};

use crate::share::DiskShare;

/// Share of a disk in its storage, and what the scheduler did with its requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

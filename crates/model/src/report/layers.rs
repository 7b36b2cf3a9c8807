//! Report of the layers of a disk that have a map.

use serde::{Deserialize, Serialize};

/// Counts of a disk's layers that are images with a map, such as qcow2; sums over them. The owner of
/// an image is the thread that changes its map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerStats {
    /// Number of these layers.
    pub count: u64,
    /// Questions of requests that owners have taken. Requests to known places ask nothing.
    pub questions: u64,
    /// Answers that owners have given.
    pub answers: u64,
    /// Flush rounds: each makes new references durable, for all flushes that wait.
    pub rounds: u64,
    /// Clusters allocated.
    pub allocations: u64,
    /// Clusters that were filled as a whole, because the format stores whole clusters.
    pub fills: u64,
    /// Fills that first read the rest of their cluster.
    pub read_modify_writes: u64,
    /// Time for which requests waited for an owner, in seconds; without flushes.
    pub wait_seconds: f64,
    /// Pages of the maps in memory, of 4 KiB each.
    pub map_pages: u64,
    /// Bytes in limbo: clusters that are not used any more, and not free yet.
    pub limbo_bytes: u64,
    /// Bytes in limbo that only requests in flight keep there.
    pub held_bytes: u64,
    /// Time for which the same requests have kept them, in seconds.
    pub held_seconds: f64,
}

//! Results of calls.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::report::{DiskState, Geometry, Stats};

/// Result of `disk.attach`, `disk.activate`, `disk.deactivate`, `disk.pause`, `disk.resume`,
/// `disk.resize`, `disk.caps`, `disk.weight` and `disk.poll`. `poll.defaults` returns
/// [`EffectivePolling`](crate::poll::EffectivePolling).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskReply {
    /// Id of the disk.
    pub id: String,
    /// State after the call.
    pub state: DiskState,
    /// Geometry as the guest sees it.
    pub geometry: Geometry,
    /// Notes for the caller of `disk.attach`: unusual properties of the disk, with remedies; and of
    /// `disk.weight`, if its numbers have no effect. Empty in other replies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Result of `disk.replace` and `disk.snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplaceReply {
    /// The disks with their new backends.
    pub disks: Vec<DiskReply>,
    /// Time in microseconds for which requests of the guests waited.
    pub pause_us: u64,
}

/// Result of `nic.attach` and `nic.poll`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicReply {
    /// Id of the NIC.
    pub id: String,
    /// Name of its network.
    pub network: String,
    /// Maximum bytes of a packet in the network.
    pub mtu: u16,
    /// Number of queue pairs that its driver may use.
    pub queues: u16,
}

/// Result of `keeper.adopt`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Process id of the worker.
    pub pid: u32,
    /// Number of restarts that its last keeper counted.
    pub restarts: u64,
    /// Exit of the last dead worker.
    #[serde(default)]
    pub last_exit: Option<String>,
}

/// Result of `disk.wait_full`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FullReply {
    /// Ids of the disks with requests that wait because the storage is full.
    pub disks: BTreeSet<String>,
}

/// Result of `metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsReply {
    /// Page for a metrics scraper.
    pub openmetrics: String,
}

/// Result of `upgrade`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpgradeReply {
    /// Process id of the new worker.
    pub pid: u32,
    /// Version of the new worker.
    pub version: String,
    /// Number of disks that it took over.
    pub disks: u64,
    /// Number of NICs that it took over.
    #[serde(default)]
    pub nics: u64,
    /// Time that guests were not served, in milliseconds.
    pub paused_ms: f64,
}

/// Result of `disk.export`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReply {
    /// Id of the disk, which is the name of the export.
    pub id: String,
    /// URI for NBD clients: `nbdinfo URI`, `nbdcopy URI ...`.
    pub uri: String,
    /// Geometry as clients see it.
    pub geometry: Geometry,
}

/// Result of `stats`.
pub type StatsReply = Stats;

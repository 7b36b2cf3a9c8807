//! Results of verbs.

use serde::{Deserialize, Serialize};

use crate::report::{DiskState, Geometry, Stats};

/// Result of `disk.attach`, `disk.activate`, `disk.deactivate`, `disk.pause`, `disk.resume`,
/// `disk.resize`, `disk.caps` and `disk.poll`. That of `poll.defaults` is a
/// [`EffectivePolling`](crate::poll::EffectivePolling): what is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskReply {
    /// The disk's id.
    pub id: String,
    /// State after the call.
    pub state: DiskState,
    /// Geometry as the guest sees it.
    pub geometry: Geometry,
}

/// Result of `nic.attach` and `nic.poll`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicReply {
    /// The NIC's id.
    pub id: String,
    /// Its network.
    pub network: String,
    /// Most bytes of a packet there.
    pub mtu: u16,
    /// Pairs of queues that its driver may use.
    pub queues: u16,
}

/// Result of `keeper.adopt`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Process id of the worker.
    pub pid: u32,
    /// What its last keeper counted.
    pub restarts: u64,
    /// How the last of the workers before it ended.
    #[serde(default)]
    pub last_exit: Option<String>,
}

/// Result of `metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsReply {
    /// The page that a scraper gets.
    pub openmetrics: String,
}

/// Result of `upgrade`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpgradeReply {
    /// Process id of the new worker.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Disks that it goes on with.
    pub disks: u64,
    /// NICs that it goes on with.
    #[serde(default)]
    pub nics: u64,
    /// How long guests were not served, in milliseconds.
    pub paused_ms: f64,
}

/// Result of `disk.export`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReply {
    /// The disk's id, which is the name of the export.
    pub id: String,
    /// What NBD clients take: `nbdinfo URI`, `nbdcopy URI ...`.
    pub uri: String,
    /// Geometry as clients see it.
    pub geometry: Geometry,
}

/// Result of `stats`.
pub type StatsReply = Stats;

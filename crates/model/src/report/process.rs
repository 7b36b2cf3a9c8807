//! Report of the process and its threads.

use serde::{Deserialize, Serialize};

use super::{DiskStats, NetworkStats, NicStats, PortStats};
use crate::poll::EffectivePolling;

/// The whole process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Version of the program.
    pub version: String,
    /// Process id of the worker, which serves the devices.
    pub pid: u32,
    /// Seconds since the start of the worker.
    pub uptime_seconds: f64,
    /// Ports of the switch, in order; empty if there is no switch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortStats>,
    /// Reactors.
    pub reactors: Vec<ReactorStats>,
    /// Number of reactors and the reason for it; absent if a former version serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "reactors_why")]
    pub reactors_reason: Option<String>,
    /// Number of queues moved to another reactor because theirs was busier.
    #[serde(default)]
    pub queues_moved: u64,
    /// Disks, in order of id.
    pub disks: Vec<DiskStats>,
    /// NICs, in order of id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicStats>,
    /// Networks, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkStats>,
    /// Default polling of the process; absent if a former version serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_defaults: Option<EffectivePolling>,
    /// Keeper of the worker; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<KeeperStats>,
    /// Start of the worker; absent if a former version serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "began")]
    pub start: Option<WorkerStart>,
}

/// Start of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStart {
    /// Reason for the start.
    #[serde(alias = "how")]
    pub reason: StartReason,
    /// Time of the start in seconds since 1970. Process counters begin there, a disk's at its
    /// attach.
    pub unix_seconds: f64,
    /// Exit of the previous worker, if this one replaces a dead one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "after")]
    pub previous_exit: Option<String>,
}

/// Reason why a worker was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartReason {
    /// The program was started.
    Start,
    /// The previous worker died.
    Restart,
    /// The previous worker handed everything over.
    Upgrade,
}

impl WorkerStart {
    /// Returns a short text; `None` if the program was started normally.
    pub fn summary(&self) -> Option<String> {
        match (self.reason, &self.previous_exit) {
            (StartReason::Start, _) => None,
            (StartReason::Upgrade, _) => Some("by an upgrade".into()),
            (StartReason::Restart, None) => Some("in place of a worker that died".into()),
            (StartReason::Restart, Some(end)) => Some(format!("in place of a worker that {end}")),
        }
    }
}

impl StartReason {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Restart => "restart",
            Self::Upgrade => "upgrade",
        }
    }
}

/// The keeper, which restarts the worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeeperStats {
    /// Process id of the keeper.
    pub pid: u32,
    /// Number of workers started in place of dead ones.
    pub restarts: u64,
    /// Exit of the last dead worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<String>,
    /// Seconds since it adopted the worker, if it did not start it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted_seconds_ago: Option<f64>,
}

/// Report of a reactor thread. Counts start with the worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReactorStats {
    /// Number of queues that it serves now.
    pub queues: u64,
    /// Number of sleeps in the kernel.
    pub sleeps: u64,
    /// Number of system calls on the request path: ring enters, call signals, inline reads.
    pub syscalls: u64,
    /// Number of wake-ups by a mailbox or a kick.
    pub wakeups: u64,
    /// Number of turns of its loop.
    #[serde(default)]
    pub turns: u64,
    /// Time that it polled without finding work, in seconds.
    #[serde(default)]
    #[serde(alias = "spun_seconds")]
    pub poll_seconds: f64,
    /// Time that it was ready to run and the host gave it no CPU, in seconds; absent if the kernel
    /// does not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_wait_seconds: Option<f64>,
    /// Disk that it serves at this moment. If `turns` does not grow meanwhile, it is stuck there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
}

//! The process and its threads.

use serde::{Deserialize, Serialize};

use super::{DiskStats, NetworkStats, NicStats, PortStats};
use crate::poll::EffectivePolling;

/// The whole process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Version of the program.
    pub version: String,
    /// Process id of the worker: it serves the disks.
    pub pid: u32,
    /// Seconds since start of the worker.
    pub uptime_seconds: f64,
    /// One entry a port of the switch, in order; absent where there is no switch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortStats>,
    /// One entry a reactor.
    pub reactors: Vec<ReactorStats>,
    /// How many reactors there are, and why so many; absent where a former version serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reactors_why: Option<String>,
    /// Queues that were moved from one reactor to another because the one was busier.
    #[serde(default)]
    pub queues_moved: u64,
    /// One entry a disk, in order of id.
    pub disks: Vec<DiskStats>,
    /// One entry a NIC, in order of id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicStats>,
    /// One entry a network, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkStats>,
    /// Polling of disks for which nothing else is set; absent where a former version serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_defaults: Option<EffectivePolling>,
    /// Who would replace the worker; absent when nobody would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<KeeperStats>,
    /// How the worker came to serve; absent where a former version does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<WorkerStart>,
}

/// How a worker came to serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStart {
    /// In place of whom.
    pub how: StartReason,
    /// When, in seconds since 1970. Its counters begin there, those of a disk when it came.
    pub unix_seconds: f64,
    /// How the worker before it ended, if it replaces a dead one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// In place of whom a worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartReason {
    /// Of nobody: the program was started.
    Start,
    /// Of a worker that had died.
    Restart,
    /// Of a worker that handed everything over.
    Upgrade,
}

impl WorkerStart {
    /// In a few words; nothing for a program that was just started.
    pub fn told(&self) -> Option<String> {
        match (self.how, &self.after) {
            (StartReason::Start, _) => None,
            (StartReason::Upgrade, _) => Some("by an upgrade".into()),
            (StartReason::Restart, None) => Some("in place of a worker that died".into()),
            (StartReason::Restart, Some(end)) => Some(format!("in place of a worker that {end}")),
        }
    }
}

impl StartReason {
    /// As it is on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Restart => "restart",
            Self::Upgrade => "upgrade",
        }
    }
}

/// The process that keeps the worker running.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeeperStats {
    /// Its process id.
    pub pid: u32,
    /// Workers that were started in place of dead ones.
    pub restarts: u64,
    /// How the last of those ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<String>,
    /// How long ago it found the worker serving without a keeper, if it did not start it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted_seconds_ago: Option<f64>,
}

/// One reactor thread. Counts since start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReactorStats {
    /// Queues that it owns now.
    pub queues: u64,
    /// Times it slept in the kernel.
    pub sleeps: u64,
    /// System calls on the request path: ring enters, call signals, inline reads.
    pub syscalls: u64,
    /// Times a mailbox or kick woke it.
    pub wakeups: u64,
    /// Turns of its loop.
    #[serde(default)]
    pub turns: u64,
    /// Time for which it looked for work and found none.
    #[serde(default)]
    pub spun_seconds: f64,
    /// Disk that it serves at this moment. If `turns` stands still meanwhile, it is stuck there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
}

//! The process and its threads.

use serde::{Deserialize, Serialize};

use super::DiskStats;

/// The whole process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Version of the program.
    pub version: String,
    /// Process id of the worker: it serves the disks.
    pub pid: u32,
    /// Seconds since start of the worker.
    pub uptime_seconds: f64,
    /// One entry a reactor.
    pub reactors: Vec<ReactorStats>,
    /// One entry a disk, in order of id.
    pub disks: Vec<DiskStats>,
    /// Who would replace the worker; absent when nobody would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<KeeperStats>,
}

/// The process that keeps the worker running.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperStats {
    /// Its process id.
    pub pid: u32,
    /// Workers that were started in place of dead ones.
    pub restarts: u64,
    /// How the last of those ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<String>,
}

/// One reactor thread. Counts since start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Disk that it serves at this moment. If `turns` stands still meanwhile, it is stuck there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
}

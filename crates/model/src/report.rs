//! What a running `ringway-io` says of itself: the result of `stats`.

use serde::{Deserialize, Serialize};

use crate::spec::{Backend, CacheMode, PollMode};

/// Size and block size as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
}

/// Where a disk is between attach and detach (design 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    /// Opened and listening; answers configuration; holds no lock; serves no request.
    Attached,
    /// Holds the lock and serves.
    Active,
    /// Holds the lock and serves nothing until it is resumed; its front-end stays and waits.
    Paused,
    /// A request has waited on full storage; see `alert`.
    Waiting,
}

/// The whole process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since start.
    pub uptime_seconds: f64,
    /// One entry a reactor.
    pub reactors: Vec<ReactorStats>,
    /// One entry a disk, in order of id.
    pub disks: Vec<DiskStats>,
}

/// One reactor thread. Counts since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReactorStats {
    /// Queues that it owns now.
    pub queues: u64,
    /// Times it slept in the kernel.
    pub sleeps: u64,
    /// System calls on the request path: ring enters, call signals, inline reads.
    pub syscalls: u64,
    /// Times a mailbox or kick woke it.
    pub wakeups: u64,
}

/// One disk. Counts since attach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskStats {
    /// Its id.
    pub id: String,
    /// Its state.
    pub state: DiskState,
    /// Its socket.
    pub socket: String,
    /// Where its bytes are.
    pub backend: Backend,
    /// Geometry as the guest sees it.
    pub geometry: Geometry,
    /// Host caching.
    pub cache: CacheMode,
    /// Polling.
    pub poll: PollMode,
    /// Queues offered.
    pub queues: u16,
    /// Queues that a front-end has started.
    pub queues_started: u16,
    /// A front-end is connected.
    pub connected: bool,
    /// Acknowledged virtio feature bits.
    pub features: u64,
    /// Why requests wait, when they do: cause and next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alert: Option<String>,
    /// Requests by kind.
    pub requests: OpCounts,
    /// Bytes by kind (flush has none).
    pub bytes: OpCounts,
    /// Requests that ended in an error status.
    pub errors: u64,
    /// Kicks received.
    pub kicks: u64,
    /// Calls sent.
    pub calls: u64,
    /// Requests that a backend which died had in flight and that were submitted again.
    #[serde(default)]
    pub resubmitted: u64,
    /// Time from pop to push, over all kinds but flush.
    pub latency: Latency,
}

/// A number for each kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpCounts {
    /// IN.
    pub read: u64,
    /// OUT.
    pub write: u64,
    /// FLUSH.
    pub flush: u64,
    /// DISCARD.
    pub discard: u64,
    /// WRITE_ZEROES.
    pub write_zeroes: u64,
    /// GET_ID.
    #[serde(default)]
    pub get_id: u64,
}

impl OpCounts {
    /// Sum over all kinds.
    pub fn total(&self) -> u64 {
        [self.read, self.write, self.flush, self.discard, self.write_zeroes, self.get_id]
            .iter()
            .fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// A latency distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests measured.
    pub count: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Largest.
    pub max_us: f64,
}

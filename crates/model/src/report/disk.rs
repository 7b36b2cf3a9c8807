//! One disk.

use serde::{Deserialize, Serialize};

use super::{Latency, OldestRequest, OpCounts, PollStats, QueueStats, SlowRequest, StageTimes};
use crate::spec::{Backend, CacheMode, Caps, PollMode};

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
    /// Storage did not end in time what it was given; nothing is served until it does; see
    /// `stuck` and `alert`.
    Stuck,
    /// A request has waited on full storage; see `alert`.
    Waiting,
    /// It cannot be served as its guest left it; see `refused`. Its front-end waits.
    Refused,
}

/// What a stop has left with storage that hangs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stuck {
    /// Seconds since the stop's deadline passed.
    pub since_seconds: f64,
    /// Requests that were left with the kernel; 0 when it was a flush or the like of our own.
    pub requests: u64,
    /// What waited.
    pub verb: String,
}

/// A wait for the I/O of a dead predecessor: the kernel goes on with it, and it must not land after
/// ours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fence {
    /// Seconds since the wait began.
    pub since_seconds: f64,
}

/// One NBD export of a disk. Counts since it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStats {
    /// Its socket.
    pub socket: String,
    /// Writes are refused.
    pub read_only: bool,
    /// Clients that are connected now, each connection counted.
    pub connections: u64,
    /// Most that may be.
    pub connections_max: u64,
    /// Connections that were served.
    pub clients: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// All other requests.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
}

/// One disk. Counts since attach, or since its process has begun to serve it.
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
    /// Polling in force.
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
    /// Caps in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caps: Option<Caps>,
    /// Storage hangs, and a verb has stopped waiting for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<Stuck>,
    /// Why it is not served, when a new worker could not take it over: cause and next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// It is refused because a newer version has held it in a way that this one does not know: to
    /// activate it changes nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub novel: bool,
    /// Nothing is served until the kernel has finished what a dead predecessor gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// When all counts and times of it were 0, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counting_since_unix_seconds: Option<f64>,
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
    /// Time from when requests were known to their end, over all kinds but flush.
    pub latency: Latency,
    /// How its queues wait; absent where a former version serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<PollStats>,
    /// Names of the acknowledged features.
    #[serde(default)]
    pub feature_names: Vec<String>,
    /// Answer to GET_ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Times are measured (`record` of its spec).
    #[serde(default)]
    pub recorded: bool,
    /// The image's lock is held, so that nobody else writes to it.
    #[serde(default)]
    pub locked: bool,
    /// Its NBD exports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<ExportStats>,
    /// Requests that the storage works on.
    #[serde(default)]
    pub in_flight: u64,
    /// Requests that wait in the rings.
    #[serde(default)]
    pub in_rings: u64,
    /// Rings that the cap holds back now.
    #[serde(default)]
    pub held_by_cap: u64,
    /// Reactors that serve its queues, as numbered in `reactors` of the process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reactors: Vec<u32>,
    /// Time for which reactors served it.
    #[serde(default)]
    pub busy_seconds: f64,
    /// Time for which it waited while its reactors served other disks for long.
    #[serde(default)]
    pub neighbour_seconds: f64,
    /// The oldest request under way, also while it hangs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<OldestRequest>,
    /// Durations by stage and kind, where there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageTimes>,
    /// Each queue that was ever served. Only told of one disk that is asked for by its id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each_queue: Vec<QueueStats>,
    /// Slow requests of the last time, the latest first. Only told of one disk that is asked for
    /// by its id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowRequest>,
}

impl DiskStats {
    /// A disk of `size_bytes` that nobody has used yet.
    pub fn new(id: impl Into<String>, backend: Backend, size_bytes: u64) -> Self {
        Self {
            id: id.into(),
            state: DiskState::Attached,
            socket: String::new(),
            backend,
            geometry: Geometry { size_bytes, block_size: 512, read_only: false },
            cache: CacheMode::default(),
            poll: PollMode::default(),
            queues: 1,
            queues_started: 0,
            connected: false,
            features: 0,
            alert: None,
            caps: None,
            stuck: None,
            refused: None,
            novel: false,
            fence: None,
            counting_since_unix_seconds: None,
            requests: OpCounts::default(),
            bytes: OpCounts::default(),
            errors: 0,
            kicks: 0,
            calls: 0,
            resubmitted: 0,
            latency: Latency::default(),
            polling: None,
            feature_names: Vec::new(),
            serial: None,
            recorded: true,
            locked: false,
            exports: Vec::new(),
            in_flight: 0,
            in_rings: 0,
            held_by_cap: 0,
            reactors: Vec::new(),
            busy_seconds: 0.0,
            neighbour_seconds: 0.0,
            oldest: None,
            stages: Vec::new(),
            each_queue: Vec::new(),
            slow: Vec::new(),
        }
    }
}

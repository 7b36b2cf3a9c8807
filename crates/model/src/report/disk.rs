//! Report of one disk.

use serde::{Deserialize, Serialize};

use super::{
    BrokenRing, GoldenStats, Latency, LayerStats, OldestRequest, OpCounts, OverlayStats, PollStats,
    QueueStats, ShareReport, SlowRequest, StageTimes,
};
use crate::spec::{Backend, CacheMode, Caps, PollMode};

/// Requests that failed because of the storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorageErrors {
    /// Number of requests since the start of the process.
    pub count: u64,
    /// Error of the last one.
    pub last: String,
    /// Seconds since the last one.
    pub last_seconds_ago: f64,
}

/// Size and block size as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// State of a disk between attach and detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskState {
    /// Opened and listening. Answers configuration requests, holds no lock, and serves no request.
    Attached,
    /// Holds the lock and serves.
    Active,
    /// Holds the lock, but serves nothing until it is resumed. Its front-end stays connected.
    Paused,
    /// The storage did not end requests in time. Nothing is served until it does; see `stuck` and
    /// `alert`.
    Stuck,
    /// A request waits because the storage is full; see `alert`.
    Waiting,
    /// Not reopened in the state that its guest saw; see `refused`. The guest's requests wait.
    Refused,
}

/// I/O that a stop abandoned to hung storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stuck {
    /// Seconds since the stop's deadline passed.
    pub since_seconds: f64,
    /// Number of requests abandoned to the kernel; 0 if it was internal I/O such as a flush.
    pub requests: u64,
    /// Operation whose deadline passed.
    pub verb: String,
}

/// A wait for the I/O of a dead process. The kernel continues this I/O, which must not land after
/// I/O of the new process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fence {
    /// Seconds since the wait began.
    pub since_seconds: f64,
}

/// When drivers began to use a disk: a guest's firmware, then its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverStarts {
    /// Number of starts since the front-end connected.
    pub count: u64,
    /// Seconds since the first one.
    pub first_seconds_ago: f64,
    /// Seconds since the last one.
    pub last_seconds_ago: f64,
}

/// Report of an NBD export of a disk. Counts start when the export is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStats {
    /// Path of its socket.
    pub socket: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Current number of connections.
    pub connections: u64,
    /// Maximum number of connections.
    pub connections_max: u64,
    /// Number of connections served so far.
    pub clients: u64,
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of other requests.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Number of requests answered with an error.
    pub errors: u64,
}

/// Report of a disk. Counts start at attach, or when its process began to serve it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskStats {
    /// Id of the disk.
    pub id: String,
    /// State of the disk.
    pub state: DiskState,
    /// Path of its socket. Absent if the disk has none, so that no guest uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Backend that stores its bytes.
    pub backend: Backend,
    /// Geometry as the guest sees it.
    pub geometry: Geometry,
    /// Host cache mode.
    pub cache: CacheMode,
    /// Polling mode in force.
    pub poll: PollMode,
    /// Number of queues offered.
    pub queues: u16,
    /// Number of queues that a front-end has started.
    pub queues_started: u16,
    /// Starts by drivers. Absent if none has begun since this process serves the front-end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_starts: Option<DriverStarts>,
    /// Whether a front-end is connected.
    pub connected: bool,
    /// Acknowledged virtio feature bits.
    pub features: u64,
    /// Reason why requests wait, if they do: cause and remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alert: Option<String>,
    /// Caps in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caps: Option<Caps>,
    /// Share of the storage in effect. Absent without a scheduler: its storage has no profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareReport>,
    /// I/O abandoned to hung storage, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<Stuck>,
    /// Reason why a new worker could not take the disk over: cause and remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Whether the disk is refused because a newer version preserved it in a format that this
    /// version does not know. An activate does not help.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(alias = "novel")]
    pub unknown_format: bool,
    /// Wait until the kernel has finished the I/O of a dead process. Nothing is served meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Time at which all its counts were 0, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counting_since_unix_seconds: Option<f64>,
    /// Completed requests by kind.
    pub requests: OpCounts,
    /// Bytes by kind; flushes have none.
    pub bytes: OpCounts,
    /// Number of requests that ended with an error status.
    pub errors: u64,
    /// Number of kicks received.
    pub kicks: u64,
    /// Number of calls sent.
    pub calls: u64,
    /// Number of times that completions were published to the guest, one or more at once.
    #[serde(default)]
    pub publishes: u64,
    /// Ended requests, with and without errors, for each call. Absent before the first call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_call: Option<f64>,
    /// Ended requests for each time that completions were published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_publish: Option<f64>,
    /// Requests that were in flight when a former process died, and that were submitted again.
    #[serde(default)]
    pub resubmitted: u64,
    /// Requests that failed because each was alone in flight when a process died by its own fault.
    #[serde(default)]
    pub failed_suspects: u64,
    /// Read-modify-writes, because requests were smaller than the blocks that direct I/O on the
    /// storage needs.
    #[serde(default)]
    pub small_writes: u64,
    /// Layers that are images with a map, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerStats>,
    /// Golden image below the disk, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub golden: Option<GoldenStats>,
    /// Overlay of the disk, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayStats>,
    /// Requests that failed because of the storage, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_errors: Option<StorageErrors>,
    /// Rings that their driver has broken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken_rings: Vec<BrokenRing>,
    /// Number of times that one of its rings broke.
    #[serde(default)]
    pub broken_rings_total: u64,
    /// Number of requests that wait because the storage is full. The client of an NBD export may
    /// wait while the disk is inactive.
    #[serde(default)]
    pub waiting: u64,
    /// Time from known to the end, over all kinds except flushes.
    pub latency: Latency,
    /// Polling of its queues; absent if a former version serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<PollStats>,
    /// Names of the acknowledged features.
    #[serde(default)]
    pub feature_names: Vec<String>,
    /// Answer to GET_ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Whether times are measured (`record` of its spec).
    #[serde(default)]
    pub recorded: bool,
    /// Whether the process holds the image's lock, which excludes other writers.
    #[serde(default)]
    pub locked: bool,
    /// Its NBD exports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<ExportStats>,
    /// Number of requests that the storage works on.
    #[serde(default)]
    pub in_flight: u64,
    /// Number of requests that wait in the rings.
    #[serde(default)]
    #[serde(alias = "in_rings")]
    pub queued: u64,
    /// Number of rings that the cap throttles now.
    #[serde(default)]
    #[serde(alias = "held_by_cap")]
    pub throttled_queues: u64,
    /// Reactors that serve its queues, as numbered in `reactors` of the process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reactors: Vec<u32>,
    /// Time that reactors served it, in seconds.
    #[serde(default)]
    pub busy_seconds: f64,
    /// Time that it waited for long turns of other disks on its reactors, in seconds.
    #[serde(default)]
    pub neighbour_seconds: f64,
    /// The oldest unfinished request, even while it hangs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<OldestRequest>,
    /// Durations by stage and kind that occurred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageTimes>,
    /// Each queue that was ever served. Only in the report of one disk by its id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each_queue: Vec<QueueStats>,
    /// Recent slow requests, the latest first. Only in the report of one disk by its id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowRequest>,
}

impl DiskStats {
    /// Creates the report of an unused disk of `size_bytes`.
    pub fn new(id: impl Into<String>, backend: Backend, size_bytes: u64) -> Self {
        Self {
            id: id.into(),
            state: DiskState::Attached,
            socket: None,
            backend,
            geometry: Geometry { size_bytes, block_size: 512, read_only: false },
            cache: CacheMode::default(),
            poll: PollMode::default(),
            queues: 1,
            queues_started: 0,
            driver_starts: None,
            connected: false,
            features: 0,
            alert: None,
            caps: None,
            share: None,
            stuck: None,
            refused: None,
            unknown_format: false,
            fence: None,
            counting_since_unix_seconds: None,
            requests: OpCounts::default(),
            bytes: OpCounts::default(),
            errors: 0,
            kicks: 0,
            calls: 0,
            publishes: 0,
            requests_per_call: None,
            requests_per_publish: None,
            resubmitted: 0,
            failed_suspects: 0,
            small_writes: 0,
            layers: None,
            golden: None,
            overlay: None,
            storage_errors: None,
            broken_rings: Vec::new(),
            broken_rings_total: 0,
            waiting: 0,
            latency: Latency::default(),
            polling: None,
            feature_names: Vec::new(),
            serial: None,
            recorded: true,
            locked: false,
            exports: Vec::new(),
            in_flight: 0,
            queued: 0,
            throttled_queues: 0,
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

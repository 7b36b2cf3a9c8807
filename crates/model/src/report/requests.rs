//! Reports of single requests and queues.

use serde::{Deserialize, Serialize};

use super::{QueuePolling, Stage};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Read (IN).
    Read,
    /// Write (OUT).
    Write,
    /// Flush (FLUSH).
    Flush,
    /// Discard (DISCARD).
    Discard,
    /// Write of zeroes (WRITE_ZEROES).
    WriteZeroes,
    /// Request for the serial number (GET_ID).
    GetId,
}

impl RequestKind {
    /// Returns the name for a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "zeroing",
            Self::GetId => "identification",
        }
    }
}

/// An unfinished request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OldestRequest {
    /// Kind; absent while the request is still in the ring and not parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<RequestKind>,
    /// Offset of the first byte.
    #[serde(default)]
    pub offset: u64,
    /// Length in bytes.
    #[serde(default)]
    pub bytes: u64,
    /// Current stage.
    pub stage: Stage,
    /// Seconds since it was known.
    pub age_seconds: f64,
    /// Seconds in its current stage.
    pub in_stage_seconds: f64,
}

/// Another disk that occupied the reactor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusyNeighbour {
    /// Id of the disk; absent if it has been detached since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// Duration of its turn, in microseconds.
    pub turn_us: f64,
}

/// A completed slow request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowRequest {
    /// Kind of request.
    pub kind: RequestKind,
    /// Whether it failed.
    #[serde(default)]
    pub failed: bool,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Time of its end, in seconds since 1970.
    pub ended_unix_seconds: f64,
    /// Seconds since its end.
    pub ended_seconds_ago: f64,
    /// Total time, in microseconds.
    pub total_us: f64,
    /// Time in the ring, in microseconds.
    pub queue_us: f64,
    /// Time under the cap, in microseconds.
    pub cap_us: f64,
    /// Time with the storage, in microseconds.
    pub device_us: f64,
    /// Time from the storage to the guest, in microseconds.
    pub completion_us: f64,
    /// Reactor that served it, as numbered in `reactors`.
    pub reactor: u32,
    /// Number of slow but faster requests that ended at the same time.
    #[serde(default)]
    pub others: u32,
    /// Disk that its reactor served meanwhile for long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<BusyNeighbour>,
}

impl SlowRequest {
    /// Returns the stage in which it spent most of its time.
    pub fn longest_stage(&self) -> Stage {
        let all = [
            (Stage::Queue, self.queue_us),
            (Stage::Cap, self.cap_us),
            (Stage::Device, self.device_us),
            (Stage::Completion, self.completion_us),
        ];
        all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Stage::Device, |(stage, _)| stage)
    }
}

/// Report of a queue. Counts start at attach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueStats {
    /// Index of the queue.
    pub index: u16,
    /// Reactor that served it last, as numbered in `reactors`.
    pub reactor: u32,
    /// Number of requests that the storage works on.
    pub in_flight: u32,
    /// Number of requests in the ring at the end of its last turn.
    #[serde(alias = "in_ring")]
    pub queued: u32,
    /// Whether the cap throttles it now.
    #[serde(alias = "held_by_cap")]
    pub throttled: bool,
    /// Total duration of its turns, in seconds.
    pub busy_seconds: f64,
    /// Duration of its longest turn, in microseconds.
    pub longest_turn_us: f64,
    /// Time that it waited for long turns of other disks on its reactor, in seconds.
    pub neighbour_seconds: f64,
    /// The last such turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<BusyNeighbour>,
    /// Seconds since that turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour_seconds_ago: Option<f64>,
    /// Polling; absent if a former version serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<QueuePolling>,
}

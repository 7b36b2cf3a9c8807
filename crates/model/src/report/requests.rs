//! Single requests, and the queues that they are in.

use serde::{Deserialize, Serialize};

use super::{QueuePolling, Stage};

/// Kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// IN.
    Read,
    /// OUT.
    Write,
    /// FLUSH.
    Flush,
    /// DISCARD.
    Discard,
    /// WRITE_ZEROES.
    WriteZeroes,
    /// GET_ID.
    GetId,
}

impl RequestKind {
    /// As a sentence says it.
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

/// A request that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OldestRequest {
    /// What it is; absent while it is still in the ring, unread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<RequestKind>,
    /// First byte.
    #[serde(default)]
    pub offset: u64,
    /// Bytes.
    #[serde(default)]
    pub bytes: u64,
    /// Where it is.
    pub stage: Stage,
    /// Since it was known.
    pub age_seconds: f64,
    /// Since it came to its stage.
    pub in_stage_seconds: f64,
}

/// Another disk that kept the reactor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusyNeighbour {
    /// Its id; absent when it has been detached since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// How long it was served in one turn.
    pub turn_us: f64,
}

/// A slow request that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowRequest {
    /// What it was.
    pub kind: RequestKind,
    /// It ended in an error.
    #[serde(default)]
    pub failed: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// When it ended, in seconds since 1970.
    pub ended_unix_seconds: f64,
    /// How long ago that is.
    pub ended_seconds_ago: f64,
    /// All stages together.
    pub total_us: f64,
    /// In the ring.
    pub queue_us: f64,
    /// Held back by the cap.
    pub cap_us: f64,
    /// With the storage.
    pub device_us: f64,
    /// From there to the guest.
    pub completion_us: f64,
    /// Reactor that served it, as numbered in `reactors`.
    pub reactor: u32,
    /// Others that ended at the same time and were slow too, but less.
    #[serde(default)]
    pub others: u32,
    /// Whom its reactor served meanwhile, if for long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<BusyNeighbour>,
}

impl SlowRequest {
    /// Where it spent most of its time.
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

/// One queue. Counts since attach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueStats {
    /// Its index.
    pub index: u16,
    /// Reactor that served it last, as numbered in `reactors`.
    pub reactor: u32,
    /// Requests that the storage works on.
    pub in_flight: u32,
    /// Requests in the ring, as its last turn left it.
    pub in_ring: u32,
    /// The cap holds it back now.
    pub held_by_cap: bool,
    /// Time of its turns.
    pub busy_seconds: f64,
    /// The longest of them.
    pub longest_turn_us: f64,
    /// Time for which it waited while its reactor served other disks for long.
    pub neighbour_seconds: f64,
    /// The last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<BusyNeighbour>,
    /// How long ago that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour_seconds_ago: Option<f64>,
    /// How it waits; absent where a former version serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<QueuePolling>,
}

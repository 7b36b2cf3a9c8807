//! Where the time of requests goes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Latency;

/// A part of a request's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// In the guest's ring, from when the reactor could first know of it: from the last look that
    /// did not show it, at most one turn too early.
    Queue,
    /// Held back by the disk's cap.
    Cap,
    /// With the storage, until the reactor saw its end.
    Device,
    /// From then until the guest could see it.
    Completion,
    /// All of them together.
    Total,
}

/// Kinds of request whose times are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// IN.
    Read,
    /// OUT.
    Write,
    /// FLUSH.
    Flush,
    /// DISCARD and WRITE_ZEROES.
    Other,
}

impl Stage {
    /// As it is on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Cap => "cap",
            Self::Device => "device",
            Self::Completion => "completion",
            Self::Total => "total",
        }
    }
}

impl Op {
    /// As it is on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Durations of one stage for one kind of request, since attach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageTimes {
    /// Which part of the way.
    pub stage: Stage,
    /// Which kind.
    pub op: Op,
    /// Percentiles.
    #[serde(flatten)]
    pub times: Latency,
    /// Sum of all durations, in seconds.
    pub sum_seconds: f64,
}

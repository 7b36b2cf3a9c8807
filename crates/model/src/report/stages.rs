//! Stages of the request path, and their durations.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Latency;

/// A part of the request path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Waiting in the guest's ring, since the reactor could first know of it. That is the last
    /// poll that did not see it, at most one turn too early.
    Queue,
    /// Held back by the disk's cap.
    Cap,
    /// Being served by the storage, until the reactor saw its end.
    Device,
    /// After the storage, until the guest could see the completion.
    Completion,
    /// Sum of all stages.
    Total,
}

/// Kind of request with times of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Reads (IN).
    Read,
    /// Writes (OUT).
    Write,
    /// Flushes (FLUSH).
    Flush,
    /// DISCARD and WRITE_ZEROES.
    Other,
}

impl Stage {
    /// Returns the name on the wire.
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
    /// Returns the name on the wire.
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
    /// Stage.
    pub stage: Stage,
    /// Kind of request.
    pub op: Op,
    /// Percentiles.
    #[serde(flatten)]
    pub times: Latency,
    /// Sum of all durations, in seconds.
    pub sum_seconds: f64,
}

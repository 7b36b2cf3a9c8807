//! Stages of a request, kinds of request, and a histogram for each pair.

use std::sync::OnceLock;

use disk::RequestKind;
use reactor::{Histogram, Snapshot};

/// A part of the request path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In the ring: since the reactor could first know of the request, until it was popped.
    Queue,
    /// Time that the disk's cap held the request back, in the ring or after it was popped.
    Cap,
    /// With the storage: from submission until the reactor saw the end.
    Device,
    /// After the storage: until the driver can see the completion.
    Completion,
    /// Sum of all stages.
    Total,
}

/// Kind of request with histograms of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Kind of request with a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads (IN).
    Read,
    /// Writes (OUT).
    Write,
    /// Flushes (FLUSH).
    Flush,
    /// Discards (DISCARD).
    Discard,
    /// Writes of zeroes (WRITE_ZEROES).
    WriteZeroes,
    /// Requests for the serial number (GET_ID).
    GetId,
}

pub(crate) const STAGES: usize = 5;
pub(crate) const OPS: usize = 4;

impl Stage {
    /// All stages, in the order of the request path.
    pub const ALL: [Self; STAGES] =
        [Self::Queue, Self::Cap, Self::Device, Self::Completion, Self::Total];
}

impl Op {
    /// All kinds.
    pub const ALL: [Self; OPS] = [Self::Read, Self::Write, Self::Flush, Self::Other];
}

impl From<RequestKind> for Class {
    fn from(kind: RequestKind) -> Self {
        match kind {
            RequestKind::Read => Self::Read,
            RequestKind::Write { .. } => Self::Write,
            RequestKind::Flush => Self::Flush,
            RequestKind::Discard => Self::Discard,
            RequestKind::WriteZeroes { .. } => Self::WriteZeroes,
        }
    }
}

impl Class {
    /// Returns the kind whose histograms record this class.
    pub fn op(self) -> Op {
        match self {
            Self::Read => Op::Read,
            Self::Write => Op::Write,
            Self::Flush => Op::Flush,
            Self::Discard | Self::WriteZeroes | Self::GetId => Op::Other,
        }
    }

    pub(crate) fn from_code(code: u8) -> Self {
        let all =
            [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes, Self::GetId];
        all.into_iter().find(|class| *class as u8 == code).unwrap_or(Self::GetId)
    }
}

/// A histogram for each stage and kind, created when it gets its first value.
#[derive(Debug, Default)]
pub(crate) struct Stages([[OnceLock<Box<Histogram>>; OPS]; STAGES]);

impl Stages {
    /// Records `count` durations of `ns`. Only the owning thread may call it.
    pub(crate) fn record(&self, stage: Stage, op: Op, ns: u64, count: u64) {
        if let Some(place) = self.place(stage, op) {
            place.get_or_init(Box::default).record(ns, count);
        }
    }

    /// Adds the recorded durations to `sum`.
    pub(crate) fn add_to(&self, stage: Stage, op: Op, sum: &mut Option<Snapshot>) {
        if let Some(one) = self.place(stage, op).and_then(OnceLock::get) {
            sum.get_or_insert_default().add(one);
        }
    }

    pub(crate) fn median_ns(&self, stage: Stage, op: Op) -> u64 {
        let one = self.place(stage, op).and_then(OnceLock::get);
        one.map_or(0, |histogram| histogram.median_ns())
    }

    fn place(&self, stage: Stage, op: Op) -> Option<&OnceLock<Box<Histogram>>> {
        self.0.get(stage as usize)?.get(op as usize)
    }
}

//! Why a disk is slow: facts in, verdict out.
//!
//! # Words
//! - [`DiskFacts`]: two samples of a process's `stats`, some time apart, and one disk in full.
//! - [`Cause`]: what holds the disk back, or that nothing does.
//! - [`DiskVerdict`]: the cause, in one plain sentence, with the stage, the neighbour and since when.
//! - [`NicVerdict`]: the same of a NIC, from [`NicFacts`].
//!
//! # Model
//! What is certain comes first: a state in which nothing is served (stuck, paused, full storage),
//! then a request that hangs now, then what the requests of the time between the samples waited
//! for, by the share of each stage. If all is well now, what was slow before is told from the
//! flight recorder.
//!
//! # How to test
//! `tests` has a row for every cause.

mod facts;
mod flow;
mod history;
mod judge;
mod nic;
mod polling;
#[cfg(test)]
mod tests;
mod units;

use serde::{Deserialize, Serialize};

use crate::report::Stage;

pub use facts::DiskFacts;
pub use judge::judge;
pub use nic::{NicCause, NicFacts, NicVerdict, judge_nic, judge_refused};
pub use units::{bytes, duration};

/// What holds a disk back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its guest asks for nothing.
    Idle,
    /// It is served, and nothing stands out.
    Healthy,
    /// A request is with the storage and does not come back.
    StorageHangs,
    /// The storage takes longer than it used to.
    StorageSlow,
    /// The guest has more under way than the storage answers at a time.
    DeepQueue,
    /// Its cap.
    Cap,
    /// The storage is full.
    Full,
    /// A stop gave up waiting for the storage.
    Stuck,
    /// It waits until the kernel has finished the requests of a dead predecessor.
    Fence,
    /// It was not taken over after a restart.
    Refused,
    /// Somebody paused it.
    Paused,
    /// It is attached and not activated.
    Inactive,
    /// No front-end is connected.
    NoFrontEnd,
    /// A front-end is connected, and its driver has started no queue.
    NoDriver,
    /// Its reactor is busy with another disk.
    Neighbour,
    /// Its reactor is busy with the disk itself.
    Processor,
    /// The process that serves it has just been restarted.
    Restarted,
    /// Its times are not recorded.
    NotRecorded,
}

/// Why a disk is slow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskVerdict {
    /// What holds it back.
    pub cause: Cause,
    /// In one sentence.
    pub sentence: String,
    /// Where requests wait, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// The disk that keeps its reactor, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<String>,
    /// For how long, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<f64>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Whether it is polled, and what that brings, or why not; in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<String>,
    /// What was slow before, if something was and all is well now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past: Option<String>,
}

impl DiskVerdict {
    fn new(cause: Cause, sentence: String) -> Self {
        Self {
            cause,
            sentence,
            stage: None,
            neighbour: None,
            since_seconds: None,
            next: None,
            polling: None,
            past: None,
        }
    }

    fn at(mut self, stage: Stage) -> Self {
        self.stage = Some(stage);
        self
    }

    fn since(mut self, seconds: f64) -> Self {
        self.since_seconds = Some(seconds);
        self
    }

    fn next(mut self, step: impl Into<String>) -> Self {
        self.next = Some(step.into());
        self
    }
}

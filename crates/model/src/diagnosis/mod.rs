//! Diagnosis of a slow disk or NIC: facts in, verdict out.
//!
//! # Terms
//! - [`DiskFacts`]: two samples of a process's `stats`, some time apart, and one disk in full.
//! - [`Cause`]: what slows the disk, or that nothing does.
//! - [`DiskVerdict`]: the cause as one sentence, with the stage, the neighbour and the duration.
//! - [`NicVerdict`]: the same for a NIC, from [`NicFacts`].
//!
//! # Model
//! The order of causes is one list (`judge`). Certain causes come first: a state in which nothing
//! is served (stuck, full storage, paused), then a request that hangs now, then failing storage.
//! Then follows the time of the requests that ended between the samples, by the share of each
//! stage. Only then comes what is past: failed requests of the last 30 s, a restart. If all is well
//! now, the verdict adds slow requests from the flight recorder.
//!
//! # How to test
//! `tests` has a row for every cause.

mod facts;
mod flow;
mod history;
mod judge;
mod layers;
mod nic;
mod overlay;
mod polling;
mod restart;
mod share;
mod state;
mod storage_errors;
#[cfg(test)]
mod tests;
mod units;
mod wait;

use serde::{Deserialize, Serialize};

use crate::report::Stage;

pub use facts::DiskFacts;
pub use judge::judge;
pub use nic::{NicCause, NicFacts, NicVerdict, judge_nic, judge_refused};
pub use units::{bytes, duration};

/// Cause of a disk's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The guest sends no requests.
    Idle,
    /// The disk is served, and nothing is unusual.
    Healthy,
    /// The storage does not complete a request.
    StorageHangs,
    /// The storage fails requests.
    StorageFails,
    /// The storage takes longer than usual.
    StorageSlow,
    /// The guest has more requests in flight than the storage serves at a time.
    DeepQueue,
    /// Requests are smaller than the blocks of the storage, so whole blocks are read and rewritten.
    SmallWrites,
    /// Requests wait for the metadata of an image: where their blocks are, or a place for new ones.
    Metadata,
    /// The disk's cap holds requests back.
    Cap,
    /// Requests wait for the disk's share of a storage that other disks use too.
    Share,
    /// The storage is full.
    Full,
    /// Requests wait for space that the guest has freed, and that a request in flight keeps.
    Limbo,
    /// A stop has passed its deadline while the storage hangs.
    Stuck,
    /// The disk waits until the kernel has finished the requests of a dead process.
    Fence,
    /// A new worker refused to take the disk over after a restart.
    Refused,
    /// A caller has paused the disk.
    Paused,
    /// The disk is attached but not activated.
    Inactive,
    /// No front-end is connected.
    NoFrontEnd,
    /// A front-end is connected, but the driver has started no queue.
    NoDriver,
    /// The guest's driver has broken a ring.
    BrokenRing,
    /// The host does not run the reactor although it has work.
    NoCpu,
    /// The reactor is busy with another disk.
    Neighbour,
    /// The reactor is busy with the disk itself.
    Processor,
    /// The serving process has just been restarted.
    Restarted,
    /// The disk records no times.
    NotRecorded,
}

/// Reason why a disk is slow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskVerdict {
    /// Cause.
    pub cause: Cause,
    /// Cause as one sentence.
    pub sentence: String,
    /// Stage in which requests wait, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Disk that occupies the reactor, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<String>,
    /// Duration of this state in seconds, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<f64>,
    /// Suggested remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Sentence on polling: whether the disk is polled, with the gain or the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<String>,
    /// Sentences on the scheduler of the storage: the depth in force, and pieces of large requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Sentence on the overlay, if it will soon be full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<String>,
    /// Past events that another cause outweighs: a restart; requests that the storage failed, or
    /// that failed because they may have ended their process; slow requests, if all is well now.
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
            share: None,
            overlay: None,
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

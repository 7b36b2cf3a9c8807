//! Messages between keeper and worker.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::PreservedEntryData;

/// Message from a worker to its keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerMessage {
    /// Store this entry and replace the former entry of its key.
    Hold { seq: u64, what: PreservedEntryData },
    /// Remove the entry of this key.
    Forget { seq: u64, key: String },
    /// Calls or front-ends are accepted.
    Ready,
    /// The worker ends in order; start no other worker.
    Ending,
    /// Reply to a ping.
    Pong,
    /// Start another worker from this file, or from the file that is now at the keeper's path. Pass
    /// it the attached descriptor, through which it takes over.
    Succeed { seq: u64, binary: Option<PathBuf> },
    /// The other worker is about to receive `Go`. If this worker ends, the other one is the worker.
    Yield { seq: u64 },
    /// The handover is cancelled; kill the other worker.
    Abandon { seq: u64 },
}

/// Message from a keeper to its worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeeperMessage {
    /// An entry that the former worker preserved.
    Restore { what: PreservedEntryData },
    /// Information about the keeper.
    Keeper(KeeperInfo),
    /// Another worker serves now, and hands over through the attached descriptor.
    TakeOver,
    /// All messages of the start are sent; begin.
    Begin,
    /// Reply to a call: done, or the problem.
    Done { seq: u64, problem: Option<String> },
    /// Request for a [`WorkerMessage::Pong`].
    Ping,
    /// End in order.
    Stop,
}

/// Information about the keeper for its worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeeperInfo {
    /// Process ID of the keeper.
    pub(crate) pid: u32,
    /// Number of workers that it has started in place of dead ones.
    pub(crate) restarts: u64,
    /// Text that describes how the last of those ended.
    pub(crate) last_exit: Option<String>,
    /// True if the worker must end when its keeper dies.
    pub(crate) die_together: bool,
    /// Number of deaths in a row by the worker's own fault; 0 if the last worker was killed from
    /// outside. Older keepers do not count them.
    #[serde(default)]
    pub(crate) faults: u32,
}

//! What keeper and worker say to each other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::PreservedEntryData;

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerMessage {
    /// Hold this from now on, in place of what the key stood for.
    Hold { seq: u64, what: PreservedEntryData },
    /// Hold this no longer.
    Forget { seq: u64, key: String },
    /// Calls or front-ends are taken.
    Ready,
    /// This end is an orderly one: start no other worker.
    Ending,
    /// Answer to a ping.
    Pong,
    /// Start another worker from this file, or from the one that is now where the keeper's was,
    /// and give it the descriptor that comes along: it takes over by that.
    Succeed { seq: u64, binary: Option<PathBuf> },
    /// The other worker is about to be told to go on: if this one ends, it is the worker.
    Yield { seq: u64 },
    /// The other worker takes over nothing: kill it.
    Abandon { seq: u64 },
}

/// What a keeper says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeeperMessage {
    /// The worker before had this held.
    Restore { what: PreservedEntryData },
    /// Who keeps it.
    Keeper(KeeperInfo),
    /// Another worker serves all this now, and hands it over by the descriptor that comes along.
    TakeOver,
    /// Everything has been said: begin.
    Begin,
    /// A hold or a forget is done, or why it is not.
    Done { seq: u64, problem: Option<String> },
    /// Is anybody there?
    Ping,
    /// End in order.
    Stop,
}

/// What a worker knows of its keeper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeeperInfo {
    /// Its process id.
    pub(crate) pid: u32,
    /// Workers that it has started in place of dead ones.
    pub(crate) restarts: u64,
    /// How the last of those ended.
    pub(crate) last_exit: Option<String>,
    /// Without it the worker has no purpose.
    pub(crate) die_together: bool,
}

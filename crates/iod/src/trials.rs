//! Trials of the requests that workers left in flight when they died by their own fault.
//!
//! A request may end each worker that executes it: a device driver that crashes, a fault of this
//! program. Its successors take it up again, and no disk of the process would be served any more.
//! So after [`DEATHS_BEFORE_TRIAL`] such deaths in a row, a worker executes the requests that it
//! takes over one at a time, ring after ring, over all its disks. The in-flight region records
//! which request is alone in flight. If the worker dies once more, its successor fails that request,
//! and no other ([`blk::TrialStart`]).
//!
//! A thread gives the rings their turns. A ring whose storage takes longer than [`TRIAL_DEADLINE`]
//! submits the rest of its requests at once, so that hung storage does not hold up other disks.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::Duration;

use blk::{TrialHandle, TrialStart};

/// Deaths after which the requests are suspected.
const DEATHS_BEFORE_TRIAL: u32 = 2;
/// Longest trial of a ring.
const TRIAL_DEADLINE: Duration = Duration::from_secs(1);

/// Turns of the rings of a worker.
#[derive(Debug)]
pub(crate) struct Trials {
    fails_suspect: bool,
    turns: Sender<(TrialHandle, Receiver<()>)>,
}

impl Trials {
    /// Returns the trials of a worker whose predecessors died `faults` times in a row by their own
    /// fault, and starts a thread for them. `None` if nothing is suspected. Without a thread,
    /// requests are executed as after other deaths.
    pub(crate) fn begin(faults: u32) -> Option<Self> {
        if faults < DEATHS_BEFORE_TRIAL {
            return None;
        }
        tracing::warn!(
            deaths = faults,
            "workers died by their own fault: requests in flight are executed one at a time"
        );
        let (turns, pending) = channel();
        let thread = std::thread::Builder::new().name("trials".into()).spawn(|| run(pending));
        if let Err(error) = thread {
            tracing::error!("requests in flight are executed all at once: {error}");
            return None;
        }
        Some(Self { fails_suspect: faults > DEATHS_BEFORE_TRIAL, turns })
    }

    /// Returns the trial of a ring that is about to start, and the receiver of its end.
    pub(crate) fn new_trial(&self) -> (TrialStart, Receiver<()>) {
        let (ended, end) = sync_channel(0);
        (TrialStart { fails_suspect: self.fails_suspect, ended }, end)
    }

    /// Gives a started ring its turn after those before it.
    pub(crate) fn enqueue(&self, trial: TrialHandle, end: Receiver<()>) {
        // The thread ends only with this value.
        let _ = self.turns.send((trial, end));
    }
}

fn run(pending: Receiver<(TrialHandle, Receiver<()>)>) {
    for (trial, end) in pending {
        trial.begin();
        if end.recv_timeout(TRIAL_DEADLINE) == Err(RecvTimeoutError::Timeout) {
            trial.end();
        }
    }
}

//! Trial of the requests that a process left in flight when it died by its own fault.
//!
//! One of them may be what ends each process that executes it. So the queue executes them one at a
//! time, the oldest first, and pops nothing else meanwhile. It records which one is alone in flight
//! ([`virtq::Suspect`]). If the process dies then, its successor fails this request.

use std::sync::mpsc::SyncSender;

use reactor::Context;
use virtq::{Chain, Suspect};

use super::BlkQueue;
use crate::parse::Parsed;
use crate::spec::S_IOERR;

/// Trial that a queue is to run when it starts.
#[derive(Debug)]
pub struct TrialStart {
    /// Whether the queue fails a request that was alone in flight when a process died. False if it
    /// was too early to tell.
    pub fails_suspect: bool,
    /// Dropped when the trial has ended.
    pub ended: SyncSender<()>,
}

/// Trial of a queue.
#[derive(Debug)]
pub(super) struct Trial {
    start: TrialStart,
    /// Whether the queue waits for its turn, because other queues have their trials.
    waits: bool,
    /// The request that is alone in flight.
    alone: Option<u16>,
}

impl Trial {
    /// Returns the trial of a queue that starts, if it has requests to try.
    pub(super) fn new(start: Option<TrialStart>, recovering: bool) -> Option<Self> {
        start.filter(|_| recovering).map(|start| Self { start, waits: true, alone: None })
    }
}

impl BlkQueue {
    /// Begins the trial of the queue.
    pub(crate) fn begin_trial(&mut self) {
        if let Some(trial) = &mut self.trial {
            trial.waits = false;
        }
    }

    /// Ends the trial early, because storage takes too long. The request that is alone in flight
    /// has ended no process so far. All others are submitted at once.
    pub(crate) fn end_trial(&mut self) {
        if let Some(head) = self.trial.take().and_then(|trial| trial.alone) {
            self.queue.clear_mark(head);
        }
    }

    /// Executes the next request of the trial when the one before has ended. Returns whether there
    /// was something to do.
    pub(super) fn try_next(&mut self, context: &mut Context<'_>) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        if trial.waits || !self.queue.rests() {
            return false;
        }
        trial.alone = None;
        let fails = trial.start.fails_suspect;
        match self.queue.next_suspect() {
            None => self.trial = None,
            Some(Suspect::Condemned) if fails => {
                // Reading it once more, to fail it, ended the process, too.
                self.queue.complete_suspect_unread();
                self.report_failed_suspect("a request that cannot be read");
            }
            Some(Suspect::Alone) if fails => match self.queue.pop_suspect(Suspect::Condemned) {
                Ok(chain) => chain.into_iter().for_each(|chain| self.fail_suspect(chain)),
                Err(error) => self.broken(context, &error),
            },
            Some(_) => match self.queue.pop_suspect(Suspect::Alone) {
                Ok(chain) => chain.into_iter().for_each(|chain| self.run_alone(context, chain)),
                Err(error) => self.broken(context, &error),
            },
        }
        true
    }

    fn run_alone(&mut self, context: &mut Context<'_>, chain: Chain) {
        if let Some(trial) = &mut self.trial {
            trial.alone = Some(chain.head());
        }
        self.begin(context, chain);
    }

    /// Fails a request that was alone in flight when a process died.
    fn fail_suspect(&mut self, mut chain: Chain) {
        let (what, status) = match self.rules.parse(&mut chain) {
            Parsed::Io { kind, offset, len, status, .. } => {
                (format!("{kind:?} of {len} bytes at {offset}"), Some(status))
            }
            Parsed::Id { status, .. } | Parsed::Refused { status, .. } => {
                ("a request without data".into(), Some(status))
            }
            Parsed::NoStatusByte => ("a request without an answer".into(), None),
        };
        let written = u32::from(status.is_some());
        if let Some(status) = status {
            status.set(S_IOERR);
        }
        self.report_failed_suspect(&what);
        self.queue.push(chain, written);
    }

    fn report_failed_suspect(&self, what: &str) {
        self.stats.error();
        self.stats.failed_suspect();
        let (disk, queue) = (&self.shared.id, self.index);
        tracing::error!(
            disk,
            queue,
            "the process died while this request was alone in flight, so it fails: {what}"
        );
    }
}

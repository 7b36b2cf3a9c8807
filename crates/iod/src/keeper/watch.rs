//! Signals to end, and the service manager's watchdog.

use std::process::ExitCode;
use std::time::Instant;

use super::notify::Due;
use super::worker::Unsaid;
use super::{Keeper, Next};
use crate::link::FromKeeper;

/// Exit code when a second signal ended everything before it was done.
const IMPATIENT: u8 = 130;

impl Keeper {
    /// Asks the worker when the service manager wants to know; one that does not answer is killed
    /// and replaced, before the manager would take that for our own silence.
    pub(super) fn watch(&mut self) {
        let Some(worker) = &mut self.worker else {
            return self.setup.manager.pause(Instant::now());
        };
        if worker.dying.is_some() {
            // It is ended and replaced in a time that is ours to answer for.
            return self.setup.manager.pause(Instant::now());
        }
        if !worker.ready {
            // One that does not get ready is the manager's to judge.
            return self.setup.manager.skip(Instant::now());
        }
        match self.setup.manager.due(Instant::now()) {
            Due::Ask => worker.say(Unsaid::Record(FromKeeper::Ping)),
            Due::Hangs if !self.ending && !worker.ending => {
                tracing::error!(pid = worker.pid(), "killing the worker, it does not answer");
                worker.kill();
            }
            Due::Hangs | Due::Nothing => {}
        }
    }

    pub(super) fn take_signals(&mut self) -> Next {
        let mut bytes = [0; 16];
        let count = rustix::io::read(&self.setup.signals, &mut bytes).unwrap_or(0);
        let again = self.ending || count > 1;
        self.ending = true;
        self.setup.manager.stopping();
        match &mut self.worker {
            Some(worker) if again => {
                worker.kill();
                Next::End(ExitCode::from(IMPATIENT))
            }
            Some(worker) => {
                worker.say(Unsaid::Record(FromKeeper::Stop));
                self.stop_heir();
                Next::Poll
            }
            None => Next::End(ExitCode::FAILURE),
        }
    }
}

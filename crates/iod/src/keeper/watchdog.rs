//! Stop signals, and the service manager's watchdog.

use std::process::ExitCode;
use std::time::Instant;

use super::service_manager::WatchdogAction;
use super::worker::QueuedMessage;
use super::{Keeper, LoopControl};
use crate::keeper_link::KeeperMessage;

/// Exit code after a second signal ended everything early.
const IMPATIENT: u8 = 130;

impl Keeper {
    /// Pings the worker when the watchdog is due. A worker that does not answer is killed and
    /// replaced before the service manager considers the keeper dead.
    pub(super) fn watch(&mut self) {
        let Some(worker) = &mut self.worker else {
            return self.setup.manager.pause(Instant::now());
        };
        if worker.dying.is_some() {
            // The keeper ends and replaces this worker within its own deadlines.
            return self.setup.manager.pause(Instant::now());
        }
        if !worker.ready {
            // The service manager judges a worker that does not get ready.
            return self.setup.manager.skip(Instant::now());
        }
        match self.setup.manager.due(Instant::now()) {
            WatchdogAction::Ask => worker.queue_message(QueuedMessage::Record(KeeperMessage::Ping)),
            WatchdogAction::Hangs if !self.ending && !worker.ending => {
                tracing::error!(pid = worker.pid(), "killing the worker, it does not answer");
                worker.kill();
            }
            WatchdogAction::Hangs | WatchdogAction::Nothing => {}
        }
    }

    pub(super) fn take_signals(&mut self) -> LoopControl {
        let mut bytes = [0; 16];
        let count = rustix::io::read(&self.setup.signals, &mut bytes).unwrap_or(0);
        let again = self.ending || count > 1;
        self.ending = true;
        self.setup.manager.stopping();
        match &mut self.worker {
            Some(worker) if again => {
                worker.kill();
                LoopControl::End(ExitCode::from(IMPATIENT))
            }
            Some(worker) => {
                worker.queue_message(QueuedMessage::Record(KeeperMessage::Stop));
                self.stop_successor();
                LoopControl::Poll
            }
            None => LoopControl::End(ExitCode::FAILURE),
        }
    }
}

//! Messages from the worker.

use super::Keeper;
use super::worker::QueuedMessage;
use crate::inherited_fds::report_ready;
use crate::keeper_link::{KeeperMessage, WorkerMessage};

impl Keeper {
    pub(super) fn handle_messages(&mut self) {
        while let Some(worker) = &mut self.worker {
            let (record, fds) = match worker.receive() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("killing the worker, cannot read its message: {error}");
                    worker.kill();
                    worker.silent = true;
                    break;
                }
            };
            let done = |seq, problem| QueuedMessage::Record(KeeperMessage::Done { seq, problem });
            match record {
                WorkerMessage::Hold { seq, what } => {
                    let fds = fds.map_err(|missing_fds| missing_fds.to_string());
                    let problem = fds.and_then(|fds| self.store.hold(what, fds)).err();
                    if let Some(problem) = &problem {
                        tracing::error!("a record is not preserved: {problem}");
                    }
                    worker.queue_message(done(seq, problem));
                }
                WorkerMessage::Forget { seq, key } => {
                    self.store.forget(&key);
                    worker.queue_message(done(seq, None));
                }
                WorkerMessage::Ready => {
                    self.setup.manager.ready();
                    worker.ready = true;
                    self.served = true;
                    self.confirm_binary();
                    if let Some(ready) = self.setup.ready.take()
                        && let Err(error) = report_ready(&ready)
                    {
                        tracing::warn!("--ready-fd cannot be written: {error}");
                    }
                }
                WorkerMessage::Ending => {
                    worker.ending = true;
                    self.setup.manager.stopping();
                }
                WorkerMessage::Pong => self.setup.manager.well(),
                WorkerMessage::Succeed { seq, binary } => {
                    let fds = fds.map_err(|missing_fds| missing_fds.to_string());
                    let problem = fds.and_then(|fds| self.succeed(binary, fds)).err();
                    self.say(done(seq, problem));
                }
                WorkerMessage::Yield { seq } => {
                    let problem = self.name_successor().err();
                    self.say(done(seq, problem));
                }
                WorkerMessage::Abandon { seq } => self.abandon(seq),
            }
        }
    }
}

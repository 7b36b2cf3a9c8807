//! What the worker says.

use super::Keeper;
use super::worker::Unsaid;
use crate::adopt::tell_ready;
use crate::link::{FromKeeper, FromWorker};

impl Keeper {
    pub(super) fn hear(&mut self) {
        while let Some(worker) = &mut self.worker {
            let (record, fds) = match worker.listen() {
                Ok(Some(heard)) => heard,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("killing the worker, it cannot be understood: {error}");
                    worker.kill();
                    worker.silent = true;
                    break;
                }
            };
            let done = |seq, problem| Unsaid::Record(FromKeeper::Done { seq, problem });
            match record {
                FromWorker::Hold { seq, what } => {
                    let fds = fds.map_err(|lacking| lacking.to_string());
                    let problem = fds.and_then(|fds| self.store.hold(what, fds)).err();
                    if let Some(problem) = &problem {
                        tracing::error!("something is not held: {problem}");
                    }
                    worker.say(done(seq, problem));
                }
                FromWorker::Forget { seq, key } => {
                    self.store.forget(&key);
                    worker.say(done(seq, None));
                }
                FromWorker::Ready => {
                    self.setup.manager.ready();
                    worker.ready = true;
                    self.served = true;
                    self.proven();
                    if let Some(ready) = self.setup.ready.take()
                        && let Err(error) = tell_ready(&ready)
                    {
                        tracing::warn!("--ready-fd cannot be written: {error}");
                    }
                }
                FromWorker::Ending => {
                    worker.ending = true;
                    self.setup.manager.stopping();
                }
                FromWorker::Pong => self.setup.manager.well(),
                FromWorker::Succeed { seq, binary } => {
                    let fds = fds.map_err(|lacking| lacking.to_string());
                    let problem = fds.and_then(|fds| self.succeed(binary, fds)).err();
                    self.say(done(seq, problem));
                }
                FromWorker::Yield { seq } => {
                    let problem = self.name_heir().err();
                    self.say(done(seq, problem));
                }
                FromWorker::Abandon { seq } => self.abandon(seq),
            }
        }
    }
}

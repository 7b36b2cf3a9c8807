//! Handover to a second worker.
//!
//! ```text
//!           Succeed            Yield           Ready
//!  (none) ---------> started -------> named --------> (is the worker; the former one retires)
//!                       |               |
//!                       +-- Abandon, or its end: killed, reaped, and the worker continues
//! ```
//! The successor serves nothing before the worker has sent it `Go`. Between `Yield` and the
//! successor's `Ready`, the keeper cannot know which of the two serves. If one of them ends then,
//! the other one is the worker.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Keeper;
use super::exit_text::words;
use super::unkillable::ADVICE;
use super::worker::{QueuedMessage, Worker};
use crate::keeper_link::{KeeperMessage, WorkerMessage};

/// Longest time until a promoted successor serves. It has everything by then.
const READY_DEADLINE: Duration = Duration::from_secs(10);

/// Worker that is about to take over.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) worker: Worker,
    file: PathBuf,
    /// True if the worker may have sent `Go` to the successor.
    named: bool,
    /// Sequence number of the call that waits for its end.
    abandoned: Option<u64>,
}

/// Returns the path of this program's file, or of the file that has replaced it.
fn own_file() -> io::Result<PathBuf> {
    let path = std::fs::read_link("/proc/self/exe")?;
    // Suffix that the kernel adds if the file was replaced.
    let name = path.to_string_lossy();
    Ok(name.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}

impl Keeper {
    pub(super) fn say(&mut self, what: QueuedMessage) {
        if let Some(worker) = &mut self.worker {
            worker.queue_message(what);
        }
    }

    /// Starts a worker from the file of the last upgrade, if that still works.
    pub(super) fn start_upgraded(&self) -> io::Result<Worker> {
        let (program, options) = (self.setup.program, &self.setup.options);
        if let Some(file) = &self.file {
            match Worker::start(Some(file), program, options) {
                Ok(worker) => return Ok(worker),
                Err(error) => {
                    tracing::error!(
                        "cannot start {}: {error}; starting the keeper's own program",
                        file.display()
                    );
                }
            }
        }
        Worker::start(None, program, options)
    }

    /// Starts the successor.
    pub(super) fn succeed(
        &mut self,
        binary: Option<PathBuf>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        match &self.successor {
            Some(Successor { worker, abandoned: Some(_), .. }) => {
                return Err(format!(
                    "the new worker of the last upgrade (process {}) was killed and has not ended \
                     yet: storage hangs; {ADVICE}",
                    worker.pid()
                ));
            }
            Some(_) => return Err("another upgrade has not ended yet".into()),
            None => {}
        }
        if self.ending {
            return Err("the keeper is shutting down".into());
        }
        let way = fds.into_iter().next().ok_or("the request carries no handover link")?;
        let file = binary.map_or_else(own_file, Ok).map_err(|error| error.to_string())?;
        let started = Worker::start(Some(&file), self.setup.program, &self.setup.options);
        let mut worker = started.map_err(|error| cannot_start(&file, &error))?;
        self.brief(&mut worker);
        worker.queue_message(QueuedMessage::TakeOver(way));
        worker.queue_message(QueuedMessage::Record(KeeperMessage::Begin));
        tracing::info!(pid = worker.pid(), file = %file.display(), "a new worker is started");
        self.successor = Some(Successor { worker, file, named: false, abandoned: None });
        Ok(())
    }

    pub(super) fn name_successor(&mut self) -> Result<(), String> {
        let successor = self.successor.as_mut().filter(|successor| successor.abandoned.is_none());
        successor
            .map(|successor| successor.named = true)
            .ok_or_else(|| "the new worker has ended".into())
    }

    /// Kills the successor. Call `seq` gets its reply when the successor has ended.
    pub(super) fn abandon(&mut self, seq: u64) {
        match &mut self.successor {
            Some(successor) => {
                successor.abandoned = Some(seq);
                successor.worker.kill();
            }
            None => self.say(QueuedMessage::Record(KeeperMessage::Done { seq, problem: None })),
        }
    }

    /// Handles events of the successor and of retired workers. Returns true if the successor is now
    /// the worker.
    pub(super) fn poll_successor(&mut self, (link_ready, ended): (bool, bool)) -> bool {
        let promoted = (link_ready || ended) && self.receive_from_successor();
        if ended && let Some(mut successor) = self.successor.take() {
            // The successor is a child of this process, so its status is known.
            let how = successor.worker.reap().map_or_else(|error| error.to_string(), words);
            tracing::warn!(
                pid = successor.worker.pid(),
                "the new worker {how} before it took over"
            );
            if let Some(seq) = successor.abandoned {
                self.say(QueuedMessage::Record(KeeperMessage::Done { seq, problem: None }));
            }
        }
        if let Some(successor) = &mut self.successor
            && let Err(error) = successor.worker.flush_messages(&self.store)
        {
            tracing::error!(
                "killing the new worker, cannot send it the preserved records: {error}"
            );
            successor.worker.silent = true;
            successor.worker.kill();
        }
        self.reap_abandoned();
        promoted
    }

    fn receive_from_successor(&mut self) -> bool {
        let Some(successor) = &mut self.successor else { return false };
        match successor.worker.receive() {
            Ok(None) => {}
            Ok(Some((WorkerMessage::Ready, _))) if successor.named => {
                successor.worker.ready = true;
                self.promote();
                self.confirm_binary();
                return true;
            }
            Ok(Some((WorkerMessage::Pong, _))) => {}
            Ok(Some(_)) => {
                tracing::error!("killing the new worker, it sent a message before it took over");
                successor.worker.kill();
                successor.worker.silent = true;
            }
            Err(error) => {
                tracing::error!("killing the new worker, cannot read its message: {error}");
                successor.worker.kill();
                successor.worker.silent = true;
            }
        }
        false
    }

    /// Promotes the successor if the worker is silent and may have sent `Go`. No other process
    /// serves then, and the former worker may take long to end. Returns true if the successor is
    /// now the worker.
    pub(super) fn succeeded(&mut self) -> bool {
        let silent = self.worker.as_ref().is_some_and(|worker| worker.silent);
        let named = self.successor.as_ref().is_some_and(|successor| successor.named);
        if silent && named {
            self.promote();
        }
        silent && named
    }

    /// Promotes the successor, which serves or is about to.
    fn promote(&mut self) {
        let Some(Successor { mut worker, file, .. }) = self.successor.take() else { return };
        worker.ready_by = Some(Instant::now() + READY_DEADLINE);
        tracing::info!(pid = worker.pid(), file = %file.display(), "the new worker takes over");
        if self.ending {
            worker.queue_message(QueuedMessage::Record(KeeperMessage::Stop));
        }
        self.unproven = Some(file);
        self.retired.extend(self.worker.replace(worker));
    }

    /// Records that the worker serves, so its program file is valid for restarts.
    pub(super) fn confirm_binary(&mut self) {
        if let Some(file) = self.unproven.take() {
            self.file = Some(file);
        }
    }

    /// Records that the worker ended before it served, so its program file is not used for
    /// restarts.
    pub(super) fn reject_binary(&mut self) {
        let unproven = self.unproven.take();
        if unproven.is_none()
            && let Some(file) = self.file.take()
        {
            tracing::error!(
                "{} does not serve; going back to the keeper's own program",
                file.display()
            );
        }
    }

    /// Returns the successor in place of a dead worker, if it may serve already.
    pub(super) fn promote_successor(&mut self) -> Option<Worker> {
        if !self.successor.as_ref().is_some_and(|successor| successor.named) {
            self.end_successor();
            return None;
        }
        self.promote();
        self.worker.take()
    }

    /// Stops the successor, because everything must end.
    pub(super) fn stop_successor(&mut self) {
        match &mut self.successor {
            Some(successor) if successor.named => {
                successor.worker.queue_message(QueuedMessage::Record(KeeperMessage::Stop))
            }
            Some(successor) => successor.worker.kill(),
            None => {}
        }
    }

    /// Kills the successor without waiting for its end, because it may sleep in hung storage.
    pub(super) fn end_successor(&mut self) {
        if let Some(mut successor) = self.successor.take() {
            successor.worker.kill();
            self.retired.push(successor.worker);
        }
    }
}

fn cannot_start(file: &Path, error: &io::Error) -> String {
    format!("cannot start {}: {error}; check the path and its permissions", file.display())
}

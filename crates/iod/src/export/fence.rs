//! The wait for the I/O of a process that served this disk before and was killed.
//!
//! It may take as long as storage hangs, so a thread sleeps in it that can be left alone: only
//! this disk waits, and detaching it or ending the process ends the wait.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use model::spec::Backend;
use rustix::event::{EventfdFlags, eventfd};
use vhost_user::Woken;

use super::{Export, ExportError, lock};

/// A wait that is longer is worth a line in the log.
const TELL_AFTER: Duration = Duration::from_secs(1);

impl Export {
    /// Since when it has waited for the I/O of a dead process, if it does.
    pub fn fence_since(&self) -> Option<Instant> {
        *lock(&self.board.fence)
    }

    /// Waits until the kernel has ended all I/O of a process before us, or of this disk in a life
    /// that left some behind; until `deadline` if somebody waits for the answer.
    ///
    /// # Errors
    /// Told to give up, not in time, or the storage has no locks.
    pub(super) fn await_predecessor(&self, deadline: Option<Instant>) -> Result<(), ExportError> {
        if !matches!(self.spec.backend, Backend::File(_)) {
            return Ok(());
        }
        let os = |source: std::io::Error| ExportError::Os { action: "wait for the fence", source };
        let over = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| os(error.into()))?;
        let over = Arc::new(over);
        let (disk, tell) = (Arc::clone(&self.disk), Arc::clone(&over));
        let (answer, outcome) = sync_channel(1);
        let work = move || {
            // Nobody may be waiting any more.
            let _ = answer.send(disk.await_predecessor());
            let _ = rustix::io::write(&tell, &1u64.to_ne_bytes());
        };
        std::thread::Builder::new().name("fence".into()).spawn(work).map_err(os)?;
        let since = Instant::now();
        *lock(&self.board.fence) = Some(since);
        let woken = self.wait_over(&over, since, deadline);
        *lock(&self.board.fence) = None;
        match woken.map_err(os)? {
            Woken::Stopped => Err(ExportError::FenceGivenUp { place: self.place() }),
            Woken::TimedOut => Err(ExportError::FenceHeld {
                place: self.place(),
                seconds: since.elapsed().as_secs(),
            }),
            // It is readable when the outcome is there, or when the thread has panicked.
            Woken::Readable => match outcome.recv() {
                Ok(outcome) => Ok(outcome?),
                Err(_) => Err(ExportError::Gone),
            },
        }
    }

    fn wait_over(
        &self,
        over: &OwnedFd,
        since: Instant,
        deadline: Option<Instant>,
    ) -> std::io::Result<Woken> {
        let left = || deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let quietly = left().map_or(TELL_AFTER, |left| left.min(TELL_AFTER));
        let stop = lock(&self.stop).clone();
        let woken = stop.wait(Some(over.as_fd()), Some(quietly))?;
        if woken != Woken::TimedOut || left().is_some_and(|left| left.is_zero()) {
            return Ok(woken);
        }
        let (disk, place) = (&self.spec.id, self.place());
        tracing::warn!(
            disk,
            "waiting for {place}: the kernel has not ended all I/O of a process that served this \
             disk before; its guest waits until then"
        );
        let woken = stop.wait(Some(over.as_fd()), left())?;
        let waited_ms = since.elapsed().as_millis() as u64;
        tracing::info!(disk, waited_ms, "the wait for {place} is over");
        Ok(woken)
    }
}

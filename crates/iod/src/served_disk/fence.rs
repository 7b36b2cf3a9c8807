//! Wait for the I/O of a killed process that served this disk before.
//!
//! The wait may last as long as storage hangs. So a separate thread waits, which can be abandoned.
//! Only this disk waits, and its detach or the end of the process ends the wait.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disk::{Disk, DiskError};
use rustix::event::{EventfdFlags, eventfd};
use vhost_user::Woken;

use super::{ServedDisk, ServedDiskError, lock};

/// Longest wait that is not logged.
const LOG_AFTER: Duration = Duration::from_secs(1);

/// Thread that waits for the fence. A disk has at most one. An activation that stops waiting leaves
/// it running. The next activation joins it, also if it belongs to a later disk object.
#[derive(Debug)]
pub(crate) struct FenceWaiter {
    disk: Arc<dyn Disk>,
    /// Readable when the wait has ended.
    over: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Number of activations that wait for the outcome.
    takers: u32,
    ended: bool,
    outcome: Option<Result<(), DiskError>>,
}

impl FenceWaiter {
    /// Starts the thread for one activation.
    fn start(disk: Arc<dyn Disk>) -> std::io::Result<Arc<Self>> {
        let over = eventfd(0, EventfdFlags::CLOEXEC)?;
        let state = State { takers: 1, ended: false, outcome: None };
        let waiter = Arc::new(Self { disk, over, state: Mutex::new(state) });
        let work = Arc::clone(&waiter);
        std::thread::Builder::new().name("fence".into()).spawn(move || {
            let outcome = work.disk.wait_fence();
            work.end(outcome);
        })?;
        Ok(waiter)
    }

    fn end(&self, outcome: Result<(), DiskError>) {
        let mut state = lock(&self.state);
        state.ended = true;
        if state.takers == 0 {
            return self.release(outcome);
        }
        state.outcome = Some(outcome);
        let _ = rustix::io::write(&self.over, &1u64.to_ne_bytes());
    }

    /// Returns whether the wait has ended.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.state).ended
    }

    /// Adds an activation. Returns false if the wait has ended.
    fn join(&self) -> bool {
        let mut state = lock(&self.state);
        state.takers += u32::from(!state.ended);
        !state.ended
    }

    /// Removes an activation. Returns the outcome if it exists and is `wanted`.
    fn leave(&self, wanted: bool) -> Option<Result<(), DiskError>> {
        let mut state = lock(&self.state);
        state.takers = state.takers.saturating_sub(1);
        if wanted || state.takers > 0 {
            return if wanted { state.outcome.take() } else { None };
        }
        if let Some(outcome) = state.outcome.take() {
            self.release(outcome);
        }
        None
    }

    /// Returns whether the thread waits with the open file of this disk, which then owns the fence.
    fn is_of(&self, disk: &Arc<dyn Disk>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.disk), Arc::as_ptr(disk))
    }

    /// Releases a fence that no activation wants any more. The disk cannot be active, so nothing
    /// else is released with it. An activation that joins meanwhile waits until this ends.
    fn release(&self, outcome: Result<(), DiskError>) {
        let released = outcome.and_then(|()| self.disk.deactivate());
        if let Err(error) = released {
            tracing::warn!(
                "a cancelled activation ended with an error: {}",
                crate::error::error_chain(&error)
            );
        }
    }
}

fn os(source: std::io::Error) -> ServedDiskError {
    ServedDiskError::Os { action: "wait for the fence", source }
}

impl ServedDisk {
    /// Returns since when the disk has waited for the I/O of a dead process, if it does.
    pub fn fence_since(&self) -> Option<Instant> {
        *lock(&self.disk_status.fence)
    }

    /// Waits until the kernel has ended all earlier I/O: of a former process, or abandoned I/O of
    /// this disk. Waits until `deadline`, if a caller waits for the reply.
    ///
    /// # Errors
    /// The wait was cancelled or missed its deadline, or the storage has no locks.
    pub(super) fn await_predecessor(
        &self,
        deadline: Option<Instant>,
    ) -> Result<(), ServedDiskError> {
        if self.tree().files.is_empty() {
            return Ok(());
        }
        let since = Instant::now();
        loop {
            let waiter = self.join_waiter().map_err(os)?;
            *lock(&self.disk_status.fence) = Some(since);
            let woken = self.wait_over(&waiter.over, since, deadline);
            *lock(&self.disk_status.fence) = None;
            if let Some(outcome) = self.waited(&waiter, woken, since)? {
                return Ok(outcome?);
            }
        }
    }

    /// Evaluates a wait. Returns `None` if the wait was that of a former disk object, and the fence
    /// is free now.
    fn waited(
        &self,
        waiter: &FenceWaiter,
        woken: std::io::Result<Woken>,
        since: Instant,
    ) -> Result<Option<Result<(), DiskError>>, ServedDiskError> {
        let wanted = matches!(woken, Ok(Woken::TimedOut | Woken::Readable));
        // The outcome may have arrived together with the deadline.
        let outcome = waiter.leave(wanted);
        if outcome.is_some() {
            // Close the waiter's descriptor with it.
            *lock(&self.waiter) = None;
        }
        match (woken.map_err(os)?, outcome) {
            (_, Some(outcome)) if waiter.is_of(&self.disk) => Ok(Some(outcome)),
            (_, Some(outcome)) => {
                waiter.release(outcome);
                Ok(None)
            }
            (Woken::Stopped, None) => {
                Err(ServedDiskError::FenceGivenUp { place: self.backend_text() })
            }
            (Woken::TimedOut, None) => Err(ServedDiskError::FenceHeld {
                place: self.backend_text(),
                seconds: since.elapsed().as_secs(),
            }),
            // Another activation has taken the outcome.
            (Woken::Readable, None) => Err(ServedDiskError::Gone),
        }
    }

    /// Returns the waiting thread, if there is one.
    pub(crate) fn waiter(&self) -> Option<Arc<FenceWaiter>> {
        lock(&self.waiter).clone()
    }

    /// Makes the next activation join a wait that a former disk object has left behind for the same
    /// fence.
    pub(crate) fn adopt_fence_wait(&self, waiter: Arc<FenceWaiter>) {
        *lock(&self.waiter) = Some(waiter);
    }

    /// Joins the thread that waits already, or starts one.
    fn join_waiter(&self) -> std::io::Result<Arc<FenceWaiter>> {
        let mut slot = lock(&self.waiter);
        if let Some(waiter) = slot.as_ref().filter(|waiter| waiter.join()) {
            return Ok(Arc::clone(waiter));
        }
        let waiter = FenceWaiter::start(Arc::clone(&self.disk))?;
        *slot = Some(Arc::clone(&waiter));
        Ok(waiter)
    }

    fn wait_over(
        &self,
        over: &OwnedFd,
        since: Instant,
        deadline: Option<Instant>,
    ) -> std::io::Result<Woken> {
        let left = || deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let quietly = left().map_or(LOG_AFTER, |left| left.min(LOG_AFTER));
        let stop = lock(&self.stop).clone();
        let woken = stop.wait(Some(over.as_fd()), Some(quietly))?;
        if woken != Woken::TimedOut || left().is_some_and(|left| left.is_zero()) {
            return Ok(woken);
        }
        let (disk, place) = (&self.spec.id, self.backend_text());
        tracing::warn!(
            disk,
            "waiting for {place}: the kernel has not ended all I/O of a process that served this \
             disk before; guest I/O is blocked until then"
        );
        let woken = stop.wait(Some(over.as_fd()), left())?;
        let waited_ms = since.elapsed().as_millis() as u64;
        tracing::info!(disk, waited_ms, "the wait for {place} is over");
        Ok(woken)
    }
}

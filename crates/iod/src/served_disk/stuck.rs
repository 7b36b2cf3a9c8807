//! A disk whose storage does not answer.
//!
//! ```text
//!              deadline of a stop                kernel is done
//!   working ----------------------> stuck ---------------------> working
//! ```
//! A stop waits at most [`model::spec::DiskSpec::stop_deadline_ms`]. Past it what the kernel has not
//! ended is left with it: memory, image and lock stay until the kernel lets go. One thread waits
//! for that and then cleans up. Until then the disk serves nothing, because what is left behind
//! could land after what a successor writes.
//!
//! A front-end whose in-flight region records what was left gets its answer then, and stays: the
//! region is as it was, so the ring goes on from it when it is served again, in this session or in
//! another. One that keeps no record is sent away without an answer, which would say that nothing
//! is in flight; so is one that is changing what its records are about.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::DiskError;
use model::spec::{Backend, DiskSpec};

use super::queues::AbandonedQueues;
use super::{ServedDisk, ServedDiskError, lock};
use crate::deadline::{OverdueWork, run_with_deadline};

/// What a stuck disk says of itself.
#[derive(Clone, Debug)]
pub struct StuckStorage {
    /// When the deadline passed.
    pub since: Instant,
    /// Requests that were left with the kernel then.
    pub requests: u64,
    /// What waited for them.
    pub verb: &'static str,
}

/// What is left with the storage, and what is to be done when that is over.
#[derive(Debug, Default)]
pub(super) struct AbandonedIo {
    /// Waits that are under way.
    waits: u64,
    /// The lock is to be released then.
    release: bool,
}

/// A verb that waited for storage until its deadline.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{verb}: the storage of {place} has not ended {what} within {deadline_ms} ms; the queues are \
     given up, and a front-end without a record of its requests is sent away. What was left \
     stays with the kernel, and the lock of the image with it, until the storage answers or the \
     host restarts: mend the storage, the rest happens by itself; `stats` shows when"
)]
pub struct StuckError {
    verb: &'static str,
    place: String,
    what: String,
    deadline_ms: u64,
}

impl ServedDisk {
    /// When a stop that begins now stops waiting.
    pub(super) fn deadline(&self) -> Instant {
        let mine = Instant::now() + Duration::from_millis(self.spec.stop_deadline_ms);
        lock(&self.ending).map_or(mine, |(ends_by, _)| ends_by.min(mine))
    }

    /// The verb that ends the disk, if one does.
    pub(super) fn ending_verb(&self) -> Option<&'static str> {
        lock(&self.ending).map(|(_, verb)| verb)
    }

    /// Storage has not ended what it was given when somebody waited for it.
    pub fn stuck(&self) -> Option<StuckStorage> {
        lock(&self.disk_status.stuck).clone()
    }

    /// Where the bytes are, for people.
    pub fn backend_text(&self) -> String {
        backend_text(&self.spec)
    }

    pub(super) fn stuck_error(&self, verb: &'static str, what: String) -> ServedDiskError {
        let (place, deadline_ms) = (self.backend_text(), self.spec.stop_deadline_ms);
        ServedDiskError::Stuck(StuckError { verb, place, what, deadline_ms })
    }

    /// Refuses a verb that cannot be done while the disk is stuck.
    pub(crate) fn refuse_stuck(&self, verb: &'static str) -> Result<(), ServedDiskError> {
        match self.stuck() {
            None => Ok(()),
            Some(stuck) => Err(ServedDiskError::StillStuck {
                verb,
                place: self.backend_text(),
                requests: stuck.requests,
                seconds: stuck.since.elapsed().as_secs(),
            }),
        }
    }

    /// Takes note of queues that storage did not let go, sends away a front-end that has no record
    /// of what they had, and cleans up when the kernel is done. True when there are any, now or
    /// from before.
    pub(super) fn abandon_queues(
        self: &Arc<Self>,
        left: AbandonedQueues,
        verb: &'static str,
    ) -> bool {
        if left.is_empty() {
            return self.stuck().is_some();
        }
        let requests = left.requests();
        self.mark_stuck(verb, requests);
        if left.unrecorded()
            && let Some(session) = &lock(&self.front_end).session
        {
            session.close();
        }
        self.clean_up_after(move || left.wait());
        true
    }

    pub(super) fn mark_stuck(&self, verb: &'static str, requests: u64) {
        let mut slot = lock(&self.disk_status.stuck);
        let stuck = slot.get_or_insert(StuckStorage { since: Instant::now(), requests: 0, verb });
        stuck.requests += requests;
        let (disk, place) = (&self.spec.id, self.backend_text());
        tracing::error!(disk, requests, verb, "storage hangs: {place}; the disk is stuck");
    }

    /// Waits on a thread of its own until the kernel is done, then goes on where the disk was.
    pub(super) fn clean_up_after(self: &Arc<Self>, wait: impl FnOnce() + Send + 'static) {
        let served_disk = Arc::clone(self);
        lock(&self.abandoned_io).waits += 1;
        let work = move || {
            wait();
            served_disk.storage_is_back();
        };
        if let Err(error) = std::thread::Builder::new().name("stuck".into()).spawn(work) {
            // Then it stays stuck until it is detached, which is safe.
            tracing::error!(disk = self.spec.id, "nobody waits for the storage: {error}");
        }
    }

    fn storage_is_back(self: &Arc<Self>) {
        loop {
            let mut abandoned_io = lock(&self.abandoned_io);
            if abandoned_io.waits > 1 || !abandoned_io.release {
                abandoned_io.waits -= 1;
                if abandoned_io.waits > 0 {
                    return;
                }
                break;
            }
            // Still one wait, so that whoever asks for a release now is heard.
            abandoned_io.release = false;
            drop(abandoned_io);
            if let Err(error) = self.disk.deactivate() {
                let cause = crate::error::error_chain(&error);
                tracing::error!(disk = self.spec.id, "released after it was stuck: {cause}");
            }
        }
        // A change of size may have come late.
        self.device.resized();
        let mut queues = self.queues.lock();
        *lock(&self.disk_status.stuck) = None;
        queues.clear_stuck();
        tracing::info!(disk = self.spec.id, "storage answers again: {}", self.backend_text());
    }

    /// Has the lock released when the storage has ended what is left with it; false: nothing is.
    pub(super) fn release_late(&self) -> bool {
        let mut abandoned_io = lock(&self.abandoned_io);
        abandoned_io.release |= abandoned_io.waits > 0;
        abandoned_io.waits > 0
    }

    /// Flushes and releases the lock until `deadline`; or has that done when the storage answers.
    pub(super) fn release(
        self: &Arc<Self>,
        deadline: Instant,
        verb: &'static str,
    ) -> Result<(), ServedDiskError> {
        // Not before what is left has ended: it still writes.
        if self.release_late() {
            let requests = self.stuck().map_or(0, |stuck| stuck.requests);
            return Err(self.stuck_error(verb, format!("{requests} requests")));
        }
        let disk = Arc::clone(&self.disk);
        self.run_with_stop_deadline(deadline, verb, "a flush", move || disk.deactivate())
    }

    /// Work on the storage that may hang; past the deadline it goes on without us, and the disk is
    /// stuck until it ends.
    pub(super) fn run_with_stop_deadline<R: Send + 'static>(
        self: &Arc<Self>,
        deadline: Instant,
        verb: &'static str,
        what: &str,
        work: impl FnOnce() -> Result<R, DiskError> + Send + 'static,
    ) -> Result<R, ServedDiskError> {
        match run_with_deadline(deadline, work) {
            Ok(outcome) => Ok(outcome?),
            Err(overdue_work) => {
                self.queues.lock().mark_stuck();
                self.mark_stuck(verb, 0);
                self.clean_up_after(move || log_late(overdue_work, verb));
                Err(self.stuck_error(verb, what.into()))
            }
        }
    }
}

/// Where the bytes of a disk are, for people.
pub(super) fn backend_text(spec: &DiskSpec) -> String {
    match &spec.backend {
        Backend::File(path) => path.display().to_string(),
        Backend::Null(_) | Backend::Memory(_) => "the disk".into(),
    }
}

fn log_late<R>(overdue_work: OverdueWork<Result<R, DiskError>>, verb: &'static str) {
    if let Some(Err(error)) = overdue_work.wait() {
        tracing::error!("{verb}, long after its deadline: {}", crate::error::error_chain(&error));
    }
}

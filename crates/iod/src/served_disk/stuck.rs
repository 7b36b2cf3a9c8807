//! Disk whose storage does not answer.
//!
//! ```text
//!              deadline of a stop                kernel is done
//!   working ----------------------> stuck ---------------------> working
//! ```
//! A stop waits at most [`model::spec::DiskSpec::stop_deadline_ms`]. After that, I/O in flight is
//! abandoned to the kernel. Memory, image and lock stay until the kernel has ended the I/O. One
//! thread waits for that and then cleans up. Until then the disk serves nothing, because abandoned
//! I/O could land after a successor's writes.
//!
//! A front-end whose in-flight region records the abandoned requests gets its reply and stays. The
//! region is unchanged, so the ring continues from it when it is served again, in this or another
//! session. A front-end without a region is disconnected without a reply, because a reply would
//! mean that nothing is in flight. The same applies to a front-end that is changing the memory or
//! region to which its requests refer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::DiskError;

use super::queues::AbandonedQueues;
use super::{ServedDisk, ServedDiskError, lock};
use crate::deadline::{OverdueWork, run_with_deadline};

/// State of a stuck disk.
#[derive(Clone, Debug)]
pub struct StuckStorage {
    /// Time when the deadline passed.
    pub since: Instant,
    /// Number of requests that were abandoned to the kernel then.
    pub requests: u64,
    /// Verb that waited for them.
    pub verb: &'static str,
}

/// Abandoned I/O, and the actions after its end.
#[derive(Debug, Default)]
pub(super) struct AbandonedIo {
    /// Number of running waits.
    waits: u64,
    /// True if the lock must be released at the end.
    release: bool,
}

/// Error: a verb waited for storage until its deadline.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{verb}: the storage of {place} has not ended {what} within {deadline_ms} ms; the queues are \
     abandoned, and a front-end without a record of its requests is disconnected. The kernel \
     keeps the abandoned I/O and the lock of the image until the storage answers or the host \
     restarts: mend the storage, the rest happens by itself; `stats` shows when"
)]
pub struct StuckError {
    verb: &'static str,
    place: String,
    what: String,
    deadline_ms: u64,
}

impl ServedDisk {
    /// Returns the deadline of a stop that begins now.
    pub(super) fn deadline(&self) -> Instant {
        let mine = Instant::now() + Duration::from_millis(self.spec.stop_deadline_ms);
        lock(&self.ending).map_or(mine, |(ends_by, _)| ends_by.min(mine))
    }

    /// Returns the verb that ends the disk, if one does.
    pub(super) fn ending_verb(&self) -> Option<&'static str> {
        lock(&self.ending).map(|(_, verb)| verb)
    }

    /// Returns the state of abandoned I/O, if storage missed the deadline of a stop.
    pub fn stuck(&self) -> Option<StuckStorage> {
        lock(&self.disk_status.stuck).clone()
    }

    /// Describes the location of the bytes in messages.
    pub fn backend_text(&self) -> String {
        self.tree().backend.place()
    }

    pub(super) fn stuck_error(&self, verb: &'static str, what: String) -> ServedDiskError {
        let (place, deadline_ms) = (self.backend_text(), self.spec.stop_deadline_ms);
        ServedDiskError::Stuck(StuckError { verb, place, what, deadline_ms })
    }

    /// Refuses a verb that is not possible while the disk is stuck.
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

    /// Records queues that were abandoned to storage. Disconnects a front-end without a record of
    /// their requests, and cleans up when the kernel is done. Returns whether there are abandoned
    /// queues, now or from before.
    pub(super) fn abandon_queues(
        self: &Arc<Self>,
        abandoned: AbandonedQueues,
        verb: &'static str,
    ) -> bool {
        if abandoned.is_empty() {
            return self.stuck().is_some();
        }
        let requests = abandoned.requests();
        self.mark_stuck(verb, requests);
        if abandoned.unrecorded()
            && let Some(session) = &lock(&self.front_end).session
        {
            session.close();
        }
        self.clean_up_after(move || abandoned.wait());
        true
    }

    pub(super) fn mark_stuck(&self, verb: &'static str, requests: u64) {
        let mut slot = lock(&self.disk_status.stuck);
        let stuck = slot.get_or_insert(StuckStorage { since: Instant::now(), requests: 0, verb });
        stuck.requests += requests;
        let (disk, place) = (&self.spec.id, self.backend_text());
        tracing::error!(disk, requests, verb, "storage hangs: {place}; the disk is stuck");
    }

    /// Waits on a separate thread until the kernel is done, then returns the disk to its former
    /// state.
    pub(super) fn clean_up_after(self: &Arc<Self>, wait: impl FnOnce() + Send + 'static) {
        let served_disk = Arc::clone(self);
        lock(&self.abandoned_io).waits += 1;
        let work = move || {
            wait();
            served_disk.storage_is_back();
        };
        if let Err(error) = std::thread::Builder::new().name("stuck".into()).spawn(work) {
            // The disk stays stuck until it is detached, which is safe.
            tracing::error!(
                disk = self.spec.id,
                "cannot wait for the storage, the disk stays stuck: {error}"
            );
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
            // Count this wait until the end, so that a new release request is noticed.
            abandoned_io.release = false;
            drop(abandoned_io);
            if let Err(error) = self.disk.deactivate() {
                let cause = crate::error::error_chain(&error);
                tracing::error!(
                    disk = self.spec.id,
                    "the stuck disk was released with an error: {cause}"
                );
            }
        }
        // A change of size may have completed late.
        self.device.resized();
        self.open_exports();
        let mut queues = self.queues.lock();
        *lock(&self.disk_status.stuck) = None;
        queues.clear_stuck();
        tracing::info!(disk = self.spec.id, "storage answers again: {}", self.backend_text());
    }

    /// Requests the release of the lock after abandoned I/O has ended. Returns false if there is
    /// none.
    pub(super) fn release_late(&self) -> bool {
        let mut abandoned_io = lock(&self.abandoned_io);
        abandoned_io.release |= abandoned_io.waits > 0;
        abandoned_io.waits > 0
    }

    /// Flushes and releases the lock until `deadline`. If storage is late, both happen when it
    /// answers.
    pub(super) fn release(
        self: &Arc<Self>,
        deadline: Instant,
        verb: &'static str,
    ) -> Result<(), ServedDiskError> {
        // Abandoned I/O still writes, so keep the lock until it has ended.
        if self.release_late() {
            let requests = self.stuck().map_or(0, |stuck| stuck.requests);
            return Err(self.stuck_error(verb, format!("{requests} requests")));
        }
        let disk = Arc::clone(&self.disk);
        self.run_with_stop_deadline(deadline, verb, "a flush", move || disk.deactivate())
    }

    /// Runs work on storage that may hang. After the deadline it continues in the background, and
    /// the disk is stuck until it ends.
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
                Err(self.stuck_with(overdue_work, verb, what))
            }
        }
    }

    /// Marks the disk as stuck until late work ends, after its queues were marked.
    pub(super) fn stuck_with<R: Send + 'static>(
        self: &Arc<Self>,
        overdue_work: OverdueWork<Result<R, DiskError>>,
        verb: &'static str,
        what: &str,
    ) -> ServedDiskError {
        self.mark_stuck(verb, 0);
        self.clean_up_after(move || log_late(overdue_work, verb));
        self.stuck_error(verb, what.into())
    }
}

fn log_late<R>(overdue_work: OverdueWork<Result<R, DiskError>>, verb: &'static str) {
    if let Some(Err(error)) = overdue_work.wait() {
        tracing::error!("{verb} failed after its deadline: {}", crate::error::error_chain(&error));
    }
}

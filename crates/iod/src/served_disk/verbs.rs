//! Verbs on a disk: activate, pause, resume, deactivate, resize, detach.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{ServedDisk, ServedDiskError, lock};
use crate::deadline::run_with_deadline;

/// Verb and work in messages of a resize.
const RESIZE: &str = "disk.resize";
const RESIZE_WORK: &str = "a change of size";

impl ServedDisk {
    /// Locks the image and serves the rings that the front-end has started. Repeated calls have no
    /// effect.
    ///
    /// # Errors
    /// Another program uses the image, or its storage does not answer.
    pub fn activate(self: &Arc<Self>) -> Result<(), ServedDiskError> {
        self.activate_until(None)
    }

    /// Activates the disk like [`Self::activate`], but waits for storage only until the disk's
    /// deadline.
    ///
    /// # Errors
    /// As [`Self::activate`], or I/O of a former process has not ended in time.
    pub fn activate_in_time(self: &Arc<Self>) -> Result<(), ServedDiskError> {
        self.activate_until(Some(self.deadline()))
    }

    fn activate_until(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), ServedDiskError> {
        self.refuse_stuck("disk.activate")?;
        self.refuse_writable()?;
        self.take_lock("disk.activate", deadline)?;
        let mut queues = self.queues.lock();
        self.disk_status.active.store(true, Ordering::Release);
        if !self.is_paused() {
            queues.serve();
        }
        Ok(())
    }

    /// Waits for the I/O of a dead process, until `deadline` if there is one. Then locks the image.
    pub(super) fn take_lock(
        self: &Arc<Self>,
        verb: &'static str,
        deadline: Option<Instant>,
    ) -> Result<(), ServedDiskError> {
        self.await_predecessor(deadline)?;
        let disk = Arc::clone(&self.disk);
        let taken =
            self.run_with_stop_deadline(self.deadline(), verb, "the lock request", move || {
                disk.activate()
            });
        if let Err(error) = taken {
            // The lock may be taken later, when it is no longer wanted, or may have been taken just
            // now.
            if matches!(error, ServedDiskError::Stuck(_)) && !self.release_late() {
                self.release(self.deadline(), verb)?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Drains the rings and pauses the disk. The lock is kept, and the front-end stays connected.
    /// Nothing is served before [`Self::resume`], even if the front-end restarts rings. Repeated
    /// calls have no effect. The disk must be active.
    ///
    /// # Errors
    /// Storage did not complete I/O in flight. The disk is not served all the same, but abandoned
    /// I/O may still be written.
    pub fn pause(self: &Arc<Self>) -> Result<(), ServedDiskError> {
        self.refuse_stuck("disk.pause")?;
        let mut queues = self.queues.lock();
        self.disk_status.paused.store(true, Ordering::Release);
        let left = queues.drain_all(self.deadline());
        drop(queues);
        let requests = left.requests();
        if self.abandon_queues(left, "disk.pause") {
            return Err(self.stuck_error("disk.pause", format!("{requests} requests")));
        }
        tracing::info!(disk = self.spec.id, "paused");
        Ok(())
    }

    /// Ends a pause and serves the rings that the front-end has started. Repeated calls have no
    /// effect.
    ///
    /// # Errors
    /// Storage has not completed the I/O that was in flight before the pause.
    pub fn resume(&self) -> Result<(), ServedDiskError> {
        self.refuse_stuck("disk.resume")?;
        let mut queues = self.queues.lock();
        self.disk_status.paused.store(false, Ordering::Release);
        if self.is_active() {
            queues.serve();
        }
        tracing::info!(disk = self.spec.id, "resumed");
        Ok(())
    }

    /// Drains all rings, flushes and releases the lock. The front-end stays connected and waits. A
    /// pause ends with it.
    ///
    /// # Errors
    /// The flush failed; the lock is released all the same. Or storage did not answer in time; then
    /// the lock is released when it does.
    pub fn deactivate(self: &Arc<Self>) -> Result<(), ServedDiskError> {
        let verb = self.ending_verb().unwrap_or("disk.deactivate");
        let deadline = self.deadline();
        let mut queues = self.queues.lock();
        let left = queues.drain_all(deadline);
        self.disk_status.active.store(false, Ordering::Release);
        self.disk_status.paused.store(false, Ordering::Release);
        drop(queues);
        self.abandon_queues(left, verb);
        self.release(deadline, verb)
    }

    /// Grows the disk to `size` bytes, or uses the present size of its storage, and notifies the
    /// front-end.
    ///
    /// # Errors
    /// The size is not possible, or storage does not answer.
    pub fn resize(self: &Arc<Self>, size: Option<u64>) -> Result<(), ServedDiskError> {
        self.refuse_stuck(RESIZE)?;
        let changes = size.is_some_and(|size| size != self.geometry().size);
        let geometry = if changes && self.disk.drains_to_resize() {
            self.resize_drained(size)?
        } else {
            let (disk, deadline) = (Arc::clone(&self.disk), self.deadline());
            let work = move || disk.resize(size);
            self.run_with_stop_deadline(deadline, RESIZE, RESIZE_WORK, work)?
        };
        self.device.resized();
        tracing::info!(disk = self.spec.id, bytes = geometry.size, "resized");
        let channel = lock(&self.front_end).channel.clone();
        if let Some(Err(error)) = channel.map(|channel| channel.config_changed()) {
            // The front-end has gone, or will read the size when it reconnects.
            tracing::debug!(disk = self.spec.id, "front-end not notified of the new size: {error}");
        }
        Ok(())
    }

    /// Changes the size while no ring is served and no client is accepted. Clients of exports connect
    /// again. While the disk is stuck, exports stay shut.
    fn resize_drained(
        self: &Arc<Self>,
        size: Option<u64>,
    ) -> Result<disk::Geometry, ServedDiskError> {
        let shut = self.shut_exports();
        let shut = shut.map_err(|source| ServedDiskError::Os { action: "pause exports", source });
        let resized = shut.and_then(|()| self.resize_shut(size));
        if self.stuck().is_none() {
            self.open_exports();
        }
        resized
    }

    fn resize_shut(self: &Arc<Self>, size: Option<u64>) -> Result<disk::Geometry, ServedDiskError> {
        let deadline = self.deadline();
        let not_drained = || ServedDiskError::NotDrained { place: self.backend_text() };
        let mut queues = self.queues.lock_until(deadline).ok_or_else(not_drained)?;
        if !queues.quiesce(deadline) {
            return Err(not_drained());
        }
        self.disconnect_clients();
        let disk = Arc::clone(&self.disk);
        match run_with_deadline(deadline, move || disk.resize(size)) {
            Ok(resized) => {
                self.device.resized();
                self.serve_again(&mut queues);
                Ok(resized?)
            }
            Err(overdue_work) => {
                queues.mark_stuck();
                drop(queues);
                Err(self.stuck_with(overdue_work, RESIZE, RESIZE_WORK))
            }
        }
    }

    /// Disconnects the front-end and accepts no other. Does not wait.
    pub fn disconnect_front_end(&self) {
        let ends_by = self.deadline();
        lock(&self.ending).get_or_insert((ends_by, "disk.detach"));
        lock(&self.stop).stop();
        if let Some(session) = &lock(&self.front_end).session {
            session.close();
        }
        self.hang_up_exports();
    }

    /// Disconnects the front-end and all clients, closes the sockets, drains, flushes, and releases
    /// the lock.
    ///
    /// # Errors
    /// The flush failed, or storage does not answer. Everything is closed all the same.
    pub fn detach(self: &Arc<Self>) -> Result<(), ServedDiskError> {
        self.disconnect_front_end();
        // The failure of the thread was reported to its waiter, or logged.
        let _ = self.join_session_thread();
        *lock(&self.listener) = None;
        // A writable export had the lock, so no guest has unflushed writes here.
        self.end_exports()?;
        if self.is_active() { self.deactivate() } else { self.refuse_stuck("disk.detach") }
    }
}

//! What callers may do to a disk: activate, pause, resume, deactivate, resize, detach.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{ServedDisk, ServedDiskError, lock};

impl ServedDisk {
    /// Takes the lock and serves what the front-end has started. Twice is once.
    ///
    /// # Errors
    /// Somebody else uses the image, or its storage does not answer.
    pub fn activate(self: &Arc<Self>) -> Result<(), ServedDiskError> {
        self.activate_until(None)
    }

    /// The same for somebody who waits for the answer: for storage only until the disk's deadline.
    ///
    /// # Errors
    /// As [`Self::activate`], or I/O from before that has not ended in time.
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

    /// Waits for what a dead process still writes, until `deadline` if there is one, then takes
    /// the lock.
    pub(super) fn take_lock(
        self: &Arc<Self>,
        verb: &'static str,
        deadline: Option<Instant>,
    ) -> Result<(), ServedDiskError> {
        self.await_predecessor(deadline)?;
        let disk = Arc::clone(&self.disk);
        let taken =
            self.run_with_stop_deadline(self.deadline(), verb, "to take the lock", move || {
                disk.activate()
            });
        if let Err(error) = taken {
            // It may have it later, when nobody wants it any more; or since just now.
            if matches!(error, ServedDiskError::Stuck(_)) && !self.release_late() {
                self.release(self.deadline(), verb)?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Takes no more requests, waits for those in flight, and holds: the lock is kept, the
    /// front-end stays connected, and whatever it does, nothing is served before
    /// [`Self::resume`]. Twice is once. The disk must be active.
    ///
    /// # Errors
    /// Storage did not end what is in flight. Nothing is served all the same, but what was left
    /// may still be written.
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

    /// Ends a pause: serves what the front-end has started. Twice is once.
    ///
    /// # Errors
    /// Storage has not ended yet what was in flight before the pause.
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

    /// Drains all rings, makes everything durable and releases the lock. The front-end stays
    /// connected and waits. A pause is over then.
    ///
    /// # Errors
    /// The flush failed; the lock is released all the same. Or storage did not answer in time;
    /// then the lock is released when it does.
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

    /// Grows the disk to `size` bytes, or takes the size that its storage has now, and tells the
    /// front-end.
    ///
    /// # Errors
    /// A size that the disk cannot have, or storage that does not answer.
    pub fn resize(self: &Arc<Self>, size: Option<u64>) -> Result<(), ServedDiskError> {
        self.refuse_stuck("disk.resize")?;
        let disk = Arc::clone(&self.disk);
        let work = move || disk.resize(size);
        let geometry =
            self.run_with_stop_deadline(self.deadline(), "disk.resize", "a change of size", work)?;
        self.device.resized();
        tracing::info!(disk = self.spec.id, bytes = geometry.size, "resized");
        let channel = lock(&self.front_end).channel.clone();
        if let Some(Err(error)) = channel.map(|channel| channel.config_changed()) {
            // It has gone, or will look when it comes back.
            tracing::debug!(disk = self.spec.id, "front-end not told of the new size: {error}");
        }
        Ok(())
    }

    /// Sends the front-end away and takes no other. Does not wait.
    pub fn disconnect_front_end(&self) {
        let ends_by = self.deadline();
        lock(&self.ending).get_or_insert((ends_by, "disk.detach"));
        lock(&self.stop).stop();
        if let Some(session) = &lock(&self.front_end).session {
            session.close();
        }
        self.hang_up_exports();
    }

    /// Sends the front-end and all clients away, closes the sockets, drains, flushes, and releases
    /// the lock.
    ///
    /// # Errors
    /// The flush failed, or storage does not answer; everything is closed all the same.
    pub fn detach(self: &Arc<Self>) -> Result<(), ServedDiskError> {
        self.disconnect_front_end();
        // Its failure has been told to whoever waited for it, or logged.
        let _ = self.join_session_thread();
        *lock(&self.listener) = None;
        // What wrote had the lock, so no guest has written anything that was left out.
        self.end_exports()?;
        if self.is_active() { self.deactivate() } else { self.refuse_stuck("disk.detach") }
    }
}

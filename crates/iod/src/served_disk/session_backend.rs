//! The `vhost_user::Backend` of a disk.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use memory::{MemoryShare, Table};
use vhost_user::{Backend, BackendChannel, BackendError, SessionHandle, StopCause};
use virtq::QueueStart;

use super::queues::{AbandonedQueues, StoppedRing};
use super::{DriverStartTimes, ServedDisk, lock};

/// Warning about a front-end without an in-flight region.
const UNRECORDED: &str = "the front-end keeps no record of requests in flight: if this process \
    crashes, they are lost, and the guest must be restarted";

/// Backend of one session of a disk.
pub(super) struct DiskSessionBackend<'a> {
    pub(super) served_disk: &'a Arc<ServedDisk>,
    pub(super) session: SessionHandle,
    /// True until its first ring has been started.
    pub(super) first: bool,
}

impl DiskSessionBackend<'_> {
    /// Records the number of rings that the front-end has started.
    pub(super) fn count(&self, queues: usize) {
        let count = u16::try_from(queues).unwrap_or(u16::MAX);
        self.served_disk.disk_status.queues_started.store(count, Ordering::Release);
    }

    /// Records that a driver has begun to use the disk.
    fn driver_began(&self) {
        let now = Instant::now();
        let mut starts = lock(&self.served_disk.disk_status.driver_starts);
        let first = DriverStartTimes { count: 0, first: now, last: now };
        let before = starts.unwrap_or(first);
        *starts = Some(DriverStartTimes { count: before.count + 1, last: now, ..before });
    }

    /// Forgets which rings are broken, because their driver is gone. The session does
    /// not stop a ring that was broken before an upgrade, or that did not start.
    fn clear_broken_rings(&self) {
        let device = &self.served_disk.device;
        (0..device.queues()).for_each(|index| device.clear_broken_ring(index));
    }
}

impl Backend for DiskSessionBackend<'_> {
    fn queue_count(&self) -> u16 {
        self.served_disk.device.queues()
    }

    fn features(&self) -> u64 {
        self.served_disk.device.features()
    }

    fn memory_share(&self) -> Option<&MemoryShare> {
        Some(&self.served_disk.memory_share)
    }

    fn withheld_features(&self) -> u64 {
        0
    }

    fn ack_features(&mut self, features: u64) -> Result<(), BackendError> {
        self.served_disk.disk_status.features.store(features, Ordering::Release);
        Ok(())
    }

    fn read_config(&self, offset: u32, out: &mut [u8]) {
        self.served_disk.device.read_config(offset, out);
    }

    fn write_config(&mut self, _: u32, _: &[u8]) -> Result<(), BackendError> {
        Err("the configuration of this disk is read-only".into())
    }

    fn start_queue(&mut self, start: QueueStart) -> Result<(), BackendError> {
        if std::mem::take(&mut self.first) && start.inflight.is_none() {
            tracing::info!(disk = self.served_disk.spec.id, "{UNRECORDED}");
        }
        let mut queues = self.served_disk.queues.lock();
        let is_begin = queues.len() == 0;
        queues.start(start, self.session.clone())?;
        self.count(queues.len());
        if is_begin {
            self.driver_began();
        }
        Ok(())
    }

    fn stop_queue(&mut self, index: u16, cause: StopCause) -> u16 {
        let (verb, deadline) = (self.served_disk.ending_verb(), self.served_disk.deadline());
        let mut queues = self.served_disk.queues.lock();
        let mut left = AbandonedQueues::default();
        if verb.is_some() {
            // All rings end, so drain them in parallel.
            left.join(queues.drain_all(deadline));
        }
        let StoppedRing { next, owed, left: ring_left } = queues.stop(index, deadline);
        self.served_disk.device.clear_broken_ring(index);
        left.join(ring_left);
        self.count(queues.len());
        drop(queues);
        self.served_disk.abandon_queues(left, verb.unwrap_or("stop of a ring by its front-end"));
        if owed && cause == StopCause::Change {
            // Only the in-flight region knows the remaining requests, and the front-end is changing
            // what it refers to.
            self.session.close();
        }
        // If the session is closed, this value is not sent.
        next
    }

    fn set_memory(&mut self, table: &Arc<Table>) -> Result<(), BackendError> {
        Ok(self.served_disk.queues.lock().set_memory(table)?)
    }

    fn set_call(&mut self, index: u16, call: Option<Arc<OwnedFd>>) -> Result<(), BackendError> {
        Ok(self.served_disk.queues.lock().set_call(index, call)?)
    }

    fn set_channel(&mut self, channel: BackendChannel) {
        lock(&self.served_disk.front_end).channel = Some(channel);
    }

    fn reset(&mut self) {
        self.clear_broken_rings();
        self.served_disk.disk_status.features.store(0, Ordering::Release);
    }

    fn disconnected(&mut self) {
        self.clear_broken_rings();
        lock(&self.served_disk.front_end).channel = None;
        *lock(&self.served_disk.disk_status.driver_starts) = None;
        self.served_disk.disk_status.features.store(0, Ordering::Release);
    }
}

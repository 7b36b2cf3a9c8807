//! Rings that a front-end has started, served or not.
//!
//! The session starts a ring, and the ring is served while the disk is active and not paused. This
//! module stores the parameters of each ring. So a paused disk can continue from the same position
//! when it is served again under the same front-end.

mod abandoned;
mod notify_mutex;
mod started_ring;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blk::{BlkDevice, QueueError};
use memory::Table;
use vhost_user::{MAX_RING_ENTRIES, SessionHandle};
use virtq::{InflightRegion, QueueStart};

pub(crate) use self::abandoned::AbandonedQueues;
pub(crate) use self::notify_mutex::NotifyMutex;
use self::started_ring::StartedRing;
use crate::pool::{PlacedQueue, Pool, QueueMover, ReactorLease};

/// Extra time for the other rings of a disk after one of them missed its drain deadline. They were
/// not waited for before, and lose nothing if they take longer.
const GRACE: Duration = Duration::from_millis(100);

/// Rings of a disk that its front-end has started.
#[derive(Debug)]
pub(crate) struct StartedRings {
    device: Arc<BlkDevice>,
    pool: Arc<Pool>,
    /// True if the disk is active and not paused, so that its rings are served.
    serving: bool,
    /// True while the kernel still has I/O of abandoned queues. This I/O could land after I/O of a
    /// successor, so no ring is served.
    stuck: bool,
    slots: Vec<StartedRing>,
    /// Region in which rings of a front-end without one record requests that wait for space during a
    /// handover.
    spare_region: Option<InflightRegion>,
    /// Reference to these rings, for the threads that move one of them.
    me: Weak<NotifyMutex<StartedRings>>,
    /// Thread that tells a front-end about an unserved ring, while it runs.
    report_thread: Option<JoinHandle<()>>,
}

/// Ring that its front-end has stopped.
#[derive(Debug)]
pub(crate) struct StoppedRing {
    /// Available index at which the ring would continue.
    pub(crate) next: u16,
    /// True if storage has not completed all requests of this ring, now or before. The rest is
    /// recorded in its in-flight region, or is in `left`.
    pub(crate) owed: bool,
    /// Queues of the disk that were abandoned because of it.
    pub(crate) left: AbandonedQueues,
}

impl StartedRings {
    pub(crate) fn new(device: Arc<BlkDevice>, pool: Arc<Pool>) -> Arc<NotifyMutex<Self>> {
        Arc::new_cyclic(|me| {
            let queues = Self {
                device,
                pool,
                serving: false,
                stuck: false,
                slots: Vec::new(),
                spare_region: None,
                me: me.clone(),
                report_thread: None,
            };
            NotifyMutex::new(queues, Self::recheck_queues)
        })
    }

    /// Returns the number of started rings.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds a ring that its front-end has started, and serves it if rings are served now.
    pub(crate) fn start(
        &mut self,
        start: QueueStart,
        session: SessionHandle,
    ) -> Result<(), QueueError> {
        let mut slot = StartedRing::new(start, session);
        if self.serving && !self.stuck {
            let place = placed(&self.pool, &self.device, &self.me, slot.start.index);
            slot.serve(&self.device, self.pool.trials(), place)?;
        }
        self.slots.push(slot);
        Ok(())
    }

    /// Drains and forgets a ring that its front-end stops. If the drain misses `deadline`, all
    /// rings of the disk are abandoned.
    pub(crate) fn stop(&mut self, index: u16, deadline: Instant) -> StoppedRing {
        let mut left = AbandonedQueues::default();
        let Some(at) = self.slots.iter().position(|slot| slot.start.index == index) else {
            return StoppedRing { next: 0, owed: false, left };
        };
        let mut slot = self.slots.swap_remove(at);
        if let Some(ending) = slot.begin_drain() {
            slot.end_drain(ending, deadline, &mut left);
        }
        if !left.is_empty() {
            self.stuck = true;
            left.join(self.drain(Instant::now() + GRACE));
        }
        StoppedRing { next: slot.start.ring.next_avail, owed: slot.owed, left }
    }

    /// Records that storage does not answer. No ring is served until [`Self::clear_stuck`].
    pub(crate) fn mark_stuck(&mut self) {
        self.stuck = true;
    }

    /// Records that storage has completed all abandoned I/O. Rings may be served again.
    pub(crate) fn clear_stuck(&mut self) {
        self.stuck = false;
        if self.serving {
            self.serve();
        }
    }

    /// Serves every ring, because the disk may be used. A ring that cannot be served is reported to
    /// its front-end and left alone.
    pub(crate) fn serve(&mut self) {
        self.serving = true;
        if self.stuck {
            return;
        }
        for slot in &mut self.slots {
            let place = placed(&self.pool, &self.device, &self.me, slot.start.index);
            if let Err(error) = slot.serve(&self.device, self.pool.trials(), place) {
                slot.not_served(&error, &mut self.report_thread);
            }
        }
    }

    /// Drains every ring in parallel, because the disk may no longer be used. Rings that miss
    /// `deadline` are abandoned. Their recorded requests continue when rings are served again.
    pub(crate) fn drain_all(&mut self, deadline: Instant) -> AbandonedQueues {
        self.serving = false;
        self.drain(deadline)
    }

    /// Drains every ring for a successor without any loss. Requests that wait for space on the
    /// storage stay recorded. Returns false if a ring missed `deadline`, or storage has not completed
    /// abandoned I/O. Then nothing has changed.
    pub(crate) fn quiesce(&mut self, deadline: Instant) -> bool {
        if self.stuck {
            return false;
        }
        let before = std::mem::replace(&mut self.serving, false);
        self.make_spare_region();
        let spare = self.spare_region.as_ref();
        let ending: Vec<_> = self.slots.iter_mut().map(|slot| slot.begin_handover(spare)).collect();
        let mut drained = true;
        for (slot, ending) in self.slots.iter_mut().zip(ending) {
            drained &= ending.is_none_or(|ending| slot.finish_quiesce(ending, deadline));
        }
        if !drained && before {
            self.serve();
        }
        drained
    }

    /// Creates a region for requests that wait for space, if the front-end has none for a ring.
    fn make_spare_region(&mut self) {
        if self.spare_region.is_some()
            || self.slots.iter().all(|slot| slot.start.inflight.is_some())
        {
            return;
        }
        match InflightRegion::create_unshared(self.device.queues(), MAX_RING_ENTRIES) {
            Ok(region) => self.spare_region = Some(region),
            // Needed only if a request waits for space. Then the drain misses its deadline.
            Err(error) => tracing::warn!("no record for waiting requests: {error}"),
        }
    }

    /// Returns the region that records requests of a front-end without one after
    /// [`Self::quiesce`], if there are any.
    pub(crate) fn spare_records(&self) -> Option<InflightRegion> {
        self.spare_region.clone().filter(InflightRegion::has_records)
    }

    /// Returns each started ring after [`Self::quiesce`], with the position where a successor
    /// continues, and whether it may continue.
    pub(crate) fn positions(&self) -> impl Iterator<Item = (u16, u16, bool)> {
        let position =
            |slot: &StartedRing| (slot.start.index, slot.start.ring.next_avail, !slot.broken);
        self.slots.iter().map(position)
    }

    /// Forgets unserved rings, because their session restarts them. `serving` sets whether rings
    /// are served from then on.
    pub(crate) fn forget_unserved(&mut self, serving: bool) {
        self.slots.clear();
        self.spare_region = None;
        self.serving = serving;
    }

    fn drain(&mut self, deadline: Instant) -> AbandonedQueues {
        let mut left = AbandonedQueues::default();
        let ending: Vec<_> = self.slots.iter_mut().map(StartedRing::begin_drain).collect();
        for (slot, ending) in self.slots.iter_mut().zip(ending) {
            if let Some(ending) = ending {
                slot.end_drain(ending, deadline, &mut left);
            }
        }
        // Only the front-end's in-flight region knows where an abandoned ring continues.
        self.slots.retain(|slot| !slot.owed || slot.is_recorded());
        self.stuck |= !left.is_empty();
        left
    }

    /// Waits until the current turn of each ring's reactor has ended.
    pub(crate) fn wait_turns(&self) {
        for running_ring in self.slots.iter().filter_map(|slot| slot.running_ring.as_ref()) {
            // A reactor that has ended has no turn.
            let _ = running_ring.queue.wait_turn();
        }
    }

    /// Makes waiting queues read changed caps or polling settings.
    fn recheck_queues(&self) {
        for running_ring in self.slots.iter().filter_map(|slot| slot.running_ring.as_ref()) {
            running_ring.queue.recheck_throttle();
        }
    }

    pub(crate) fn set_memory(&mut self, table: &Arc<Table>) -> Result<(), QueueError> {
        for slot in &mut self.slots {
            if let Some(running_ring) = &slot.running_ring {
                running_ring.queue.set_memory(Arc::clone(table))?;
            }
            slot.start.table = Arc::clone(table);
        }
        Ok(())
    }

    pub(crate) fn set_call(
        &mut self,
        index: u16,
        call: Option<Arc<OwnedFd>>,
    ) -> Result<(), QueueError> {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.start.index == index) else {
            return Ok(());
        };
        if let Some(running_ring) = &slot.running_ring {
            running_ring.queue.set_call(call.clone())?;
        }
        slot.start.call = call;
        Ok(())
    }
}

/// Returns a function that reserves a place for a ring.
fn placed<'a>(
    pool: &'a Pool,
    device: &'a Arc<BlkDevice>,
    me: &'a Weak<NotifyMutex<StartedRings>>,
    index: u16,
) -> impl FnOnce() -> ReactorLease + 'a {
    move || {
        let counted = Arc::clone(device);
        pool.place_queue(PlacedQueue {
            label: device.label(),
            busy_ns: Some(Arc::new(move || counted.busy_ns(index))),
            queue_mover: Some(me.clone()),
        })
    }
}

impl QueueMover for NotifyMutex<StartedRings> {
    fn move_queue(&self, from: u64, to: ReactorLease) -> bool {
        let mut queues = self.lock();
        let StartedRings { device, slots, report_thread, .. } = &mut *queues;
        let Some(slot) = slots.iter_mut().find(|slot| slot.is_in(from)) else { return false };
        slot.relocate(device, to).unwrap_or_else(|error| {
            slot.not_served(&error, report_thread);
            false
        })
    }
}

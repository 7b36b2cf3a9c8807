//! The rings that a front-end has started, whether or not the disk serves them now.
//!
//! A ring is started by the session and served while the disk is active and not paused. What it
//! takes to serve it is kept here, so that a disk that is held and served again under a connected
//! front-end goes on where it was.

mod abandoned;
mod notify_mutex;
mod started_ring;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blk::{BlkDevice, QueueError};
use memory::Table;
use vhost_user::SessionHandle;
use virtq::QueueStart;

pub(crate) use self::abandoned::AbandonedQueues;
pub(crate) use self::notify_mutex::NotifyMutex;
use self::started_ring::StartedRing;
use crate::pool::{PlacedQueue, Pool, QueueMover, ReactorLease};

/// What the other rings of a disk get when one of them was not drained in time: they have not
/// been asked before, and nothing of theirs is lost if it takes longer.
const GRACE: Duration = Duration::from_millis(100);

/// The rings of a disk that its front-end has started.
#[derive(Debug)]
pub(crate) struct StartedRings {
    device: Arc<BlkDevice>,
    pool: Arc<Pool>,
    /// The disk is active and not paused: rings are served.
    serving: bool,
    /// Queues that were given up are still with the kernel: what they do may land after what a
    /// successor does, so there is none.
    stuck: bool,
    slots: Vec<StartedRing>,
    /// These rings, as whoever moves one of them finds them.
    me: Weak<NotifyMutex<StartedRings>>,
    /// Tells a front-end of a ring that is not served, for as long as that takes.
    teller: Option<JoinHandle<()>>,
}

/// A ring that its front-end has stopped.
#[derive(Debug)]
pub(crate) struct StoppedRing {
    /// The available index at which it would go on.
    pub(crate) next: u16,
    /// Storage has not ended everything that was taken from it, now or before: what is left is on
    /// record in its in-flight region, or in `left`.
    pub(crate) owed: bool,
    /// Queues of the disk that were given up for it.
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
                me: me.clone(),
                teller: None,
            };
            NotifyMutex::new(queues, Self::look_again)
        })
    }

    /// Rings that are started.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Takes a ring that its front-end has started, and serves it if rings are served now.
    pub(crate) fn start(
        &mut self,
        start: QueueStart,
        session: SessionHandle,
    ) -> Result<(), QueueError> {
        let mut slot = StartedRing::new(start, session);
        if self.serving && !self.stuck {
            slot.serve(&self.device, placed(&self.pool, &self.device, &self.me, slot.start.index))?;
        }
        self.slots.push(slot);
        Ok(())
    }

    /// Drains a ring that its front-end stops and forgets it. When that is not done by `deadline`,
    /// all rings of the disk are given up.
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

    /// Storage does not answer: no ring is served until [`Self::clear_stuck`].
    pub(crate) fn mark_stuck(&mut self) {
        self.stuck = true;
    }

    /// Storage has ended everything that was left behind: rings may be served again.
    pub(crate) fn clear_stuck(&mut self) {
        self.stuck = false;
        if self.serving {
            self.serve();
        }
    }

    /// The disk may be used: serves every ring. One that cannot be served is told to its
    /// front-end and left alone.
    pub(crate) fn serve(&mut self) {
        self.serving = true;
        if self.stuck {
            return;
        }
        for slot in &mut self.slots {
            let place = placed(&self.pool, &self.device, &self.me, slot.start.index);
            if let Err(error) = slot.serve(&self.device, place) {
                slot.not_served(&error, &mut self.teller);
            }
        }
    }

    /// The disk may no longer be used: drains every ring, all at the same time. Those that are not
    /// drained by `deadline` are given up; what is on record of them goes on when rings are served
    /// again.
    pub(crate) fn drain_all(&mut self, deadline: Instant) -> AbandonedQueues {
        self.serving = false;
        self.drain(deadline)
    }

    /// Drains every ring for a successor, in a way that nothing is lost by. False: not all are
    /// drained by `deadline`, or storage has not ended what was left behind; all is as before.
    pub(crate) fn quiesce(&mut self, deadline: Instant) -> bool {
        if self.stuck {
            return false;
        }
        let before = std::mem::replace(&mut self.serving, false);
        let ending: Vec<_> = self.slots.iter_mut().map(StartedRing::begin_quiesce).collect();
        let mut drained = true;
        for (slot, ending) in self.slots.iter_mut().zip(ending) {
            drained &= ending.is_none_or(|ending| slot.finish_quiesce(ending, deadline));
        }
        if !drained && before {
            self.serve();
        }
        drained
    }

    /// After [`Self::quiesce`]: each ring that is started, where a successor goes on, and whether it
    /// may.
    pub(crate) fn positions(&self) -> impl Iterator<Item = (u16, u16, bool)> {
        let position =
            |slot: &StartedRing| (slot.start.index, slot.start.ring.next_avail, !slot.broken);
        self.slots.iter().map(position)
    }

    /// Forgets rings that are not served: their session starts them anew. From then on rings are
    /// served, or not.
    pub(crate) fn forget_unserved(&mut self, serving: bool) {
        self.slots.clear();
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
        // Where a ring that was given up goes on, only its front-end's records tell.
        self.slots.retain(|slot| !slot.owed || slot.is_recorded());
        self.stuck |= !left.is_empty();
        left
    }

    /// Waits until the turn that each ring is in has ended.
    pub(crate) fn wait_turns(&self) {
        for running_ring in self.slots.iter().filter_map(|slot| slot.running_ring.as_ref()) {
            // A reactor that has ended has no turn.
            let _ = running_ring.queue.wait_turn();
        }
    }

    /// Caps or polling have changed: what waits looks again.
    fn look_again(&self) {
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

/// A place for a ring.
fn placed<'a>(
    pool: &'a Pool,
    device: &'a Arc<BlkDevice>,
    me: &'a Weak<NotifyMutex<StartedRings>>,
    index: u16,
) -> impl FnOnce() -> ReactorLease + 'a {
    move || {
        let counted = Arc::clone(device);
        pool.place_lodger(PlacedQueue {
            label: device.label(),
            busy_ns: Some(Arc::new(move || counted.busy_ns(index))),
            queue_mover: Some(me.clone()),
        })
    }
}

impl QueueMover for NotifyMutex<StartedRings> {
    fn move_lodger(&self, from: u64, to: ReactorLease) -> bool {
        let mut queues = self.lock();
        let StartedRings { device, slots, teller, .. } = &mut *queues;
        let Some(slot) = slots.iter_mut().find(|slot| slot.is_in(from)) else { return false };
        slot.relocate(device, to).unwrap_or_else(|error| {
            slot.not_served(&error, teller);
            false
        })
    }
}

//! Queues that were given up.

use blk::AbandonedQueue;

use crate::pool::ReactorLease;

/// Queues that storage did not let go in time, with their places.
#[derive(Debug, Default)]
#[must_use = "somebody must wait for their end"]
pub(crate) struct AbandonedQueues {
    zombies: Vec<(AbandonedQueue, ReactorLease)>,
    /// What one of them had is on no record.
    unrecorded: bool,
}

impl AbandonedQueues {
    /// One more, and whether its front-end's in-flight region records what it had.
    pub(super) fn take(
        &mut self,
        abandoned_queue: AbandonedQueue,
        reactor_lease: ReactorLease,
        recorded: bool,
    ) {
        self.zombies.push((abandoned_queue, reactor_lease));
        self.unrecorded |= !recorded;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.zombies.is_empty()
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.zombies.extend(other.zombies);
        self.unrecorded |= other.unrecorded;
    }

    /// The front-end must not go on as if what it has stopped were ended: nobody remembers all
    /// that was in flight.
    pub(crate) fn unrecorded(&self) -> bool {
        self.unrecorded
    }

    /// Requests that storage has not ended.
    pub(crate) fn requests(&self) -> u64 {
        self.zombies.iter().map(|(abandoned_queue, _)| u64::from(abandoned_queue.requests())).sum()
    }

    /// Waits until the kernel has ended them all.
    pub(crate) fn wait(self) {
        for (abandoned_queue, _place) in self.zombies {
            abandoned_queue.wait();
        }
    }
}

//! Abandoned queues.

use blk::AbandonedQueue;

use crate::pool::ReactorLease;

/// Queues that storage did not drain in time, with their leases.
#[derive(Debug, Default)]
#[must_use = "a thread must wait for their end"]
pub(crate) struct AbandonedQueues {
    queues: Vec<(AbandonedQueue, ReactorLease)>,
    /// True if requests of one of them are not recorded.
    unrecorded: bool,
}

impl AbandonedQueues {
    /// Adds a queue. `recorded` is true if its front-end's in-flight region records its requests.
    pub(super) fn take(
        &mut self,
        abandoned_queue: AbandonedQueue,
        reactor_lease: ReactorLease,
        recorded: bool,
    ) {
        self.queues.push((abandoned_queue, reactor_lease));
        self.unrecorded |= !recorded;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.queues.extend(other.queues);
        self.unrecorded |= other.unrecorded;
    }

    /// Returns whether requests in flight are not recorded. Then the front-end must not continue as
    /// if its stopped rings had drained.
    pub(crate) fn unrecorded(&self) -> bool {
        self.unrecorded
    }

    /// Returns the number of requests that storage has not completed.
    pub(crate) fn requests(&self) -> u64 {
        self.queues.iter().map(|(abandoned_queue, _)| u64::from(abandoned_queue.requests())).sum()
    }

    /// Waits until the kernel has completed all of them.
    pub(crate) fn wait(self) {
        for (abandoned_queue, _place) in self.queues {
            abandoned_queue.wait();
        }
    }
}

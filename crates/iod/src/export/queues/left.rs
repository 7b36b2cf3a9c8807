//! Queues that were given up.

use blk::Zombie;

use crate::pool::Place;

/// Queues that storage did not let go in time, with their places.
#[derive(Debug, Default)]
#[must_use = "somebody must wait for their end"]
pub(crate) struct LeftBehind(Vec<(Zombie, Place)>);

impl LeftBehind {
    /// One more, if it was given up.
    pub(super) fn take(&mut self, zombie: Option<(Zombie, Place)>) {
        self.0.extend(zombie);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Requests that storage has not ended.
    pub(crate) fn requests(&self) -> u64 {
        self.0.iter().map(|(zombie, _)| u64::from(zombie.requests())).sum()
    }

    /// Waits until the kernel has ended them all.
    pub(crate) fn wait(self) {
        for (zombie, _place) in self.0 {
            zombie.wait();
        }
    }
}

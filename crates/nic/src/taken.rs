//! How far a guest has taken what one of its receive queues gave it, for those who send to it.
//!
//! The queue's reactor writes, the hubs of all reactors read. Nobody counts anything more for this: a
//! hub asks when one of its buckets waits to move, and from then on the queue's reactor looks at the
//! ring after each batch, until the guest has taken everything.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a receive queue tells. Numbers are buffers since its start.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Taken {
    given: AtomicU64,
    taken: AtomicU64,
    asked: AtomicBool,
}

impl Taken {
    /// So many buffers more are in the ring. For the queue's reactor.
    pub(crate) fn gives(&self, buffers: u64) {
        // One writer: no read-modify-write is needed. A hub on another reactor sees it when it sees
        // that the frame was read from its link.
        self.given.store(self.given() + buffers, Ordering::Relaxed);
    }

    /// All but so many have been taken. For the queue's reactor. True: that is to be asked again.
    pub(crate) fn settles(&self, untaken: u64) -> bool {
        let given = self.given();
        self.taken.store(given.saturating_sub(untaken), Ordering::Release);
        if untaken == 0 {
            self.asked.store(false, Ordering::Relaxed);
        }
        untaken > 0
    }

    /// Somebody wants to know. For the queue's reactor.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Buffers that are in the ring, or were.
    fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    fn is_past(&self, given: u64) -> bool {
        self.taken.load(Ordering::Acquire) >= given
    }
}

/// How far one hub's frames for a queue are known to be taken. A position is one in the hub's link to
/// the queue's reactor; without a link between them it is one in the ring.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// Everything up to this position was taken.
    done: u64,
    /// What was up to this position is taken when so many buffers are.
    next: Option<(u64, u64)>,
}

impl Followed {
    /// Whether everything up to `position` was taken. `arrived`: the position up to which frames are
    /// in the ring; it was read before this.
    pub(crate) fn is_done(&mut self, position: u64, arrived: u64, taken: &Taken) -> bool {
        for _ in 0..2 {
            if let Some((at, given)) = self.next
                && taken.is_past(given)
            {
                (self.done, self.next) = (at, None);
            }
            if position <= self.done {
                return true;
            }
            // What has arrived by now is in the ring below this.
            self.next.get_or_insert((arrived, taken.given()));
        }
        taken.asked.store(true, Ordering::Relaxed);
        false
    }

    /// The position of a frame that has just been given to a queue on the hub's own reactor.
    pub(crate) fn near(taken: &Taken) -> u64 {
        taken.given()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_known_when_the_guest_tells() {
        let (taken, mut followed) = (Taken::default(), Followed::default());
        // Two frames of three and four buffers, at positions 100 and 200 of the link; one arrived.
        taken.gives(3);
        assert!(!followed.is_done(200, 100, &taken) && taken.is_asked());
        taken.gives(4);
        assert!(taken.settles(4), "the second is to be taken");
        assert!(followed.is_done(100, 200, &taken));
        assert!(!followed.is_done(200, 200, &taken));
        assert!(taken.settles(1));
        assert!(!followed.is_done(200, 200, &taken));
        assert!(!taken.settles(0) && !taken.is_asked());
        assert!(followed.is_done(200, 200, &taken));
        assert!(!taken.is_asked(), "nobody asks for what is known");
        // Another hub's frames are in the same ring, and say nothing of ours.
        taken.gives(5);
        assert!(followed.is_done(200, 200, &taken));
        assert!(!followed.is_done(300, 200, &taken), "it is in the link");
    }

    #[test]
    fn a_frame_that_has_not_arrived_is_not_taken_with_those_that_have() {
        let (taken, mut followed) = (Taken::default(), Followed::default());
        taken.gives(1);
        taken.settles(0);
        assert!(!followed.is_done(200, 100, &taken));
        assert!(followed.is_done(100, 100, &taken));
        taken.gives(1);
        assert!(!followed.is_done(200, 200, &taken), "in the ring, and not taken");
        taken.settles(0);
        assert!(followed.is_done(200, 200, &taken));
    }
}

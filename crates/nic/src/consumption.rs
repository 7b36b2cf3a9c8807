//! How far a guest has taken what one of its receive queues gave it, for those who send to it.
//!
//! The queue's reactor writes, the hubs of all reactors read. Nobody counts anything more for this: a
//! hub asks when one of its buckets waits to move, and from then on the queue's reactor looks at the
//! ring after each batch, until the guest has taken everything.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Marks of a queue that are kept; of more the last one stands for all that follow.
const MARKS_MAX: usize = 16;
/// Runs of frames to a queue for which marks are made after somebody has asked: each costs a look at what the
/// other reactor writes.
const MARKED_RUNS: u16 = 512;

/// What a receive queue tells. Numbers are buffers since its start.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct ConsumptionCounter {
    given: AtomicU64,
    taken: AtomicU64,
    asked: AtomicBool,
    /// Frames waited for buffers until so many had been given: nobody knows which of those are theirs.
    /// `u64::MAX`: some wait now.
    waited: AtomicU64,
}

impl ConsumptionCounter {
    /// So many buffers more are in the ring. For the queue's reactor.
    pub(crate) fn gives(&self, buffers: u64) {
        // One writer: no read-modify-write is needed. A hub on another reactor sees it when it sees
        // that the frame was read from its link.
        self.given.store(self.given() + buffers, Ordering::Relaxed);
    }

    /// Frames wait that are not in the ring. For the queue's reactor.
    pub(crate) fn waits(&self) {
        self.waited.store(u64::MAX, Ordering::Release);
    }

    /// All that waited are in the ring, or lost. For the queue's reactor.
    pub(crate) fn waits_no_more(&self) {
        self.waited.store(self.given(), Ordering::Release);
    }

    /// All but so many have been taken. For the queue's reactor. True: that is to be asked again.
    pub(crate) fn settles(&self, untaken: u64) -> bool {
        let given = self.given();
        self.taken.store(given.saturating_sub(untaken), Ordering::Release);
        let goes_on = untaken > 0 || self.waited.load(Ordering::Relaxed) == u64::MAX;
        if !goes_on {
            self.asked.store(false, Ordering::Relaxed);
        }
        goes_on
    }

    /// Somebody wants to know. For the queue's reactor.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Buffers that are in the ring, or were.
    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Whether so many buffers have been taken, and what waited when they were given; asks for it if
    /// that is not known.
    pub(crate) fn has_passed(&self, given: u64) -> bool {
        // What waited when `given` was read got its buffers after that, and before this.
        let given = given.max(self.waited.load(Ordering::Acquire));
        let has = self.taken.load(Ordering::Acquire) >= given;
        if !has {
            self.asked.store(true, Ordering::Relaxed);
        }
        has
    }
}

/// How far a hub's frames for a queue on another reactor are known to be taken. Its positions are
/// those of the link to there, and a guest takes buffers of its ring: so the hub marks how many buffers
/// were in the ring when a frame was certainly among them.
#[derive(Debug)]
pub(crate) struct ConsumptionTracker {
    /// Everything up to this position was taken.
    done: u64,
    /// What is up to a position was taken when so many buffers were; oldest first.
    marks: VecDeque<(u64, u64)>,
    /// Runs of frames for which marks are still made.
    left: u16,
}

impl Default for ConsumptionTracker {
    fn default() -> Self {
        // Nothing is allocated when frames come.
        Self { done: 0, marks: VecDeque::with_capacity(MARKS_MAX), left: 0 }
    }
}

impl ConsumptionTracker {
    /// Frames have gone there. `arrived` tells up to which position frames are in the ring.
    pub(crate) fn goes(
        &mut self,
        arrived: impl FnOnce() -> u64,
        consumption_counter: &ConsumptionCounter,
    ) {
        if self.left > 0 {
            self.left -= 1;
            self.mark(arrived(), consumption_counter);
        }
    }

    /// Whether everything up to `position` was taken, as far as is known. Up to `arrived` frames
    /// are in the ring.
    pub(crate) fn is_done(
        &mut self,
        position: u64,
        arrived: u64,
        consumption_counter: &ConsumptionCounter,
    ) -> bool {
        if position <= self.done {
            return true;
        }
        self.mark(arrived, consumption_counter);
        while let Some((at, given)) = self.marks.front().copied() {
            if !consumption_counter.has_passed(given) {
                break;
            }
            self.done = at;
            self.marks.pop_front();
        }
        if position > self.done {
            self.left = MARKED_RUNS;
        }
        position <= self.done
    }

    /// What has arrived up to here is below what is in the ring now, which is read after that.
    fn mark(&mut self, arrived: u64, consumption_counter: &ConsumptionCounter) {
        let last = self.marks.back().map_or(self.done, |(at, _)| *at);
        if arrived > last {
            if self.marks.len() == MARKS_MAX {
                self.marks.pop_back();
            }
            self.marks.push_back((arrived, consumption_counter.given()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_known_when_the_guest_tells() {
        let (consumption_counter, mut consumption_tracker) =
            (ConsumptionCounter::default(), ConsumptionTracker::default());
        // Two frames of three and four buffers, at positions 100 and 200 of the link; one arrived.
        consumption_counter.gives(3);
        assert!(
            !consumption_tracker.is_done(200, 100, &consumption_counter)
                && consumption_counter.is_asked()
        );
        consumption_counter.gives(4);
        assert!(consumption_counter.settles(4), "the second is to be taken");
        assert!(consumption_tracker.is_done(100, 200, &consumption_counter));
        assert!(!consumption_tracker.is_done(200, 200, &consumption_counter));
        assert!(consumption_counter.settles(1));
        assert!(!consumption_tracker.is_done(200, 200, &consumption_counter));
        assert!(!consumption_counter.settles(0) && !consumption_counter.is_asked());
        assert!(consumption_tracker.is_done(200, 200, &consumption_counter));
        assert!(!consumption_counter.is_asked(), "nobody asks for what is known");
        // Another hub's frames are in the same ring, and say nothing of ours.
        consumption_counter.gives(5);
        assert!(consumption_tracker.is_done(200, 200, &consumption_counter));
        assert!(!consumption_tracker.is_done(300, 200, &consumption_counter), "it is in the link");
    }

    #[test]
    fn a_frame_that_has_not_arrived_is_not_taken_with_those_that_have() {
        let (consumption_counter, mut consumption_tracker) =
            (ConsumptionCounter::default(), ConsumptionTracker::default());
        consumption_counter.gives(1);
        consumption_counter.settles(0);
        assert!(!consumption_tracker.is_done(200, 100, &consumption_counter));
        assert!(consumption_tracker.is_done(100, 100, &consumption_counter));
        consumption_counter.gives(1);
        assert!(
            !consumption_tracker.is_done(200, 200, &consumption_counter),
            "in the ring, and not taken"
        );
        consumption_counter.settles(0);
        assert!(consumption_tracker.is_done(200, 200, &consumption_counter));
    }

    /// Each frame is taken after the next one has come, as under a load that never ends: a frame of
    /// one flow is known to be taken although others are always on their way.
    #[test]
    fn marks_are_made_while_others_frames_go_there() {
        let (consumption_counter, mut consumption_tracker) =
            (ConsumptionCounter::default(), ConsumptionTracker::default());
        let is_done = |consumption_tracker: &mut ConsumptionTracker, at: u64| {
            consumption_tracker.is_done(at, at, &consumption_counter)
        };
        consumption_counter.gives(1);
        assert!(!is_done(&mut consumption_tracker, 1));
        for at in 2..1000 {
            consumption_counter.gives(1);
            consumption_counter.settles(1);
            consumption_tracker.goes(|| at, &consumption_counter);
            assert!(consumption_tracker.marks.len() <= MARKS_MAX);
        }
        assert!(consumption_tracker.left > 0 || consumption_tracker.marks.len() == MARKS_MAX);
        assert!(consumption_tracker.is_done(1, 999, &consumption_counter));
        assert!(!is_done(&mut consumption_tracker, 999));
    }

    #[test]
    fn what_waits_has_not_been_taken() {
        let consumption_counter = ConsumptionCounter::default();
        consumption_counter.gives(2);
        consumption_counter.waits();
        // A frame that waits has the position of the one before it.
        assert!(
            consumption_counter.settles(0),
            "it is asked again: nothing in the ring is not all"
        );
        assert!(!consumption_counter.has_passed(2) && consumption_counter.is_asked());
        consumption_counter.gives(3);
        consumption_counter.waits_no_more();
        consumption_counter.settles(3);
        assert!(!consumption_counter.has_passed(2), "it is in the ring");
        consumption_counter.settles(1);
        assert!(!consumption_counter.has_passed(2));
        assert!(!consumption_counter.settles(0) && consumption_counter.has_passed(2));
        consumption_counter.gives(1);
        consumption_counter.settles(1);
        assert!(
            consumption_counter.has_passed(2)
                && consumption_counter.has_passed(5)
                && !consumption_counter.has_passed(6)
        );
    }

    #[test]
    fn near_positions_are_those_of_the_ring() {
        let consumption_counter = ConsumptionCounter::default();
        consumption_counter.gives(4);
        assert!(!consumption_counter.has_passed(4) && consumption_counter.is_asked());
        consumption_counter.settles(1);
        assert!(consumption_counter.has_passed(3) && !consumption_counter.has_passed(4));
        consumption_counter.settles(0);
        assert!(consumption_counter.has_passed(4));
    }
}

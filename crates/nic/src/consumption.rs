//! Consumption of a receive queue by its guest, for the reactors that send to the queue.
//!
//! The queue's reactor writes, the hubs of all reactors read. This needs no additional counting for
//! each frame. A hub requests the consumption when one of its buckets waits to move. From then on
//! the queue's reactor polls the ring after each batch, until the guest has consumed everything.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Most marks of a queue. Beyond that the last mark stands for all later frames.
const MARKS_MAX: usize = 16;
/// Runs of frames to a queue for which marks are made after a request: each mark reads memory that
/// the other reactor writes.
const MARKED_RUNS: u16 = 512;

/// Counter of a receive queue. Numbers are buffers since the queue's start.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct ConsumptionCounter {
    given: AtomicU64,
    taken: AtomicU64,
    asked: AtomicBool,
    /// Number of given buffers at the time when frames last waited for buffers: any of those before
    /// may belong to them. `u64::MAX` while frames wait.
    waited: AtomicU64,
}

impl ConsumptionCounter {
    /// Counts buffers that were added to the ring. Only for the queue's reactor.
    pub(crate) fn add_given(&self, buffers: u64) {
        // With one writer, no read-modify-write is needed. A hub on another reactor sees the value
        // when it sees that the frame was read from its link.
        self.given.store(self.given() + buffers, Ordering::Relaxed);
    }

    /// Records that frames wait outside of the ring. Only for the queue's reactor.
    pub(crate) fn waits(&self) {
        self.waited.store(u64::MAX, Ordering::Release);
    }

    /// Records that all waiting frames are in the ring or dropped. Only for the queue's reactor.
    pub(crate) fn backlog_drained(&self) {
        self.waited.store(self.given(), Ordering::Release);
    }

    /// Records that the guest has consumed all but `untaken` buffers. Only for the queue's reactor.
    /// Returns true if the caller must poll again.
    pub(crate) fn update_consumed(&self, untaken: u64) -> bool {
        let given = self.given();
        self.taken.store(given.saturating_sub(untaken), Ordering::Release);
        let goes_on = untaken > 0 || self.waited.load(Ordering::Relaxed) == u64::MAX;
        if !goes_on {
            self.asked.store(false, Ordering::Relaxed);
        }
        goes_on
    }

    /// Returns whether a hub has requested the consumption. Only for the queue's reactor.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns the number of buffers that were added to the ring.
    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Returns whether the guest has consumed `given` buffers, and the frames that waited at that
    /// time. Requests the consumption if that is not known.
    pub(crate) fn has_passed(&self, given: u64) -> bool {
        // Frames that waited when `given` was read received their buffers after that, and before
        // now.
        let given = given.max(self.waited.load(Ordering::Acquire));
        let has = self.taken.load(Ordering::Acquire) >= given;
        if !has {
            self.asked.store(true, Ordering::Relaxed);
        }
        has
    }
}

/// Tracks which of a hub's frames for a queue on another reactor are known to be consumed. The
/// hub's positions are those of the link to that reactor, while a guest consumes buffers of its
/// ring. So the hub marks the number of buffers in the ring at a time when a frame was certainly
/// among them.
#[derive(Debug)]
pub(crate) struct ConsumptionTracker {
    /// Position up to which everything was consumed.
    done: u64,
    /// Marks, oldest first: frames up to a position are consumed once this many buffers are.
    marks: VecDeque<(u64, u64)>,
    /// Runs of frames for which marks are still made.
    left: u16,
}

impl Default for ConsumptionTracker {
    fn default() -> Self {
        // Allocated now, so that frames cause no allocation.
        Self { done: 0, marks: VecDeque::with_capacity(MARKS_MAX), left: 0 }
    }
}

impl ConsumptionTracker {
    /// Records that frames went to the queue. `arrived` returns the position up to which frames are
    /// in the ring.
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

    /// Returns whether all frames up to `position` are known to be consumed. Frames up to `arrived`
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

    /// Adds a mark. Frames up to `arrived` are among the buffers in the ring now, because that
    /// number is read later.
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
        consumption_counter.add_given(3);
        assert!(
            !consumption_tracker.is_done(200, 100, &consumption_counter)
                && consumption_counter.is_asked()
        );
        consumption_counter.add_given(4);
        assert!(consumption_counter.update_consumed(4), "the second is to be taken");
        assert!(consumption_tracker.is_done(100, 200, &consumption_counter));
        assert!(!consumption_tracker.is_done(200, 200, &consumption_counter));
        assert!(consumption_counter.update_consumed(1));
        assert!(!consumption_tracker.is_done(200, 200, &consumption_counter));
        assert!(!consumption_counter.update_consumed(0) && !consumption_counter.is_asked());
        assert!(consumption_tracker.is_done(200, 200, &consumption_counter));
        assert!(!consumption_counter.is_asked(), "nobody asks for what is known");
        // Frames of another hub in the same ring say nothing about this hub's frames.
        consumption_counter.add_given(5);
        assert!(consumption_tracker.is_done(200, 200, &consumption_counter));
        assert!(!consumption_tracker.is_done(300, 200, &consumption_counter), "it is in the link");
    }

    #[test]
    fn a_frame_that_has_not_arrived_is_not_taken_with_those_that_have() {
        let (consumption_counter, mut consumption_tracker) =
            (ConsumptionCounter::default(), ConsumptionTracker::default());
        consumption_counter.add_given(1);
        consumption_counter.update_consumed(0);
        assert!(!consumption_tracker.is_done(200, 100, &consumption_counter));
        assert!(consumption_tracker.is_done(100, 100, &consumption_counter));
        consumption_counter.add_given(1);
        assert!(
            !consumption_tracker.is_done(200, 200, &consumption_counter),
            "in the ring, and not taken"
        );
        consumption_counter.update_consumed(0);
        assert!(consumption_tracker.is_done(200, 200, &consumption_counter));
    }

    /// Each frame is consumed after the next one has come, as under a permanent load. A frame of
    /// one flow is known to be consumed although other frames are always in flight.
    #[test]
    fn marks_are_made_while_others_frames_go_there() {
        let (consumption_counter, mut consumption_tracker) =
            (ConsumptionCounter::default(), ConsumptionTracker::default());
        let is_done = |consumption_tracker: &mut ConsumptionTracker, at: u64| {
            consumption_tracker.is_done(at, at, &consumption_counter)
        };
        consumption_counter.add_given(1);
        assert!(!is_done(&mut consumption_tracker, 1));
        for at in 2..1000 {
            consumption_counter.add_given(1);
            consumption_counter.update_consumed(1);
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
        consumption_counter.add_given(2);
        consumption_counter.waits();
        // A waiting frame has the position of the frame before it.
        assert!(
            consumption_counter.update_consumed(0),
            "it is asked again: nothing in the ring is not all"
        );
        assert!(!consumption_counter.has_passed(2) && consumption_counter.is_asked());
        consumption_counter.add_given(3);
        consumption_counter.backlog_drained();
        consumption_counter.update_consumed(3);
        assert!(!consumption_counter.has_passed(2), "it is in the ring");
        consumption_counter.update_consumed(1);
        assert!(!consumption_counter.has_passed(2));
        assert!(!consumption_counter.update_consumed(0) && consumption_counter.has_passed(2));
        consumption_counter.add_given(1);
        consumption_counter.update_consumed(1);
        assert!(
            consumption_counter.has_passed(2)
                && consumption_counter.has_passed(5)
                && !consumption_counter.has_passed(6)
        );
    }

    #[test]
    fn near_positions_are_those_of_the_ring() {
        let consumption_counter = ConsumptionCounter::default();
        consumption_counter.add_given(4);
        assert!(!consumption_counter.has_passed(4) && consumption_counter.is_asked());
        consumption_counter.update_consumed(1);
        assert!(consumption_counter.has_passed(3) && !consumption_counter.has_passed(4));
        consumption_counter.update_consumed(0);
        assert!(consumption_counter.has_passed(4));
    }
}

//! Arrival times of the requests that wait in a ring.

use std::collections::VecDeque;

/// Maximum number of arrivals stored. A ring has at most 1024 entries and a turn pops 64, so fewer
/// polls than this see a request in the ring.
const ARRIVALS_MAX: usize = 32;

/// Requests that one poll of the ring saw for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Number of these requests that have not been popped.
    left: u32,
    /// Time at which these requests were known, in nanoseconds.
    pub(crate) since_ns: u64,
    /// Total time that the cap had throttled the queue by then, in nanoseconds.
    pub(crate) held_ns: u64,
}

impl Arrival {
    /// Creates the arrival of a request that no poll of the ring has seen.
    pub(crate) fn at(since_ns: u64, held_ns: u64) -> Self {
        Self { left: 0, since_ns, held_ns }
    }
}

/// Requests of a ring in the order in which they were known.
#[derive(Debug, Default)]
pub(crate) struct ArrivalQueue {
    /// The earliest arrival that may have requests left.
    first: Arrival,
    later: VecDeque<Arrival>,
    waiting: u32,
}

impl ArrivalQueue {
    /// Records a poll that saw `waiting` requests in the ring, known since `since_ns` or earlier.
    #[inline]
    pub(crate) fn observe(&mut self, waiting: u16, since_ns: u64, held_ns: u64) {
        let waiting = u32::from(waiting);
        let left = waiting.saturating_sub(self.waiting);
        if left == 0 {
            return;
        }
        let arrival = Arrival { left, since_ns, held_ns };
        if self.waiting == 0 {
            self.first = arrival;
        } else {
            self.push_later(arrival);
        }
        self.waiting = waiting;
    }

    fn push_later(&mut self, arrival: Arrival) {
        let full = self.later.len() >= ARRIVALS_MAX;
        match self.later.back_mut().filter(|_| full) {
            Some(last) => last.left += arrival.left,
            None => self.later.push_back(arrival),
        }
    }

    /// Pops the next request if it belongs to the same arrival as the one before. Otherwise
    /// returns false and changes nothing; then [`Self::pop_later`] returns its arrival.
    #[inline]
    pub(crate) fn pop(&mut self) -> bool {
        let Some(left) = self.first.left.checked_sub(1) else { return false };
        self.first.left = left;
        self.waiting -= 1;
        true
    }

    /// Pops the first request of the next arrival. `None` if it came after the last poll.
    pub(crate) fn pop_later(&mut self) -> Option<Arrival> {
        self.first = self.later.pop_front()?;
        self.pop().then_some(self.first)
    }

    /// Returns the arrival of the next request, unless that belongs to a later arrival than the
    /// last popped one or no poll has seen it.
    pub(crate) fn first(&self) -> Arrival {
        self.first
    }

    /// Returns whether the last poll left nothing in the ring.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Returns the number of requests in the ring at the last poll, and since when the first one
    /// was known.
    #[inline]
    pub(crate) fn waiting(&self) -> (u32, u64) {
        if self.waiting == 0 {
            return (0, 0);
        }
        let all = std::iter::once(&self.first).chain(&self.later);
        let first = all.into_iter().find(|arrival| arrival.left > 0);
        (self.waiting, first.map_or(0, |arrival| arrival.since_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns when the next request was known, and the cap's total then.
    fn pop(arrival_queue: &mut ArrivalQueue) -> Option<(u64, u64)> {
        let arrival = if arrival_queue.pop() {
            Some(arrival_queue.first())
        } else {
            arrival_queue.pop_later()
        };
        arrival.map(|arrival| (arrival.since_ns, arrival.held_ns))
    }

    #[test]
    fn requests_are_known_since_the_look_that_showed_them() {
        let mut arrival_queue = ArrivalQueue::default();
        arrival_queue.observe(3, 100, 0);
        assert_eq!(arrival_queue.waiting(), (3, 100));
        assert_eq!(
            (pop(&mut arrival_queue), pop(&mut arrival_queue)),
            (Some((100, 0)), Some((100, 0)))
        );
        arrival_queue.observe(2, 200, 7);
        assert_eq!(arrival_queue.waiting(), (2, 100));
        assert_eq!(
            (pop(&mut arrival_queue), pop(&mut arrival_queue)),
            (Some((100, 0)), Some((200, 7)))
        );
        assert_eq!(arrival_queue.waiting(), (0, 0));
        assert_eq!(pop(&mut arrival_queue), None, "it came while the turn went on");
        arrival_queue.observe(1, 300, 7);
        assert_eq!(pop(&mut arrival_queue), Some((300, 7)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut arrival_queue = ArrivalQueue::default();
        for at in 0..1000 {
            arrival_queue.observe(at + 1, u64::from(at), 0);
        }
        assert_eq!(arrival_queue.later.len(), ARRIVALS_MAX);
        for _ in 0..1000 {
            assert!(pop(&mut arrival_queue).is_some());
        }
        assert_eq!((arrival_queue.waiting(), pop(&mut arrival_queue)), ((0, 0), None));
    }
}

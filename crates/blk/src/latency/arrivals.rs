//! Since when what waits in a ring has been known.

use std::collections::VecDeque;

/// Looks that are remembered: a ring has 1024 entries at most and a turn pops 64, so a request
/// is found in the ring by fewer looks than this.
const MARKS_MAX: usize = 32;

/// What one look at the ring showed for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Of these requests, how many have not been popped.
    left: u32,
    /// When they were known, in nanoseconds.
    pub(crate) since_ns: u64,
    /// Total of the time that the cap held the queue, by then.
    pub(crate) held_ns: u64,
}

impl Arrival {
    /// Of a request that no look has shown.
    pub(crate) fn at(since_ns: u64, held_ns: u64) -> Self {
        Self { left: 0, since_ns, held_ns }
    }
}

/// Requests of a ring in the order in which they were known.
#[derive(Debug, Default)]
pub(crate) struct ArrivalQueue {
    /// The earliest look of which something may be left.
    first: Arrival,
    later: VecDeque<Arrival>,
    waiting: u32,
}

impl ArrivalQueue {
    /// A look at the ring has shown `waiting` requests, known at `since_ns` at the latest.
    #[inline]
    pub(crate) fn look(&mut self, waiting: u16, since_ns: u64, held_ns: u64) {
        let waiting = u32::from(waiting);
        let left = waiting.saturating_sub(self.waiting);
        if left == 0 {
            return;
        }
        let arrival = Arrival { left, since_ns, held_ns };
        if self.waiting == 0 {
            self.first = arrival;
        } else {
            self.look_beside(arrival);
        }
        self.waiting = waiting;
    }

    fn look_beside(&mut self, arrival: Arrival) {
        let full = self.later.len() >= MARKS_MAX;
        match self.later.back_mut().filter(|_| full) {
            Some(last) => last.left += arrival.left,
            None => self.later.push_back(arrival),
        }
    }

    /// The next request is popped, and it is of the same look as the one before. False, and nothing
    /// is done: [`Self::pop_later`] tells of which look it is.
    #[inline]
    pub(crate) fn pop(&mut self) -> bool {
        let Some(left) = self.first.left.checked_sub(1) else { return false };
        self.first.left = left;
        self.waiting -= 1;
        true
    }

    /// The next request is popped, the first of its look. `None`: it came after the last look.
    pub(crate) fn pop_later(&mut self) -> Option<Arrival> {
        self.first = self.later.pop_front()?;
        self.pop().then_some(self.first)
    }

    /// The look of the next request, if a look has shown it and no later one than the last popped.
    pub(crate) fn first(&self) -> Arrival {
        self.first
    }

    /// Nothing waits in the ring, as the last look showed.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// What waits in the ring: how many, as the last look showed, and since when.
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

    /// When the next one was known, and the cap's total then.
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
        arrival_queue.look(3, 100, 0);
        assert_eq!(arrival_queue.waiting(), (3, 100));
        assert_eq!(
            (pop(&mut arrival_queue), pop(&mut arrival_queue)),
            (Some((100, 0)), Some((100, 0)))
        );
        arrival_queue.look(2, 200, 7);
        assert_eq!(arrival_queue.waiting(), (2, 100));
        assert_eq!(
            (pop(&mut arrival_queue), pop(&mut arrival_queue)),
            (Some((100, 0)), Some((200, 7)))
        );
        assert_eq!(arrival_queue.waiting(), (0, 0));
        assert_eq!(pop(&mut arrival_queue), None, "it came while the turn went on");
        arrival_queue.look(1, 300, 7);
        assert_eq!(pop(&mut arrival_queue), Some((300, 7)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut arrival_queue = ArrivalQueue::default();
        for at in 0..1000 {
            arrival_queue.look(at + 1, u64::from(at), 0);
        }
        assert_eq!(arrival_queue.later.len(), MARKS_MAX);
        for _ in 0..1000 {
            assert!(pop(&mut arrival_queue).is_some());
        }
        assert_eq!((arrival_queue.waiting(), pop(&mut arrival_queue)), ((0, 0), None));
    }
}

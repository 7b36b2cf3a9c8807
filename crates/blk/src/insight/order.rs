//! Since when what waits in a ring has been known.

use std::collections::VecDeque;

/// Looks that are remembered: a ring has 1024 entries at most and a turn pops 64, so a request
/// is found in the ring by fewer looks than this.
const MARKS_MAX: usize = 32;

/// What one look at the ring showed for the first time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Requests up to this one, counted from the start.
    end: u64,
    /// When they were known, in nanoseconds.
    since_ns: u64,
    /// Total of the time that the cap held the queue, by then.
    held_ns: u64,
}

/// Requests of a ring in the order in which they were known.
#[derive(Debug, Default)]
pub(crate) struct Order {
    marks: VecDeque<Mark>,
    popped: u64,
    seen: u64,
}

impl Order {
    /// A look at the ring has shown `waiting` requests, known at `since_ns` at the latest.
    pub(crate) fn look(&mut self, waiting: u16, since_ns: u64, held_ns: u64) {
        let end = self.popped + u64::from(waiting);
        if end <= self.seen {
            return;
        }
        self.seen = end;
        let full = self.marks.len() >= MARKS_MAX;
        match self.marks.back_mut().filter(|_| full) {
            Some(last) => last.end = end,
            None => self.marks.push_back(Mark { end, since_ns, held_ns }),
        }
    }

    /// The next request is popped: when it was known, and the cap's total then. `None`: it came
    /// after the last look.
    pub(crate) fn pop(&mut self) -> Option<(u64, u64)> {
        self.popped += 1;
        while self.marks.front().is_some_and(|mark| mark.end < self.popped) {
            self.marks.pop_front();
        }
        self.seen = self.seen.max(self.popped);
        self.marks.front().map(|mark| (mark.since_ns, mark.held_ns))
    }

    /// What waits in the ring: how many, as the last look showed, and since when.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let first = self.marks.iter().find(|mark| mark.end > self.popped);
        (self.seen - self.popped, first.map_or(0, |mark| mark.since_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_known_since_the_look_that_showed_them() {
        let mut order = Order::default();
        order.look(3, 100, 0);
        assert_eq!(order.waiting(), (3, 100));
        assert_eq!((order.pop(), order.pop()), (Some((100, 0)), Some((100, 0))));
        order.look(2, 200, 7);
        assert_eq!(order.waiting(), (2, 100));
        assert_eq!((order.pop(), order.pop()), (Some((100, 0)), Some((200, 7))));
        assert_eq!(order.waiting(), (0, 0));
        assert_eq!(order.pop(), None, "it came while the turn went on");
        order.look(1, 300, 7);
        assert_eq!(order.pop(), Some((300, 7)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut order = Order::default();
        for at in 0..1000 {
            order.look(at + 1, u64::from(at), 0);
        }
        assert_eq!(order.marks.len(), MARKS_MAX);
        for _ in 0..1000 {
            assert!(order.pop().is_some());
        }
        assert_eq!(order.waiting(), (0, 0));
    }
}

//! Places of the overflow file.

use std::collections::BTreeSet;

/// Places of a file that are in use. Place 0 is the file's header.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// One bit a place, set if it is used. Places behind the end are free.
    used: Vec<u64>,
    count: u64,
    /// One bit a place, set if the file may have space for it.
    backed: Vec<u64>,
    backed_count: u64,
    /// Where the next search begins.
    next: u64,
    /// Places that the storage could not write.
    bad: BTreeSet<u64>,
}

/// Free places that keep their space in the file, for the next writes: 4 MiB.
const KEPT: u64 = 1024;

/// Places that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) len: u64,
}

impl Places {
    fn bit(place: u64) -> (usize, u64) {
        ((place / 64) as usize, 1 << (place % 64))
    }

    fn is_used(&self, place: u64) -> bool {
        let (at, mask) = Self::bit(place);
        place == 0 || self.used.get(at).is_some_and(|bits| bits & mask != 0)
    }

    /// Marks a place as used. Returns whether it was free.
    pub(crate) fn take(&mut self, place: u64) -> bool {
        if self.is_used(place) {
            return false;
        }
        let (at, mask) = Self::bit(place);
        if self.used.len() <= at {
            self.used.resize(at + 1, 0);
        }
        if let Some(bits) = self.used.get_mut(at) {
            *bits |= mask;
        }
        self.count += 1;
        self.back(place);
        true
    }

    fn back(&mut self, place: u64) {
        let (at, mask) = Self::bit(place);
        if self.backed.len() <= at {
            self.backed.resize(at + 1, 0);
        }
        if let Some(bits) = self.backed.get_mut(at).filter(|bits| **bits & mask == 0) {
            *bits |= mask;
            self.backed_count += 1;
        }
    }

    /// Notes that a file of a former process has places up to `end`, with space for each.
    pub(crate) fn back_all(&mut self, end: u64) {
        (1..end).for_each(|place| self.back(place));
    }

    /// Returns whether the file has much space that no place uses.
    pub(crate) fn wants_punch(&self) -> bool {
        self.backed_count.saturating_sub(self.count) > 2 * KEPT + self.count / 2
    }

    /// Returns the next free run that has space in the file, from `from` on, at most `most` places. The
    /// caller gives the space back, and takes no place meanwhile.
    pub(crate) fn take_backed(&mut self, from: u64, most: u64) -> Option<Run> {
        let end = self.backed.len() as u64 * 64;
        let is_free = |places: &Self, place: u64| {
            let (at, mask) = Self::bit(place);
            places.backed.get(at).is_some_and(|bits| bits & mask != 0) && !places.is_used(place)
        };
        let first = (from.max(1)..end).find(|place| is_free(self, *place))?;
        let mut run = Run { first, len: 0 };
        while run.len < most && is_free(self, first + run.len) {
            let (at, mask) = Self::bit(first + run.len);
            if let Some(bits) = self.backed.get_mut(at) {
                *bits &= !mask;
                self.backed_count -= 1;
            }
            run.len += 1;
        }
        Some(run)
    }

    /// Frees a place. One that is bad stays in use.
    pub(crate) fn free(&mut self, place: u64) {
        let (at, mask) = Self::bit(place);
        if self.is_used(place)
            && !self.bad.contains(&place)
            && let Some(bits) = self.used.get_mut(at)
        {
            *bits &= !mask;
            self.count -= 1;
        }
    }

    /// Frees places of a run that could not be written. The next search begins at the front, so that
    /// holes come before the end of a file that cannot grow.
    pub(crate) fn give_up(&mut self, run: Run) {
        (run.first..run.first + run.len).for_each(|place| self.free(place));
        self.next = 1;
        while self.used.last() == Some(&0) {
            self.used.pop();
        }
    }

    /// Notes that the storage cannot write a place, which is in use.
    pub(crate) fn set_bad(&mut self, place: u64) {
        self.bad.insert(place);
    }

    /// Takes up to `len` places that follow each other, all below `limit`. `None`: all are in use.
    pub(crate) fn take_run(&mut self, len: u64, limit: u64) -> Option<Run> {
        let end = (self.used.len() as u64 * 64).max(1);
        let first = self.find_free(self.next.max(1), end.min(limit)).or_else(|| {
            let before = self.find_free(1, self.next.min(limit));
            // The file grows only when it has no hole.
            before.or_else(|| Some(end).filter(|end| *end < limit))
        })?;
        let mut run = Run { first, len: 0 };
        while run.len < len && first + run.len < limit && self.take(first + run.len) {
            run.len += 1;
        }
        self.next = first + run.len;
        Some(run).filter(|run| run.len > 0)
    }

    fn find_free(&self, from: u64, end: u64) -> Option<u64> {
        let mut place = from;
        while place < end {
            let (at, _) = Self::bit(place);
            match self.used.get(at) {
                Some(&u64::MAX) => place = (place / 64 + 1) * 64,
                _ if !self.is_used(place) => return Some(place),
                _ => place += 1,
            }
        }
        None
    }

    /// Returns the number of places in use, without the header.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_fill_holes_before_the_file_grows() {
        let mut places = Places::default();
        let run = |first, len| Some(Run { first, len });
        assert_eq!(places.take_run(10, 1000), run(1, 10));
        assert_eq!(places.take_run(100, 1000), run(11, 100));
        (5..8).for_each(|place| places.free(place));
        // Behind the last one first, as far as the bitmap goes; then holes; then it grows.
        assert_eq!(places.take_run(100, 1000).map(|run| run.first), Some(111));
        places.next = 1 << 20;
        assert_eq!(places.take_run(100, 1000), run(5, 3));
        assert_eq!(places.count(), 210);
        assert_eq!(places.take_run(1, 5), None, "the limit");
        assert!(!places.take(0) && !places.take(5));
        places.set_bad(6);
        places.free(6);
        assert!(places.is_used(6));
        places.free(7);
        places.free(7);
        assert_eq!(places.count(), 209);
    }

    #[test]
    fn a_file_that_cannot_grow_has_its_holes_filled() {
        let mut places = Places::default();
        let run = |first, len| Run { first, len };
        assert_eq!(places.take_run(300, 1000), Some(run(1, 300)));
        for _ in 0..3 {
            let failed = places.take_run(100, 1000).unwrap();
            assert_eq!(failed, run(301, 100), "always the same");
            places.give_up(failed);
        }
        (10..20).for_each(|place| places.free(place));
        assert_eq!(places.take_run(100, 1000), Some(run(10, 10)));
        assert_eq!(places.take_run(100, 1000), Some(run(301, 100)));
        assert_eq!(places.count(), 400);
    }

    #[test]
    fn free_places_give_their_space_back_once_there_are_many() {
        let mut places = Places::default();
        places.take_run(10_000, 1 << 30).unwrap();
        (1..2000).for_each(|place| places.free(place));
        assert!(!places.wants_punch());
        (3001..8000).for_each(|place| places.free(place));
        assert!(places.wants_punch());
        let run = |first, len| Some(Run { first, len });
        assert_eq!(places.take_backed(0, 1500), run(1, 1500));
        assert_eq!(places.take_backed(1501, 1500), run(1501, 499));
        assert_eq!(places.take_backed(2000, 9999), run(3001, 4999));
        assert_eq!(places.take_backed(8000, 9999), None);
        assert!(!places.wants_punch());
        // A place that is taken again has space again.
        assert!(places.take(5));
        places.free(5);
        assert_eq!(places.take_backed(0, 9), run(5, 1));
    }
}

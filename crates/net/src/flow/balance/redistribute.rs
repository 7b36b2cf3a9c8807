//! Deals the hottest buckets anew, when step by step nothing more is gained.
//!
//! It is the complete greedy search for the most even split (Korf 1998): heaviest first, each to
//! the queue that has least so far, and then all else in that order, until nothing better can be or
//! the search has taken long enough. The first split that it sees is the one of the longest
//! processing time rule.

use super::MOVES_MAX;
use crate::flow::indirection::QUEUES_MAX;

/// Most buckets that are dealt: no more could be moved at once.
pub(super) const HANDS: usize = MOVES_MAX;
/// Most places that are tried: what eight buckets on four queues need, some ten microseconds.
const TRIES: u32 = 4096;

/// A hot bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HotBucket {
    pub(super) load: u64,
    /// Where it is, which is preferred to another queue that has as much.
    pub(super) now: u8,
}

/// A search.
pub(super) struct Redistribution<'a> {
    /// Heaviest first.
    hot_buckets: &'a [HotBucket],
    sums: &'a mut [u64],
    chosen: [u8; HANDS],
    best: [u8; HANDS],
    /// The most that a queue has in the best split so far.
    top: u64,
    /// No split has less.
    least: u64,
    tries: u32,
}

impl<'a> Redistribution<'a> {
    /// Deals `hands`, at most [`HANDS`], to queues with `sums` of everything else. Returns the
    /// queue of each, and what the most loaded one has, if that is below `top`.
    pub(super) fn search(
        hot_buckets: &'a [HotBucket],
        sums: &'a mut [u64],
        top: u64,
        least: u64,
    ) -> Option<([u8; HANDS], u64)> {
        let (chosen, best) = ([0; HANDS], [0; HANDS]);
        let mut redistribution = Self { hot_buckets, sums, chosen, best, top, least, tries: TRIES };
        redistribution.place(0);
        (redistribution.top < top).then_some((redistribution.best, redistribution.top))
    }

    fn place(&mut self, nth: usize) {
        let Some(HotBucket { load, now }) = self.hot_buckets.get(nth).copied() else {
            let top = self.sums.iter().copied().max().unwrap_or(0);
            // What is not dealt may have more than all of this.
            if top < self.top {
                (self.top, self.best) = (top, self.chosen);
            }
            return;
        };
        let mut tried = [false; QUEUES_MAX as usize];
        while self.tries > 0 && self.top > self.least {
            let all = (0u8..).zip(self.sums.iter().zip(&tried));
            let open =
                all.filter(|(_, (_, tried))| !**tried).map(|(queue, (sum, _))| (queue, *sum));
            let Some((queue, sum)) = open.min_by_key(|(queue, sum)| (*sum, *queue != now)) else {
                return;
            };
            let with = sum.saturating_add(load);
            // Those that are left have more.
            if with >= self.top {
                return;
            }
            self.tries -= 1;
            // Another queue with as much would come to the same.
            let same = tried.iter_mut().zip(self.sums.iter()).filter(|(_, other)| **other == sum);
            same.for_each(|(tried, _)| *tried = true);
            self.set(nth, queue, with);
            self.place(nth + 1);
            self.set(nth, queue, sum);
        }
    }

    fn set(&mut self, nth: usize, queue: u8, sum: u64) {
        if let (Some(chosen), Some(place)) =
            (self.chosen.get_mut(nth), self.sums.get_mut(usize::from(queue)))
        {
            (*chosen, *place) = (queue, sum);
        }
    }
}

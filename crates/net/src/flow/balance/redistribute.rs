//! Redistributes the hottest buckets, if single moves gain nothing more.
//!
//! The algorithm is the complete greedy search for the most even split (Korf 1998), heaviest bucket
//! first. It first assigns each bucket to the least loaded queue, then tries the other queues in
//! that order. The search ends when no better split can exist or its budget is used up. The first
//! split that it finds is the one of the longest-processing-time rule.

use super::MOVES_MAX;
use crate::flow::indirection::QUEUES_MAX;

/// Most buckets that are redistributed: no more can be moved at once.
pub(super) const HANDS: usize = MOVES_MAX;
/// Most assignments that are tried: enough for eight buckets on four queues, some ten microseconds.
const TRIES: u32 = 4096;

/// Hot bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HotBucket {
    pub(super) load: u64,
    /// Current queue, preferred to another queue with the same load.
    pub(super) now: u8,
}

/// State of a search.
pub(super) struct Redistribution<'a> {
    /// Buckets, heaviest first.
    hot_buckets: &'a [HotBucket],
    sums: &'a mut [u64],
    chosen: [u8; HANDS],
    best: [u8; HANDS],
    /// Load of the most loaded queue in the best split so far.
    top: u64,
    /// Lower bound of that load for any split.
    least: u64,
    tries: u32,
}

impl<'a> Redistribution<'a> {
    /// Distributes `hot_buckets`, at most [`HANDS`], to queues that have `sums` of all other load.
    /// Returns the queue of each bucket and the load of the most loaded queue, if that is below
    /// `top`.
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
            // A queue may exceed all of these by load that is not redistributed.
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
            // The remaining queues have a larger load.
            if with >= self.top {
                return;
            }
            self.tries -= 1;
            // Another queue with the same load would give the same result.
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

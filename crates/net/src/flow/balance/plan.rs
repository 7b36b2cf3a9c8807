//! One balancing pass over the queues of a receiver, and the moves that it decides.

use super::redistribute::{HANDS, HotBucket, Redistribution};
use super::{Balancer, Load, Move, Moves};
use crate::flow::BUCKETS;
use crate::flow::indirection::{Bucket, QUEUES_MAX};

/// Divisor of the mean: the most loaded queue may exceed the mean by that part.
const TOLERANCE: u64 = 16;
/// Divisor of the mean: a move must gain at least that part.
const GAIN: u64 = 32;
/// Divisor of the mean. If the most loaded queue exceeds the mean by more than that part after all
/// single moves, the hottest buckets are redistributed.
const UNEVEN: u64 = 8;

/// Sums of the queues, and the changes to them.
#[derive(Clone)]
pub(super) struct BalancePlan<'a> {
    load: &'a Load,
    rest: &'a [u8; BUCKETS],
    table: [u8; BUCKETS],
    queues: u8,
    sums: [u64; QUEUES_MAX as usize],
    mean: u64,
}

/// Change that reduces the load of the most loaded queue.
#[derive(Clone, Copy)]
struct Change {
    /// Larger sum of the two queues after the change.
    top: u64,
    /// Bucket that leaves the most loaded queue.
    away: Bucket,
    to: u8,
    /// Bucket that comes back in a swap.
    back: Option<Bucket>,
}

impl<'a> BalancePlan<'a> {
    pub(super) fn new(of: &'a Balancer) -> Self {
        let mut sums = of.sums();
        let mut total = 0u64;
        for (sum, more) in sums.iter_mut().zip(of.load.others).take(of.queues.into()) {
            *sum = sum.saturating_add(more);
            total = total.saturating_add(*sum);
        }
        let (load, rest, table, queues) = (&of.load, &of.rest, of.table, of.queues);
        Self { load, rest, table, queues, sums, mean: total / u64::from(queues) }
    }

    /// Decides the moves.
    pub(super) fn make(self) -> Moves {
        let mut near = self.clone();
        let moves = near.step_by_step();
        let top = near.top().1;
        if top > self.mean.saturating_add(self.mean / UNEVEN) {
            self.deal(top).unwrap_or(moves)
        } else {
            moves
        }
    }

    /// Returns the smallest gain that is worth a change.
    fn gain_min(&self) -> u64 {
        (self.mean / GAIN).max(1)
    }

    fn step_by_step(&mut self) -> Moves {
        let mut moves = Moves::default();
        while moves.room() > 0 {
            let (heavy, top) = self.top();
            if top <= self.mean.saturating_add(self.mean / TOLERANCE) {
                break;
            }
            let Some(change) = self.best(heavy, top, moves.room() >= 2) else { break };
            if top - change.top < self.gain_min() {
                break;
            }
            self.apply(&mut moves, Some(change.away), heavy, change.to);
            self.apply(&mut moves, change.back, change.to, heavy);
        }
        moves
    }

    fn queues_with_sums(&self) -> impl Iterator<Item = (u8, u64)> {
        (0..self.queues).zip(self.sums.iter().copied())
    }

    /// Returns the most loaded queue.
    fn top(&self) -> (u8, u64) {
        self.queues_with_sums().max_by_key(|(_, sum)| *sum).unwrap_or((0, 0))
    }

    /// Returns the buckets that may move, with their queues and loads.
    fn movable(&self) -> impl Iterator<Item = (Bucket, u8, u64)> {
        let places = self.table.iter().zip(self.rest).zip(&self.load.buckets);
        let all = Bucket::all().zip(places);
        all.filter(|(_, ((_, rest), _))| **rest == 0)
            .map(|(bucket, ((queue, _), load))| (bucket, *queue, *load))
    }

    /// Returns the movable buckets of a queue.
    fn of_queue(&self, queue: u8) -> impl Iterator<Item = (Bucket, u64)> {
        self.movable().filter(move |(_, at, _)| *at == queue).map(|(one, _, load)| (one, load))
    }

    /// Returns the change after which the larger of both queues is smallest. Prefers a move to a
    /// swap.
    fn best(&self, heavy: u8, top: u64, swaps: bool) -> Option<Change> {
        let (light, least) = self.queues_with_sums().min_by_key(|(_, sum)| *sum)?;
        let mut best: Option<Change> = None;
        let mut see = |change: Change| {
            if change.top < best.map_or(top, |best| best.top) {
                best = Some(change);
            }
        };
        for (away, load) in self.of_queue(heavy).filter(|(_, load)| *load > 0) {
            let after = (top - load).max(least.saturating_add(load));
            see(Change { top: after, away, to: light, back: None });
        }
        for (away, load) in self.of_queue(heavy).filter(|(_, load)| *load > 0 && swaps) {
            for (to, sum) in self.queues_with_sums().filter(|(to, _)| *to != heavy) {
                for (back, less) in self.of_queue(to).filter(|(_, less)| *less < load) {
                    let moved = load - less;
                    let after = (top - moved).max(sum.saturating_add(moved));
                    see(Change { top: after, away, to, back: Some(back) });
                }
            }
        }
        best
    }

    fn load_of(&self, bucket: Bucket) -> u64 {
        self.load.buckets.get(bucket.index()).copied().unwrap_or(0)
    }

    fn apply(&mut self, moves: &mut Moves, bucket: Option<Bucket>, from: u8, to: u8) {
        let Some(bucket) = bucket else { return };
        let load = self.load_of(bucket);
        self.take_from(from, load);
        if let Some(sum) = self.sums.get_mut(usize::from(to)) {
            *sum = sum.saturating_add(load);
        }
        if let Some(place) = self.table.get_mut(bucket.index()) {
            *place = to;
        }
        moves.add(Move { bucket, from, to });
    }

    fn take_from(&mut self, queue: u8, load: u64) {
        if let Some(sum) = self.sums.get_mut(usize::from(queue)) {
            *sum = sum.saturating_sub(load);
        }
    }

    /// Redistributes the hottest buckets, if that brings the most loaded queue below `top`.
    fn deal(mut self, top: u64) -> Option<Moves> {
        let mut hot = [None; HANDS];
        for one in self.movable().filter(|(.., load)| *load >= self.gain_min()) {
            sort_in(&mut hot, one);
        }
        let mut hot_buckets = [HotBucket::default(); HANDS];
        let mut count = 0;
        for (hot_bucket, (_, now, load)) in hot_buckets.iter_mut().zip(hot.iter().flatten()) {
            *hot_bucket = HotBucket { load: *load, now: *now };
            self.take_from(*now, *load);
            count += 1;
        }
        let hot_buckets = hot_buckets.get(..count)?;
        let least =
            hot_buckets.first().map_or(self.mean, |hot_bucket| hot_bucket.load.max(self.mean));
        let below = top.checked_sub(self.gain_min()).filter(|below| *below > least)?;
        let sums = self.sums.get_mut(..usize::from(self.queues))?;
        let (queues, _) = Redistribution::search(hot_buckets, sums, below, least)?;
        let mut moves = Moves::default();
        for ((bucket, from, _), to) in hot.into_iter().flatten().zip(queues) {
            if from != to {
                moves.add(Move { bucket, from, to });
            }
        }
        Some(moves)
    }
}

/// Inserts a bucket into the list of the heaviest, heaviest first.
fn sort_in(hot: &mut [Option<(Bucket, u8, u64)>; HANDS], mut one: (Bucket, u8, u64)) {
    for place in hot {
        match place {
            Some(there) if there.2 >= one.2 => {}
            Some(there) => std::mem::swap(there, &mut one),
            None => {
                *place = Some(one);
                return;
            }
        }
    }
}

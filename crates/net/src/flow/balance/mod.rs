//! Moves buckets of hot flows from the most loaded queue to others.
//!
//! Static spreading collides: eight flows on four queues have two on each in one of 26 cases only.
//! The balancer looks at what each bucket has sent, and moves or swaps buckets as long as the most
//! loaded queue gains by it. It knows nothing of time but what it is told, and nothing of frames.

mod plan;
mod redistribute;

use super::BUCKETS;
use super::indirection::{Bucket, QUEUES_MAX, in_turn};
use plan::BalancePlan;

/// Shortest time between two looks, in nanoseconds: longer than a burst of a flow, shorter than
/// what somebody would call slow.
pub const INTERVAL_NS: u64 = 100_000_000;
/// Most moves in one interval: each makes a guest's CPU fetch a flow's state from another's.
pub const MOVES_MAX: usize = 8;
/// Intervals for which a bucket whose move was given up stays where it is.
const REST: u8 = 16;

/// What was sent in some time, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// By bucket.
    pub buckets: [u64; BUCKETS],
    /// What has no flow and always goes to queue 0.
    pub unhashed: u64,
    /// By queue: what others send there, who balance it themselves.
    pub others: [u64; QUEUES_MAX as usize],
}

impl Default for Load {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], unhashed: 0, others: [0; QUEUES_MAX as usize] }
    }
}

impl Load {
    /// All of it but what others send.
    pub fn own(&self) -> u64 {
        self.buckets.iter().fold(self.unhashed, |sum, one| sum.saturating_add(*one))
    }
}

/// A bucket goes to another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub bucket: Bucket,
    /// From where.
    pub from: u8,
    /// To where.
    pub to: u8,
}

/// What is to be moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moves {
    list: [Option<Move>; MOVES_MAX],
    len: usize,
}

impl Moves {
    /// In the order in which they were decided on.
    pub fn iter(&self) -> impl Iterator<Item = Move> {
        self.list.into_iter().flatten()
    }

    fn room(&self) -> usize {
        MOVES_MAX - self.len
    }

    fn add(&mut self, one: Move) {
        if let Some(place) = self.list.get_mut(self.len) {
            *place = Some(one);
            self.len += 1;
        }
    }
}

/// Decides for one receiver, and one of those who send to it.
#[derive(Debug)]
pub struct Balancer {
    queues: u8,
    table: [u8; BUCKETS],
    rest: [u8; BUCKETS],
    load: Load,
    due_ns: u64,
}

impl Balancer {
    /// Buckets in turn over `queues`, as in a new [`super::IndirectionTable`].
    pub fn new(queues: u8) -> Self {
        let queues = queues.clamp(1, QUEUES_MAX);
        let mut table = [0; BUCKETS];
        table.iter_mut().zip(in_turn(queues)).for_each(|(place, queue)| *place = queue);
        Self { queues, table, rest: [0; BUCKETS], load: Load::default(), due_ns: 0 }
    }

    /// The queue that a bucket is to have.
    pub fn queue(&self, bucket: Bucket) -> u8 {
        self.table.get(bucket.index()).copied().unwrap_or(0)
    }

    /// When it wants to look again, in nanoseconds. Nothing has to wake up for that: with the next
    /// frames is early enough.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Looks at what was sent since the last time. Before it is due it does nothing,
    /// and takes nothing of `load`.
    pub fn tick(&mut self, now_ns: u64, load: &mut Load) -> Moves {
        if now_ns < self.due_ns {
            return Moves::default();
        }
        self.due_ns = now_ns.saturating_add(INTERVAL_NS);
        // Half of it is new: one interval's chance moves little.
        let blend = |old: &mut u64, new: u64| *old = *old / 2 + new / 2;
        let news = std::mem::take(load);
        blend(&mut self.load.unhashed, news.unhashed);
        for (old, new) in self.load.buckets.iter_mut().zip(news.buckets) {
            blend(old, new);
        }
        // Those are blended already.
        self.load.others = news.others;
        let moves = BalancePlan::new(self).make();
        for Move { bucket, to, .. } in moves.iter() {
            if let Some(now) = self.table.get_mut(bucket.index()) {
                *now = to;
            }
        }
        self.rest.iter_mut().for_each(|rest| *rest = rest.saturating_sub(1));
        moves
    }

    /// Too little was sent since the last time for a move to be worth it: what was before is
    /// forgotten.
    pub fn rest(&mut self, now_ns: u64) {
        self.due_ns = now_ns.saturating_add(INTERVAL_NS);
        self.load = Load::default();
    }

    /// A bucket could not be moved: it stays on `queue`, and is left alone for a while.
    pub fn stuck(&mut self, bucket: Bucket, queue: u8) {
        let at = bucket.index();
        if let (Some(now), Some(rest)) = (self.table.get_mut(at), self.rest.get_mut(at)) {
            (*now, *rest) = (queue, REST);
        }
    }

    /// By queue: what is sent to it by whom this decides for, as all buckets are to be.
    pub fn sums(&self) -> [u64; QUEUES_MAX as usize] {
        let mut sums = [0u64; QUEUES_MAX as usize];
        if let Some(first) = sums.first_mut() {
            *first = self.load.unhashed;
        }
        for (queue, load) in self.table.iter().zip(self.load.buckets) {
            if let Some(sum) = sums.get_mut(usize::from(*queue)) {
                *sum = sum.saturating_add(load);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests;

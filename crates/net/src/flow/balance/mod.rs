//! Moves buckets of hot flows from the most loaded queue to others.
//!
//! Static spreading collides: eight flows on four queues have two on each in only one of 26 cases.
//! The balancer reads the load of each bucket, and moves or swaps buckets as long as the most
//! loaded queue gains by it. The caller passes the time; the balancer reads no clock and no frames.

mod plan;
mod redistribute;

use super::BUCKETS;
use super::indirection::{Bucket, QUEUES_MAX, in_turn};
use plan::BalancePlan;

/// Shortest time between two balancing passes, in nanoseconds: longer than a burst of a flow,
/// shorter than a delay that users notice.
pub const INTERVAL_NS: u64 = 100_000_000;
/// Most moves in one interval: each makes a guest's CPU fetch a flow's state from another's cache.
pub const MOVES_MAX: usize = 8;
/// Intervals for which a bucket is not moved after its move was cancelled.
const REST: u8 = 16;

/// Load sent in an interval, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Load by bucket.
    pub buckets: [u64; BUCKETS],
    /// Load without a flow, which always goes to queue 0.
    pub unhashed: u64,
    /// Load by queue from other reactors, which balance it themselves.
    pub others: [u64; QUEUES_MAX as usize],
}

impl Default for Load {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], unhashed: 0, others: [0; QUEUES_MAX as usize] }
    }
}

impl Load {
    /// Returns the load without that of other reactors.
    pub fn own(&self) -> u64 {
        self.buckets.iter().fold(self.unhashed, |sum, one| sum.saturating_add(*one))
    }
}

/// Move of a bucket to another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Bucket to move.
    pub bucket: Bucket,
    /// Current queue.
    pub from: u8,
    /// New queue.
    pub to: u8,
}

/// Moves of one interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moves {
    list: [Option<Move>; MOVES_MAX],
    len: usize,
}

impl Moves {
    /// Returns the moves in the order of their decision.
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

/// Balancer for one receiver and one of the reactors that send to it.
#[derive(Debug)]
pub struct Balancer {
    queues: u8,
    table: [u8; BUCKETS],
    rest: [u8; BUCKETS],
    load: Load,
    due_ns: u64,
}

impl Balancer {
    /// Creates a balancer with the buckets distributed round-robin over `queues`, as in a new
    /// [`super::IndirectionTable`].
    pub fn new(queues: u8) -> Self {
        let queues = queues.clamp(1, QUEUES_MAX);
        let mut table = [0; BUCKETS];
        table.iter_mut().zip(in_turn(queues)).for_each(|(place, queue)| *place = queue);
        Self { queues, table, rest: [0; BUCKETS], load: Load::default(), due_ns: 0 }
    }

    /// Returns the queue that a bucket is assigned to.
    pub fn queue(&self, bucket: Bucket) -> u8 {
        self.table.get(bucket.index()).copied().unwrap_or(0)
    }

    /// Returns the time of the next pass, in nanoseconds. No timer is needed: a pass with the next
    /// frames is early enough.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Makes a pass over the load since the last one. Before the pass is due, this does nothing and
    /// takes nothing from `load`.
    pub fn tick(&mut self, now_ns: u64, load: &mut Load) -> Moves {
        if now_ns < self.due_ns {
            return Moves::default();
        }
        self.due_ns = now_ns.saturating_add(INTERVAL_NS);
        // Average with the past, so that the chance of one interval moves little.
        let blend = |old: &mut u64, new: u64| *old = *old / 2 + new / 2;
        let news = std::mem::take(load);
        blend(&mut self.load.unhashed, news.unhashed);
        for (old, new) in self.load.buckets.iter_mut().zip(news.buckets) {
            blend(old, new);
        }
        // The load from other reactors is averaged already.
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

    /// Skips a pass because too little was sent for a move to be worth it. Forgets the load so far.
    pub fn rest(&mut self, now_ns: u64) {
        self.due_ns = now_ns.saturating_add(INTERVAL_NS);
        self.load = Load::default();
    }

    /// Records that a bucket could not be moved: it stays on `queue` and is not moved for a while.
    pub fn stuck(&mut self, bucket: Bucket, queue: u8) {
        let at = bucket.index();
        if let (Some(now), Some(rest)) = (self.table.get_mut(at), self.rest.get_mut(at)) {
            (*now, *rest) = (queue, REST);
        }
    }

    /// Returns the load by queue that this reactor sends, after all decided moves.
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

//! One reactor's way of spreading a receiver's frames over its queues, kept even.

use std::sync::Arc;

use super::BUCKETS;
use super::balance::{Balancer, Load};
use super::shares::Shares;
use super::steering::{QUEUES_MAX, Steering};

/// Units of work that a reactor must have sent since the last look for queues to be balanced: at
/// less than 10 MB a second no CPU of a guest is busy, and each move costs one of them its cache.
pub const WORTH: u64 = 1 << 20;

/// Which queue of a receiver a frame goes to, as one reactor sees it.
#[derive(Debug)]
pub struct Spread {
    queues: u8,
    steering: Steering,
    balancer: Balancer,
    shares: Arc<Shares>,
    /// Which of the shares is ours.
    number: usize,
}

impl Spread {
    /// For frames that reactor `number` sends to a receiver, with one queue.
    pub fn new(shares: Arc<Shares>, number: usize) -> Self {
        Self { queues: 1, steering: Steering::new(1), balancer: Balancer::new(1), shares, number }
    }

    /// The receiver has another number of queues, from 1 to [`QUEUES_MAX`], and none of them holds
    /// a frame.
    pub fn set_queues(&mut self, queues: u8) {
        self.queues = queues.clamp(1, QUEUES_MAX);
        self.steering.set_queues(self.queues);
        self.balancer = Balancer::new(self.queues);
    }

    /// There is more than one queue: positions are asked for.
    pub fn is_wide(&self) -> bool {
        self.queues > 1
    }

    /// The queue for a frame; see [`Steering::pick`].
    pub fn pick(
        &mut self,
        hash: Option<u32>,
        now_ns: u64,
        taken: impl FnOnce(u8, u64) -> bool,
    ) -> u8 {
        self.steering.pick(hash, now_ns, taken)
    }

    /// The frame went to the queue that was picked, at `position`; see [`Steering::sent`].
    pub fn sent(&mut self, hash: Option<u32>, position: u64, units: u64, now_ns: u64) {
        self.steering.sent(hash, position, units, now_ns);
        self.look(now_ns);
    }

    /// The frame was lost on its way to the queue that was picked; see [`Steering::lost`].
    pub fn lost(&mut self, hash: Option<u32>, units: u64, now_ns: u64) {
        self.steering.lost(hash, units);
        self.look(now_ns);
    }

    fn look(&mut self, now_ns: u64) {
        if now_ns >= self.balancer.due_ns() && self.is_wide() {
            self.balance(now_ns);
        }
    }

    #[cold]
    fn balance(&mut self, now_ns: u64) {
        self.give_up(now_ns);
        let mut load = Load::default();
        self.steering.read(&mut load);
        if load.own() < WORTH {
            self.balancer.rest(now_ns);
            return self.shares.tell(self.number, now_ns, &self.balancer.sums(), 0);
        }
        load.others = self.shares.others(self.number, now_ns);
        let mut moves = 0;
        for step in self.balancer.tick(now_ns, &mut load).iter() {
            self.steering.want(step.bucket, step.to, now_ns);
            moves += 1;
        }
        self.shares.tell(self.number, now_ns, &self.balancer.sums(), moves);
    }

    /// Moves that have waited for too long are not made.
    fn give_up(&mut self, now_ns: u64) {
        let mut late = [None; BUCKETS];
        let overdue = self.steering.overdue(now_ns).map(Some);
        late.iter_mut().zip(overdue).for_each(|(place, bucket)| *place = bucket);
        for bucket in late.into_iter().flatten() {
            let queue = self.steering.queue(bucket);
            self.steering.want(bucket, queue, now_ns);
            self.balancer.stuck(bucket, queue);
        }
    }
}

#[cfg(test)]
mod tests;

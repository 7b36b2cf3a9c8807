//! One reactor's way of spreading a receiver's frames over its queues, kept even.

use std::sync::Arc;

use super::BUCKETS;
use super::balance::{Balancer, Load};
use super::indirection::{IndirectionTable, QUEUES_MAX};
use super::queue_loads::QueueLoads;

/// Units of work that a reactor must have sent since the last look for queues to be balanced: at
/// less than 10 MB a second no CPU of a guest is busy, and each move costs one of them its cache.
pub const WORTH: u64 = 1 << 20;

/// Which queue of a receiver a frame goes to, as one reactor sees it.
#[derive(Debug)]
pub struct QueueSelector {
    /// With more than one queue: 10 KiB that others do without.
    multi_queue: Option<Box<MultiQueue>>,
    queue_loads: Arc<QueueLoads>,
    /// Which of the shares is ours.
    number: usize,
}

/// The queues of buckets, and what they are to be.
#[derive(Debug)]
struct MultiQueue {
    indirection_table: IndirectionTable,
    balancer: Balancer,
}

impl QueueSelector {
    /// For frames that reactor `number` sends to a receiver, with one queue.
    pub fn new(queue_loads: Arc<QueueLoads>, number: usize) -> Self {
        Self { multi_queue: None, queue_loads, number }
    }

    /// The receiver has another number of queues, at most [`QUEUES_MAX`], and none of them holds a
    /// frame.
    pub fn set_queues(&mut self, queues: u8) {
        let (queues, wide) = (queues.min(QUEUES_MAX), queues > 1);
        self.multi_queue = wide.then(|| {
            let (indirection_table, balancer) =
                (IndirectionTable::new(queues), Balancer::new(queues));
            Box::new(MultiQueue { indirection_table, balancer })
        });
    }

    /// There is more than one queue: positions are asked for.
    pub fn is_wide(&self) -> bool {
        self.multi_queue.is_some()
    }

    /// The queue for a frame; see [`IndirectionTable::pick`].
    pub fn pick(
        &mut self,
        hash: Option<u32>,
        now_ns: u64,
        taken: impl FnOnce(u8, u64) -> Option<bool>,
    ) -> u8 {
        self.multi_queue
            .as_mut()
            .map_or(0, |multi_queue| multi_queue.indirection_table.pick(hash, now_ns, taken))
    }

    /// The frame went to the queue that was picked, at `position`; see [`IndirectionTable::sent`].
    pub fn sent(&mut self, hash: Option<u32>, position: u64, units: u64, now_ns: u64) {
        if let Some(multi_queue) = &mut self.multi_queue {
            multi_queue.indirection_table.sent(hash, position, units, now_ns);
            multi_queue.look(&self.queue_loads, self.number, now_ns);
        }
    }

    /// The frame was lost on its way to the queue that was picked; see [`IndirectionTable::lost`].
    pub fn lost(&mut self, hash: Option<u32>, units: u64, now_ns: u64) {
        if let Some(multi_queue) = &mut self.multi_queue {
            multi_queue.indirection_table.lost(hash, units);
            multi_queue.look(&self.queue_loads, self.number, now_ns);
        }
    }
}

impl MultiQueue {
    fn look(&mut self, queue_loads: &QueueLoads, number: usize, now_ns: u64) {
        if now_ns >= self.balancer.due_ns() {
            self.balance(queue_loads, number, now_ns);
        }
    }

    #[cold]
    fn balance(&mut self, queue_loads: &QueueLoads, number: usize, now_ns: u64) {
        self.give_up(now_ns);
        let mut load = Load::default();
        self.indirection_table.read(&mut load);
        if load.own() < WORTH {
            self.balancer.rest(now_ns);
            return queue_loads.tell(number, now_ns, &self.balancer.sums(), 0);
        }
        load.others = queue_loads.others(number, now_ns);
        let mut moves = 0;
        for step in self.balancer.tick(now_ns, &mut load).iter() {
            self.indirection_table.want(step.bucket, step.to, now_ns);
            moves += 1;
        }
        queue_loads.tell(number, now_ns, &self.balancer.sums(), moves);
    }

    /// Moves that have waited for too long are not made.
    fn give_up(&mut self, now_ns: u64) {
        let mut late = [None; BUCKETS];
        let overdue = self.indirection_table.overdue(now_ns).map(Some);
        late.iter_mut().zip(overdue).for_each(|(place, bucket)| *place = bucket);
        for bucket in late.into_iter().flatten() {
            let queue = self.indirection_table.queue(bucket);
            self.indirection_table.want(bucket, queue, now_ns);
            self.balancer.stuck(bucket, queue);
        }
    }
}

#[cfg(test)]
mod tests;

//! Selects a receiver's queue for each frame of one reactor, and balances the queues.

use std::sync::Arc;

use super::BUCKETS;
use super::balance::{Balancer, Load};
use super::indirection::{IndirectionTable, QUEUES_MAX};
use super::queue_loads::QueueLoads;

/// Work that a reactor must have sent since the last pass for the queues to be balanced. At less
/// than 10 MB a second no CPU of a guest is busy, and each move costs one of them its cache.
pub const WORTH: u64 = 1 << 20;

/// Selector of a receiver's queue for the frames of one reactor.
#[derive(Debug)]
pub struct QueueSelector {
    /// State for more than one queue: 10 KiB that receivers with one queue do not need.
    multi_queue: Option<Box<MultiQueue>>,
    queue_loads: Arc<QueueLoads>,
    /// Index of this reactor's load in `queue_loads`.
    number: usize,
}

/// Current queues of the buckets, and the wanted ones.
#[derive(Debug)]
struct MultiQueue {
    indirection_table: IndirectionTable,
    balancer: Balancer,
}

impl QueueSelector {
    /// Creates a selector for frames that reactor `number` sends to a receiver, with one queue.
    pub fn new(queue_loads: Arc<QueueLoads>, number: usize) -> Self {
        Self { multi_queue: None, queue_loads, number }
    }

    /// Changes the number of queues, at most [`QUEUES_MAX`]. No queue may contain a frame.
    pub fn set_queues(&mut self, queues: u8) {
        let (queues, wide) = (queues.min(QUEUES_MAX), queues > 1);
        self.multi_queue = wide.then(|| {
            let (indirection_table, balancer) =
                (IndirectionTable::new(queues), Balancer::new(queues));
            Box::new(MultiQueue { indirection_table, balancer })
        });
    }

    /// Returns whether there is more than one queue, so that positions are needed.
    pub fn is_multi_queue(&self) -> bool {
        self.multi_queue.is_some()
    }

    /// Returns the queue for a frame; see [`IndirectionTable::pick`].
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

    /// Records that the frame went to the selected queue at `position`; see
    /// [`IndirectionTable::sent`].
    pub fn sent(&mut self, hash: Option<u32>, position: u64, units: u64, now_ns: u64) {
        if let Some(multi_queue) = &mut self.multi_queue {
            multi_queue.indirection_table.sent(hash, position, units, now_ns);
            multi_queue.balance_if_due(&self.queue_loads, self.number, now_ns);
        }
    }

    /// Records that the frame was dropped before the selected queue; see
    /// [`IndirectionTable::lost`].
    pub fn lost(&mut self, hash: Option<u32>, units: u64, now_ns: u64) {
        if let Some(multi_queue) = &mut self.multi_queue {
            multi_queue.indirection_table.lost(hash, units);
            multi_queue.balance_if_due(&self.queue_loads, self.number, now_ns);
        }
    }
}

impl MultiQueue {
    fn balance_if_due(&mut self, queue_loads: &QueueLoads, number: usize, now_ns: u64) {
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
            return queue_loads.publish(number, now_ns, &self.balancer.sums(), 0);
        }
        load.others = queue_loads.others(number, now_ns);
        let mut moves = 0;
        for step in self.balancer.tick(now_ns, &mut load).iter() {
            self.indirection_table.want(step.bucket, step.to, now_ns);
            moves += 1;
        }
        queue_loads.publish(number, now_ns, &self.balancer.sums(), moves);
    }

    /// Cancels moves that have waited for too long.
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

//! Load that each reactor sends to each queue of a receiver.

use std::sync::atomic::{AtomicU64, Ordering};

use super::balance::INTERVAL_NS;
use super::indirection::QUEUES_MAX;

const QUEUES: usize = QUEUES_MAX as usize;
/// Age in nanoseconds after which a published load no longer counts: a sending reactor publishes in
/// every interval.
const STALE_NS: u64 = 3 * INTERVAL_NS;

/// Loads of all reactors. Each reactor writes its own load and sometimes reads those of the others.
#[derive(Debug)]
pub struct QueueLoads(Box<[Share]>);

/// Load of one reactor.
#[derive(Debug)]
#[repr(align(128))]
struct Share {
    published_ns: AtomicU64,
    queues: [AtomicU64; QUEUES],
    moves: AtomicU64,
}

impl QueueLoads {
    /// Creates the loads of `reactors` reactors, all zero.
    pub fn new(reactors: usize) -> Self {
        let share = || Share {
            published_ns: AtomicU64::new(0),
            queues: [const { AtomicU64::new(0) }; QUEUES],
            moves: AtomicU64::new(0),
        };
        Self((0..reactors).map(|_| share()).collect())
    }

    /// Publishes the load by queue of reactor `number` as of `now_ns`, with the number of moves
    /// that the reactor requested for it. Only that reactor may call this.
    pub(super) fn publish(&self, number: usize, now_ns: u64, sums: &[u64; QUEUES], moves: u64) {
        let Some(share) = self.0.get(number) else { return };
        for (place, sum) in share.queues.iter().zip(sums) {
            place.store(*sum, Ordering::Relaxed);
        }
        // With one writer, no read-modify-write is needed.
        let all = share.moves.load(Ordering::Relaxed).wrapping_add(moves);
        share.moves.store(all, Ordering::Relaxed);
        share.published_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Returns the load by queue of all reactors but `number`. A load that is published at this
    /// moment may be read in part: all of these numbers are estimates.
    pub(super) fn others(&self, number: usize, now_ns: u64) -> [u64; QUEUES] {
        let mut sums = [0u64; QUEUES];
        let fresh = |share: &Share| {
            now_ns.saturating_sub(share.published_ns.load(Ordering::Relaxed)) < STALE_NS
        };
        let others = self.0.iter().enumerate().filter(|(at, _)| *at != number);
        for (_, share) in others.filter(|(_, share)| fresh(share)) {
            for (sum, more) in sums.iter_mut().zip(&share.queues) {
                *sum = sum.saturating_add(more.load(Ordering::Relaxed));
            }
        }
        sums
    }

    /// Returns the number of moves of buckets requested so far.
    pub fn moves(&self) -> u64 {
        self.0.iter().map(|share| share.moves.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_heard_until_what_they_said_is_old() {
        let queue_loads = QueueLoads::new(3);
        let load = |units| {
            let mut sums = [0; QUEUES];
            sums[2] = units;
            sums
        };
        queue_loads.publish(0, 1000, &load(5), 1);
        queue_loads.publish(1, 2000, &load(7), 2);
        queue_loads.publish(9, 2000, &load(99), 9);
        assert_eq!((queue_loads.others(0, 2000)[2], queue_loads.others(2, 2000)[2]), (7, 12));
        assert_eq!(queue_loads.others(2, 1000 + STALE_NS)[2], 7);
        assert_eq!(queue_loads.others(2, 2000 + STALE_NS), [0; QUEUES]);
        assert_eq!(queue_loads.moves(), 3);
    }
}

//! Reactor of the simulation.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::{Random, US};
use crate::dispatch_queue::{DispatchQueue, Permit};

/// Cells of the shared state.
pub(super) type SimCells = Arc<[AtomicU64]>;

/// Time for which a reactor polls after its last work.
const POLL_NS: u64 = 50 * US;

#[derive(Debug)]
pub(super) struct Reactor {
    /// `None` without a scheduler.
    pub(super) queue: Option<DispatchQueue<SimCells, u32>>,
    /// Requests that have arrived, of each disk.
    pub(super) rings: Vec<VecDeque<u32>>,
    /// Disks with new requests.
    pub(super) arrived: Vec<usize>,
    /// Requests of which a part has completed, with its permit.
    pub(super) completed: Vec<(u32, Option<Permit>)>,
    /// Time of the next turn.
    pub(super) turn_at: u64,
    pub(super) busy_until: u64,
    poll_until: u64,
}

impl Reactor {
    pub(super) fn new(queue: Option<DispatchQueue<SimCells, u32>>, disks: usize) -> Self {
        Self {
            queue,
            rings: vec![VecDeque::new(); disks],
            arrived: Vec::new(),
            completed: Vec::new(),
            turn_at: u64::MAX,
            busy_until: 0,
            poll_until: 0,
        }
    }

    /// Returns when it takes what happens now: after a poll, or after its wake-up.
    pub(super) fn notices_at(&self, now: u64, random: &mut Random) -> u64 {
        let delay = if now < self.poll_until {
            random.range(200, 1_000)
        } else {
            random.range(4 * US, 10 * US)
        };
        now.max(self.busy_until) + delay
    }

    /// Ends a turn of so many steps. Now and then the host takes the CPU away.
    pub(super) fn end_turn(&mut self, now: u64, steps: u64, stalls: u64, random: &mut Random) {
        let stall = if stalls > 0 && random.one_in(2_000) { random.below(stalls) } else { 0 };
        self.busy_until = now + 300 * steps + stall;
        self.poll_until = self.busy_until + POLL_NS;
    }
}

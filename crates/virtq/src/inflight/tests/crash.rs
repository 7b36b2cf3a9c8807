//! Simulated processes ("lives") that die after any store, and their successors, against an oracle.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::crash::{live, made};
use crate::driver::{BUFFERS, Driver, INDIRECT, NEXT, WRITE};
use crate::inflight::InflightRegion;
use crate::{Chain, Queue};

const SIZE: u16 = 8;

/// One step of a test. Each makes at most one call on the ring.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// The driver offers this number of requests, as far as it has descriptors.
    Offer(u16),
    Pop,
    /// The device completes one of the popped chains.
    Push(usize),
    Publish,
    /// The driver takes all completions.
    Collect,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1u16..5).prop_map(Op::Offer),
        4 => Just(Op::Pop),
        4 => (0usize..16).prop_map(Op::Push),
        2 => Just(Op::Publish),
        1 => Just(Op::Collect),
    ]
}

/// Expected state, by the rules in the documentation of `inflight`.
#[derive(Default)]
struct Oracle {
    /// Heads that are available and not popped, in order.
    offered: VecDeque<u16>,
    /// Heads that a former life left in flight, in order.
    again: VecDeque<u16>,
    /// Recorded heads, in the order in which they were popped.
    recorded: Vec<u16>,
    /// Heads pushed since the last publish.
    batch: Vec<u16>,
    used: u16,
}

/// A guest, its expectations, and the region that its front-end stores.
struct World {
    driver: Driver,
    region: InflightRegion,
    oracle: Oracle,
    free: VecDeque<u16>,
    /// Number of the request that each head carries now.
    outstanding: [Option<u64>; SIZE as usize],
    requests: u64,
    /// Number of times that each request was executed.
    executed: Vec<u32>,
    completed: u64,
}

/// A process that serves the ring.
struct Life {
    queue: Queue,
    chains: Vec<Chain>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.chains.drain(..).for_each(Chain::abandon);
    }
}

impl World {
    fn new(start: u16) -> Self {
        let mut driver = Driver::new(SIZE, BUFFERS + 0x1_0000, true);
        driver.start_at(start);
        Self {
            driver,
            region: InflightRegion::create(1, SIZE).unwrap(),
            oracle: Oracle { used: start, ..Oracle::default() },
            free: (0..SIZE).collect(),
            outstanding: [None; SIZE as usize],
            requests: 0,
            executed: Vec::new(),
            completed: 0,
        }
    }

    /// Starts a life, which must take over exactly what the former life left.
    fn start(&self) -> Life {
        let mut config = self.driver.config;
        // An arbitrary base, as from a front-end that lost its backend.
        config.next_avail = 0x5555;
        let part = self.region.queue(0);
        let queue = Queue::new(config, self.driver.table.clone(), part).unwrap();
        let left = self.oracle.recorded.len() as u16;
        assert_eq!(queue.resubmitted(), left);
        assert_eq!(queue.next_avail(), self.oracle.used.wrapping_add(left));
        assert_eq!(self.driver.used_idx(), self.oracle.used);
        Life { queue, chains: Vec::new() }
    }

    fn offer(&mut self, count: u16) {
        for _ in 0..count {
            let Some(head) = self.free.pop_front() else { break };
            let at = BUFFERS + 64 * u64::from(head);
            self.driver.write(at, &self.requests.to_le_bytes());
            if head % 2 == 0 {
                self.driver.write(at + 16, &Driver::descriptor(at, 8, NEXT, 1));
                self.driver.write(at + 32, &Driver::descriptor(at + 8, 8, WRITE, 0));
                self.driver.put_desc(head, at + 16, 32, INDIRECT, 0);
            } else {
                self.driver.put_desc(head, at, 8, 0, 0);
            }
            self.driver.offer(head);
            self.outstanding[usize::from(head)] = Some(self.requests);
            self.oracle.offered.push_back(head);
            self.executed.push(0);
            self.requests += 1;
        }
        self.driver.publish();
    }

    fn collect(&mut self) {
        while let Some((head, written)) = self.driver.used() {
            let request = self.outstanding[head as usize].take().expect("completed once");
            assert_eq!(u64::from(written), request % 1000, "its own completion");
            assert!(self.executed[request as usize] > 0, "completed without being executed");
            self.free.push_back(head as u16);
            self.completed += 1;
        }
    }

    fn pop(&mut self, life: &mut Life) {
        let expected = match self.oracle.again.front() {
            Some(head) => Some(*head),
            None => self.oracle.offered.front().copied(),
        };
        let before = made();
        // The call records the request before it returns.
        let chain = life.queue.pop().unwrap();
        assert_eq!(chain.as_ref().map(Chain::head), expected);
        let Some(chain) = chain else { return };
        let mut number = [0; 8];
        assert_eq!(chain.readable.peek(&mut number), 8);
        let number = u64::from_le_bytes(number);
        assert_eq!(self.outstanding[usize::from(chain.head())], Some(number));
        self.executed[number as usize] += 1;
        if self.oracle.again.pop_front().is_none() {
            assert_eq!(made() - before, 2, "two stores for each pop");
            self.popped();
        }
        life.chains.push(chain);
    }

    fn popped(&mut self) {
        self.oracle.recorded.extend(self.oracle.offered.pop_front());
    }

    fn push(&mut self, life: &mut Life, which: usize) {
        if life.chains.is_empty() {
            return;
        }
        let chain = life.chains.swap_remove(which % life.chains.len());
        let request = self.outstanding[usize::from(chain.head())].unwrap();
        self.oracle.batch.push(chain.head());
        life.queue.push(chain, (request % 1000) as u32);
    }

    fn published(&mut self) {
        let batch = std::mem::take(&mut self.oracle.batch);
        self.oracle.recorded.retain(|head| !batch.contains(head));
        self.oracle.used = self.oracle.used.wrapping_add(batch.len() as u16);
    }

    fn step(&mut self, life: &mut Life, op: Op) {
        match op {
            Op::Offer(count) => self.offer(count),
            Op::Pop => self.pop(life),
            Op::Push(which) => self.push(life, which),
            Op::Publish => {
                let _ = life.queue.publish();
                self.published();
            }
            Op::Collect => self.collect(),
        }
    }

    /// Runs `ops` until one dies after store `last`. Returns the remaining ones in that case.
    fn run<'a>(&mut self, life: &mut Life, ops: &'a [Op], mut last: u64) -> Option<&'a [Op]> {
        for (at, op) in ops.iter().enumerate() {
            let recovered = !self.oracle.again.is_empty();
            let batch = self.oracle.batch.len() as u64;
            match live(last, || self.step(life, *op)) {
                Ok(()) => last = last.saturating_sub(made()),
                Err(_) => {
                    // The life died after store number `last` of this operation, counted from 0.
                    match op {
                        Op::Pop if last == 1 && !recovered => self.popped(),
                        Op::Publish if last > batch => self.published(),
                        _ => {}
                    }
                    return Some(ops.get(at + 1..).unwrap_or_default());
                }
            }
        }
        None
    }

    /// Ends a life, and updates the oracle for its successor.
    fn died(&mut self, life: Life) {
        drop(life);
        self.oracle.batch.clear();
        self.oracle.again = self.oracle.recorded.iter().copied().collect();
    }

    /// Starts a successor that dies after store `last` of its recovery, if there are so many.
    fn start_and_die(&self, last: u64) -> Option<Life> {
        live(last, || self.start()).ok()
    }

    /// Serves all remaining requests and checks that none is missing.
    fn finish(mut self, mut life: Life) {
        while !self.oracle.again.is_empty() || !self.oracle.offered.is_empty() {
            self.pop(&mut life);
        }
        while !life.chains.is_empty() {
            self.push(&mut life, 0);
        }
        self.step(&mut life, Op::Publish);
        self.collect();
        assert_eq!(self.completed, self.requests, "none lost");
        assert!(self.executed.iter().all(|times| *times > 0));
        assert_eq!(life.queue.next_avail(), self.driver.used_idx());
        // The queue is drained: its region records nothing, and fits this ring or any other.
        self.died(life);
        assert_eq!(self.start().queue.resubmitted(), 0);
        self.driver.start_at(0);
        self.oracle.used = 0;
        self.start();
    }
}

/// Runs a life that dies after store `last`, a recovery that dies after store `again`, and a third
/// life that serves the rest. Returns for both whether there were so many stores.
fn die_twice(ops: &[Op], start: u16, last: u64, again: u64, busy_driver: bool) -> (bool, bool) {
    let mut world = World::new(start);
    let mut life = world.start();
    let Some(rest) = world.run(&mut life, ops, last) else {
        world.finish(life);
        return (false, false);
    };
    world.died(life);
    if busy_driver {
        world.collect();
        world.offer(SIZE);
    }
    let second = world.start_and_die(again);
    let died = second.is_none();
    let mut third = second.unwrap_or_else(|| world.start());
    assert!(world.run(&mut third, rest, u64::MAX).is_none());
    world.finish(third);
    (true, died)
}

/// Runs many lives in a row. Each dies at some store, in its recovery or later.
fn die_often(lives: &[(u64, Vec<Op>)], start: u16) {
    let mut world = World::new(start);
    for (last, ops) in lives {
        let Some(mut life) = world.start_and_die(*last) else { continue };
        let last = last.saturating_sub(made());
        if world.run(&mut life, ops, last).is_some() {
            world.died(life);
        } else {
            // The process is killed between two calls.
            world.died(life);
        }
    }
    let life = world.start();
    world.finish(life);
}

fn any_start() -> impl Strategy<Value = u16> {
    // Values near the wrap of the index, and any others.
    prop_oneof![65520u16..=65535, Just(0), any::<u16>()]
}

proptest! {
    #[test]
    fn every_store_may_be_the_last(
        ops in prop::collection::vec(any_op(), 1..24),
        start in any_start(),
        busy_driver in any::<bool>(),
    ) {
        for last in 0.. {
            let mut again = 0;
            let (mut first, mut second) = die_twice(&ops, start, last, again, busy_driver);
            while second {
                again += 1;
                (first, second) = die_twice(&ops, start, last, again, busy_driver);
            }
            if !first {
                break;
            }
        }
    }

    #[test]
    fn many_lives_lose_nothing(
        lives in prop::collection::vec((0u64..60, prop::collection::vec(any_op(), 0..30)), 1..30),
        start in any_start(),
    ) {
        die_often(&lives, start);
    }
}

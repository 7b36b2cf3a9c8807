//! Elephant flows on a receiver's queues with a clock that the test sets: balanced, and in order.

use std::collections::{HashMap, VecDeque};

use super::*;
use crate::flow::{Bucket, INTERVAL_NS, PATIENCE_NS};

const QUEUES: usize = 4;
/// Work of a frame.
const UNITS: u64 = 64_000;
/// Time between two frames of a flow, in nanoseconds.
const STEP_NS: u64 = 400_000;

/// Random numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Frame in flight, with its position.
struct OnItsWay {
    flow: u32,
    number: u64,
    position: u64,
}

/// Receiver with its queues, and reactors that send to it.
struct Bench {
    senders: Vec<QueueSelector>,
    queues: [VecDeque<OnItsWay>; QUEUES],
    /// By sender and queue: positions that were sent, and that were consumed.
    sent: Vec<[u64; QUEUES]>,
    taken: Vec<[u64; QUEUES]>,
    next: u64,
    seen: HashMap<u32, u64>,
    /// Work of each queue since it was last read.
    work: [u64; QUEUES],
}

impl Bench {
    fn new(senders: usize) -> Self {
        let queue_loads = Arc::new(QueueLoads::new(senders));
        let spread = |number| {
            let mut queue_selector = QueueSelector::new(Arc::clone(&queue_loads), number);
            queue_selector.set_queues(QUEUES as u8);
            queue_selector
        };
        Self {
            senders: (0..senders).map(spread).collect(),
            queues: Default::default(),
            sent: vec![[0; QUEUES]; senders],
            taken: vec![[0; QUEUES]; senders],
            next: 0,
            seen: HashMap::new(),
            work: [0; QUEUES],
        }
    }

    /// Returns the sender of a flow.
    fn sender(&self, flow: u32) -> usize {
        flow as usize % self.senders.len()
    }

    fn send(&mut self, flow: u32, hash: u32, now_ns: u64) {
        let by = self.sender(flow);
        let taken = self.taken[by];
        let is_taken = |queue: u8, position| Some(position <= taken[usize::from(queue)]);
        let queue = usize::from(self.senders[by].pick(Some(hash), now_ns, is_taken));
        self.sent[by][queue] += 1;
        self.next += 1;
        let position = self.sent[by][queue];
        self.queues[queue].push_back(OnItsWay { flow, number: self.next, position });
        self.work[queue] += UNITS;
        self.senders[by].sent(Some(hash), position, UNITS, now_ns);
    }

    /// Consumes the frames of a queue in order, as a guest's CPU does.
    fn take(&mut self, queue: usize) {
        while let Some(frame) = self.queues[queue].pop_front() {
            let last = self.seen.insert(frame.flow, frame.number);
            assert!(last.is_none_or(|last| last < frame.number), "a flow was reordered");
            let by = self.sender(frame.flow);
            self.taken[by][queue] = frame.position;
        }
    }

    /// Sends frames of the flows for some time; each queue is consumed at its own times.
    fn run(&mut self, flows: &[u32], from_ns: u64, for_ns: u64, random: &mut Random) -> u64 {
        let mut now = from_ns;
        while now < from_ns + for_ns {
            for (flow, hash) in (0..).zip(flows) {
                self.send(flow, *hash, now);
                for queue in 0..QUEUES {
                    if random.next().is_multiple_of(3) {
                        self.take(queue);
                    }
                }
            }
            now += STEP_NS;
        }
        now
    }

    /// Returns the most loaded queue over mean since the last call.
    fn uneven(&mut self) -> f64 {
        let work = std::mem::take(&mut self.work);
        let most = work.iter().max().unwrap();
        *most as f64 * QUEUES as f64 / work.iter().sum::<u64>() as f64
    }
}

/// Draws eight hashes of elephant flows, at most two of which share a bucket: only buckets move.
fn draw(random: &mut Random) -> Vec<u32> {
    loop {
        let flows: Vec<_> = (0..8).map(|_| random.next() as u32).collect();
        let mut buckets: Vec<_> = flows.iter().map(|hash| Bucket::of(*hash)).collect();
        buckets.sort_unstable();
        if buckets.windows(3).all(|three| three[0] != three[2]) {
            return flows;
        }
    }
}

/// Limit of `net-balance`: eight elephant flows on four queues, most loaded queue over mean at most
/// 1.25. One reactor sends them, or several that each know only their own flows.
fn elephants(senders: usize, draws: u64) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut before, mut worst) = (0.0, 0f64);
    for _ in 0..draws {
        let flows = draw(&mut random);
        let mut bench = Bench::new(senders);
        let now = bench.run(&flows, 1, INTERVAL_NS / 2, &mut random);
        before += bench.uneven() / draws as f64;
        let now = bench.run(&flows, now, 12 * INTERVAL_NS, &mut random);
        bench.uneven();
        bench.run(&flows, now, INTERVAL_NS, &mut random);
        worst = worst.max(bench.uneven());
    }
    println!(
        "{senders} senders: the hash alone {before:.2} in the mean, balanced {worst:.2} at worst"
    );
    assert!(before > 1.5, "the hash alone collides: {before}");
    assert!(worst <= 1.25, "{worst}");
}

#[test]
fn elephants_of_one_reactor_are_even_over_many_draws() {
    elephants(1, 100);
}

#[test]
fn elephants_of_several_reactors_are_even_over_many_draws() {
    elephants(2, 30);
    elephants(4, 30);
    elephants(8, 30);
}

#[test]
fn one_queue_takes_everything() {
    let mut queue_selector = QueueSelector::new(Arc::new(QueueLoads::new(1)), 0);
    for queues in [4, 1, 0] {
        queue_selector.set_queues(queues);
        assert_eq!(queue_selector.is_multi_queue(), queues > 1);
    }
    queue_selector.sent(Some(7), 1, UNITS, 1);
    queue_selector.lost(None, UNITS, 1);
    assert_eq!(queue_selector.pick(Some(7), 2, |_, _| None), 0);
    queue_selector.set_queues(255);
    let all = (0..1000).map(|hash| queue_selector.pick(Some(hash), 2, |_, _| None));
    assert_eq!(all.max(), Some(QUEUES_MAX - 1));
}

#[test]
fn a_few_frames_are_no_reason_to_move_anything() {
    let mut bench = Bench::new(1);
    // All in buckets of the first queue, each with ten frames a second.
    let flows: Vec<u32> = (0..8).map(|flow| flow * 4).collect();
    for round in 0..600 {
        for (flow, hash) in (0..).zip(&flows) {
            bench.send(flow, *hash, 1 + round * INTERVAL_NS);
        }
        bench.take(0);
    }
    assert_eq!(bench.uneven(), QUEUES as f64, "they stay where they were");
    assert_eq!(bench.senders[0].queue_loads.moves(), 0);
}

#[test]
fn a_flow_that_never_pauses_stays_and_others_move_for_it() {
    let mut bench = Bench::new(1);
    let flows: Vec<u32> = (0..4).map(|flow| flow * 4).collect();
    // Consumption by the guest is unknown, and the first two flows never pause.
    let mut now = 1;
    while now < 2 * PATIENCE_NS + 20 * INTERVAL_NS {
        for (flow, hash) in (0u64..).zip(&flows) {
            let pauses = flow >= 2 && now / 20_000_000 % 2 == 0;
            if !pauses {
                let by = &mut bench.senders[0];
                by.pick(Some(*hash), now, |_, _| None);
                by.sent(Some(*hash), now, UNITS, now);
            }
        }
        now += 1_000_000;
    }
    let multi_queue = bench.senders[0].multi_queue.as_ref().unwrap();
    let queue = |hash: u32| multi_queue.indirection_table.queue(Bucket::of(hash));
    assert_eq!((queue(flows[0]), queue(flows[1])), (0, 0), "they never paused");
    assert!(queue(flows[2]) != 0 && queue(flows[3]) != 0 && queue(flows[2]) != queue(flows[3]));
}

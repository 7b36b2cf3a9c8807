//! Random simulation of the map, its owner, journal and rounds: the product's code on a simulated
//! file with a volatile cache. Two channels, one owner, requests that take long, kills of the
//! process, power cuts, full storage and errors of the storage.
//!
//! Each step runs one part: a request, the kernel, the owner up to its next call, or a crash. Every
//! value that a request reads, and every value after a power cut, must be one that the history of
//! the block allows.

mod content;
mod crash;
mod format;
mod history;
mod owner;
mod qcow2;

mod random;
mod request;
mod resize;
mod storage;
mod tests;
mod toy;
mod vhd;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::channel::MapChannel;
use crate::journal::{Cells, Journal, JournalSize};
use crate::map::{Map, PagePool};
use crate::shared::Shared;
use format::{SimFormat, SimImage};
use history::History;
use owner::OwnerTask;
use random::Random;
use request::{KernelIo, Operation, Phase, Request, Target};

const CHANNELS: usize = 2;
/// Pages of the pool: fewer than the toy format has.
const PAGES: u32 = 2;
/// Requests of a channel in flight.
const DEPTH: usize = 3;
/// Returns the sizes of a journal. Small, so that rings fill up and are folded. One entry a granule,
/// and a spare one.
fn journal_size(image: &SimImage) -> JournalSize {
    JournalSize { entries: image.granules + 1, rings: CHANNELS, records: 6 }
}

/// Mix of a run.
#[derive(Clone, Copy, Debug)]
struct Mix<O> {
    format: O,
    /// Whether the storage fails now and then.
    eio: bool,
    /// Whether the storage is full now and then.
    full: bool,
    /// Steps between two crashes, on average.
    crash_every: usize,
    /// Granules that requests use.
    granules: (usize, usize),
    /// Weights of read, write, durable write, discard, flush.
    operations: [usize; 5],
}

impl<O> Mix<O> {
    /// Returns the usual mix, which uses these granules.
    const fn new(format: O, granules: (usize, usize)) -> Self {
        Self {
            format,
            eio: false,
            full: false,
            crash_every: 750,
            granules,
            operations: [7, 7, 1, 3, 2],
        }
    }
}

/// Counters of a run, which show that it reached what it is to test.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    acknowledged: u64,
    reads: u64,
    kills: u64,
    cuts: u64,
    failed: u64,
    reclaimed: u64,
    evictions: u64,
    folds: u64,
    rounds: u64,
    allocations: u64,
    /// Notes of where layers below have a granule.
    notes: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.reads += other.reads;
        self.kills += other.kills;
        self.cuts += other.cuts;
        self.failed += other.failed;
        self.reclaimed += other.reclaimed;
        self.evictions += other.evictions;
        self.folds += other.folds;
        self.rounds += other.rounds;
        self.allocations += other.allocations;
        self.notes += other.notes;
    }
}

/// A rule that was broken.
struct Violation(String);

impl std::fmt::Debug for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

struct World<F: SimFormat> {
    mix: Mix<F::Options>,
    random: Random,
    now: u64,
    life: u32,
    image: SimImage,
    eio: bool,
    journal: Cells,
    shared: Arc<Shared>,
    channels: Vec<MapChannel>,
    owner: OwnerTask<F>,
    requests: Vec<Option<Request>>,
    kernel: Vec<KernelIo>,
    histories: Vec<History>,
    next_value: u64,
    last_flush: u64,
    acknowledged_early: BTreeSet<(usize, u64)>,
    seen: Seen,
    violation: Option<Violation>,
}

fn new_journal(image: &SimImage) -> Cells {
    let cells = journal_size(image).cells().unwrap();
    Arc::new((0..cells).map(|_| AtomicU64::new(0)).collect::<Vec<_>>())
}

fn new_shared(image: &SimImage, journal: &Cells) -> Arc<Shared> {
    let map = Map::new(image.layout, &Arc::new(PagePool::with_reserve(PAGES, 0)));
    let journal = Journal::open(Arc::clone(journal), journal_size(image)).unwrap();
    Arc::new(Shared::new(map, journal))
}

fn new_channels(shared: &Arc<Shared>) -> Vec<MapChannel> {
    (0..CHANNELS as u32).map(|at| MapChannel::open(Arc::clone(shared), at).unwrap()).collect()
}

impl<F: SimFormat> World<F> {
    fn new(seed: u64, mix: Mix<F::Options>) -> Self {
        let image = F::create(mix.format);
        let journal = new_journal(&image);
        let shared = new_shared(&image, &journal);
        Self {
            mix,
            random: Random::new(seed),
            now: 0,
            life: 0,
            owner: OwnerTask::start(&shared, &image.file, mix.format),
            channels: new_channels(&shared),
            eio: mix.eio,
            journal,
            shared,
            requests: Vec::new(),
            kernel: Vec::new(),
            histories: image.initial.iter().map(|value| History::new(*value)).collect(),
            image,
            next_value: 1,
            last_flush: 0,
            acknowledged_early: BTreeSet::new(),
            seen: Seen::default(),
            violation: None,
        }
    }

    fn fail(&mut self, text: String) {
        let text = format!("step {}: {text}", self.now);
        self.violation.get_or_insert(Violation(text));
    }

    fn target(&self, at: usize) -> Target {
        self.requests[at].as_ref().expect("a request").target
    }

    fn set_phase(&mut self, at: usize, phase: Phase) {
        self.requests[at].as_mut().expect("a request").phase = phase;
    }

    fn take_phase(&mut self, at: usize) -> Phase {
        let request = self.requests[at].as_mut().expect("a request");
        std::mem::replace(&mut request.phase, Phase::Asked)
    }

    fn history(&mut self, granule: usize, cell: usize) -> &mut History {
        &mut self.histories[granule * self.image.cells + cell]
    }

    /// Starts a random request.
    fn begin_request(&mut self) {
        let channel = self.random.below(CHANNELS);
        let of_channel = |one: &&Request| one.target.channel == channel;
        if self.requests.iter().flatten().filter(of_channel).count() >= DEPTH {
            return;
        }
        let (first, end) = self.mix.granules;
        let granule = first + self.random.below(end - first);
        let cell = self.random.below(self.image.cells);
        let operation = self.pick_operation();
        let is_write = |one: &Target| matches!(one.operation, Operation::Write { .. });
        let same = |one: &Request| {
            is_write(&one.target) && one.target.granule == granule && one.target.cell == cell
        };
        // Cells have one writer at a time, so that their history is an order.
        let writer = (granule * self.image.cells + cell) % CHANNELS;
        if matches!(operation, Operation::Write { .. })
            && (writer != channel || self.requests.iter().flatten().any(same))
        {
            return;
        }
        let value = self.next_value;
        self.next_value += 1;
        let (now, mut count) = (self.now, 1);
        match operation {
            Operation::Write { .. } => self.history(granule, cell).begin(value, now),
            Operation::Discard => {
                count = 1 + self.random.below((end - granule).min(3));
                for granule in granule..granule + count {
                    (0..self.image.cells).for_each(|one| self.history(granule, one).begin(0, now));
                }
            }
            _ => {}
        }
        let target = Target { channel, operation, granule, count, cell, value };
        let is_slow = self.random.one_in(5);
        let (phase, zeroed, is_durable) = (Phase::Start, 0, false);
        let request = Request { target, began: now, phase, is_slow, zeroed, is_durable };
        match self.requests.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(request),
            None => self.requests.push(Some(request)),
        }
    }

    fn pick_operation(&mut self) -> Operation {
        let weights = self.mix.operations;
        let mut at = self.random.below(weights.iter().sum());
        let all = [
            Operation::Read,
            Operation::Write { durable: false },
            Operation::Write { durable: true },
            Operation::Discard,
            Operation::Flush,
        ];
        for (operation, weight) in all.into_iter().zip(weights) {
            match at.checked_sub(weight) {
                Some(rest) => at = rest,
                None => return operation,
            }
        }
        Operation::Read
    }

    fn end_event(&mut self, target: &Target, began: u64) {
        let now = self.now;
        self.history(target.granule, target.cell).end(target.value, began, now);
    }

    /// Ends a request, and checks what it read.
    fn acknowledge(&mut self, at: usize, outcome: Result<u64, ()>) {
        let Request { target, began, .. } = self.requests[at].take().expect("a request");
        self.seen.acknowledged += 1;
        let Ok(value) = outcome else {
            // A write that failed may have taken effect at any time.
            self.seen.failed += 1;
            return;
        };
        let now = self.now;
        let Target { granule, cell, .. } = target;
        match target.operation {
            Operation::Read => {
                self.seen.reads += 1;
                if !self.history(granule, cell).allows(value, began, now) {
                    let events = format!("{:?}", self.history(granule, cell).events);
                    self.fail(format!(
                        "a read of {granule}.{cell} from {began} gives {value:#x}: {events}"
                    ));
                }
            }
            Operation::Write { durable } => {
                self.end_event(&target, began);
                self.acknowledged_early.remove(&(at, target.value));
                if durable {
                    self.history(granule, cell).durable.push(target.value);
                }
            }
            Operation::Discard => {
                for granule in granule..granule + target.count {
                    (0..self.image.cells)
                        .for_each(|one| self.history(granule, one).end(0, began, now));
                }
            }
            Operation::Flush => self.last_flush = self.last_flush.max(began),
        }
        let oldest = self.requests.iter().flatten().map(|one| one.began).min().unwrap_or(now);
        let since = self.last_flush.min(oldest);
        self.histories.iter_mut().for_each(|history| history.prune(since));
    }

    fn step(&mut self) {
        self.now += 1;
        match self.random.below(100) {
            0..18 => self.begin_request(),
            18..58 => self.step_request(),
            58..76 => self.step_kernel(),
            76..97 => self.step_owner(),
            _ => self.step_eviction(),
        }
        if self.random.one_in(self.mix.crash_every) {
            if self.random.one_in(2) { self.kill() } else { self.cut() }
        }
    }

    fn step_request(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let at = self.random.below(self.requests.len());
        let Some(request) = &self.requests[at] else { return };
        let may_wait = matches!(request.phase, Phase::Written(_) | Phase::Granted(_));
        if request.is_slow && may_wait && !self.random.one_in(80) {
            return;
        }
        let (channel, is_recorded) = (request.target.channel, is_recorded(request));
        // A channel appends no record before it has published the last one.
        let other = |one: &Request| one.target.channel == channel && is_recorded_in(&one.phase);
        if !is_recorded && self.requests.iter().flatten().any(other) {
            return;
        }
        self.advance(at);
    }

    fn step_kernel(&mut self) {
        if self.kernel.is_empty() {
            return;
        }
        let index = self.random.below(self.kernel.len());
        if !self.kernel[index].is_slow || self.random.one_in(60) {
            self.end_kernel(index);
        }
    }

    /// Runs `steps` steps, or fewer if a rule is broken.
    fn run(&mut self, steps: u64) -> Result<Seen, Violation> {
        for _ in 0..steps {
            self.step();
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.collect_counts();
        self.drain()?;
        Ok(self.seen)
    }

    /// Runs without new requests and crashes until all requests have ended.
    fn drain(&mut self) -> Result<(), Violation> {
        for _ in 0..100_000 {
            self.now += 1;
            match self.random.below(3) {
                0 => self.step_request(),
                1 => self.step_kernel(),
                _ => self.step_owner(),
            }
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
            let ended = self.requests.iter().all(Option::is_none);
            if ended || (self.is_full() && self.kernel.is_empty()) {
                return Ok(());
            }
        }
        Err(Violation(format!("requests do not end: {:?}", self.requests)))
    }
}

fn is_recorded(request: &Request) -> bool {
    is_recorded_in(&request.phase)
}

fn is_recorded_in(phase: &Phase) -> bool {
    matches!(phase, Phase::Recorded(_))
}

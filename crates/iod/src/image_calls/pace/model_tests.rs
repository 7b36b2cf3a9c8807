//! A copy beside a guest on models of storage devices, in simulated time.

use std::collections::BTreeMap;
use std::time::Duration;

use share::OpKind;
use share::device::{Command, Device, Flash, Model, Pipe, Spindle};

use super::{DiskLoad, Pace, STEP};

/// Bytes of each read and write of the copy, and of the guest.
const COPY_BYTES: u64 = 256 << 10;
const GUEST_BYTES: u64 = 4096;
/// Number of the copy's command. The guest's follow.
const COPY: u64 = 0;
/// Time in which the pace finds itself, and time that is measured, in nanoseconds.
const SETTLING: u64 = 10_000_000_000;
const MEASURED: u64 = 20_000_000_000;

/// State of the copy.
enum Work {
    None,
    Reads,
    Writes,
    Pauses { middle: Option<u64>, until: u64 },
}

struct Simulation {
    device: Device,
    kind: OpKind,
    now: u64,
    random: u64,
    /// Submission times of the guest's requests.
    in_flight: BTreeMap<u64, u64>,
    next_id: u64,
    load: DiskLoad,
    /// Times of the guest's requests that ended after the settling.
    times: Vec<u64>,
    work: Work,
    copied: u64,
    /// Begin of the step.
    began: u64,
    pace: Pace,
}

impl Simulation {
    fn new(model: Model, kind: OpKind, copies: bool) -> Self {
        let load = DiskLoad::default();
        let mut simulation = Self {
            device: Device::new(model.into()),
            kind,
            now: 0,
            random: 1,
            in_flight: BTreeMap::new(),
            next_id: COPY + 1,
            load,
            times: Vec::new(),
            work: Work::None,
            copied: 0,
            began: 0,
            pace: Pace::new(load),
        };
        if copies {
            simulation.copy(OpKind::Read);
        }
        simulation
    }

    /// Returns the load, as the copy reads it.
    fn load(&self) -> DiskLoad {
        let oldest = self.in_flight.values().min().map_or(0, |begun| self.now - begun);
        DiskLoad { oldest: Duration::from_nanos(oldest), ..self.load }
    }

    fn copy(&mut self, kind: OpKind) {
        self.work = if kind == OpKind::Read { Work::Reads } else { Work::Writes };
        let offset = (100 << 30) + self.copied;
        self.device.submit(self.now, Command { id: COPY, kind, offset, bytes: COPY_BYTES });
    }

    /// Submits a request of the guest to a random place.
    fn request(&mut self) {
        // Numbers of Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let offset = (self.random % (100 << 18)) * GUEST_BYTES;
        let command = Command { id: self.next_id, kind: self.kind, offset, bytes: GUEST_BYTES };
        self.in_flight.insert(self.next_id, self.now);
        self.next_id += 1;
        self.device.submit(self.now, command);
    }

    fn copy_ended(&mut self) {
        if matches!(self.work, Work::Reads) {
            return self.copy(OpKind::Write);
        }
        self.copied += COPY_BYTES;
        let step = Duration::from_nanos(self.now - self.began);
        let pause = match step < STEP {
            true => Duration::ZERO,
            false => self.pace.after_step(step, self.load()),
        };
        if step >= STEP {
            self.began = self.now;
        }
        match u64::try_from(pause.as_nanos()).unwrap() {
            0 => self.copy(OpKind::Read),
            pause => {
                let (middle, until) = (Some(self.now + pause / 2), self.now + pause);
                self.work = Work::Pauses { middle, until };
            }
        }
    }

    fn request_ended(&mut self, id: u64) {
        let time = self.now - self.in_flight.remove(&id).unwrap();
        self.load.requests += 1;
        self.load.total_ns += time;
        if self.now > SETTLING {
            self.times.push(time);
        }
        self.request();
    }

    /// Runs a guest with `depth` requests in flight. Returns the time that 99 of 100 requests took at
    /// most, in nanoseconds.
    fn run(&mut self, depth: usize) -> u64 {
        (0..depth).for_each(|_| self.request());
        let mut done = Vec::new();
        while self.now < SETTLING + MEASURED {
            let event = self.device.next_event().unwrap_or(u64::MAX);
            match self.work {
                Work::Pauses { middle: Some(middle), until } if middle < event => {
                    self.now = middle;
                    self.pace.amid_pause(self.load());
                    self.work = Work::Pauses { middle: None, until };
                }
                Work::Pauses { middle: None, until } if until < event => {
                    self.now = until;
                    self.pace.after_pause(self.load());
                    self.began = self.now;
                    self.copy(OpKind::Read);
                }
                _ => {
                    self.now = event;
                    self.device.reap(event, &mut done);
                    for id in done.drain(..) {
                        if id == COPY { self.copy_ended() } else { self.request_ended(id) }
                    }
                }
            }
        }
        self.times.sort_unstable();
        self.times[self.times.len() * 99 / 100]
    }
}

#[test]
fn of_99_in_100_requests_none_takes_much_longer_beside_a_copy() {
    let models = [
        ("striped flash", Model::Flash(Flash::STRIPED)),
        ("unstriped flash", Model::Flash(Flash::UNSTRIPED)),
        ("array", Model::Pipe(Pipe::ARRAY)),
        ("spindle", Model::Spindle(Spindle::DISK)),
    ];
    for (name, model) in models {
        for (kind, depth) in [(OpKind::Read, 1), (OpKind::Read, 8), (OpKind::Write, 8)] {
            let alone = Simulation::new(model, kind, false).run(depth);
            let mut beside = Simulation::new(model, kind, true);
            let p99 = beside.run(depth);
            let ratio = p99 as f64 / alone as f64;
            assert!(ratio <= 1.2, "{name}, {kind:?}, depth {depth}: {p99} ns, alone {alone} ns");
            assert!(beside.copied > 1 << 20, "{name}, {kind:?}, depth {depth}");
        }
    }
}

//! Storage, reactors and guests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::reactor::{Reactor, SimCells};
use super::report::{DiskReport, Report};
use super::workload::Workload;
use super::{MIB, MS, Random, SECOND};
use crate::device::{Command, Device, DeviceConfig};
use crate::dispatch_queue::{DispatchQueue, Permit, Submitted};
use crate::profile::{Op, OpKind, Profile};
use crate::share::{DiskConfig, DiskId, Share};
use crate::state::{CELLS, DiskCell, Header, NO_KEY, ReactorCell, Tokens};

/// Bytes between the areas of two disks.
const AREA: u64 = 10_000 * MIB;

/// Run of the simulation.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) device: DeviceConfig,
    /// `None` for a storage without scheduler.
    pub(super) profile: Option<Profile>,
    pub(super) reactors: usize,
    pub(super) disks: Vec<(DiskConfig, Workload)>,
    pub(super) length_ns: u64,
    pub(super) warm_up_ns: u64,
    /// Commands of the device after which the run ends.
    pub(super) commands_max: u64,
    pub(super) bucket_ns: u64,
    /// Changes of settings: time, disk, settings.
    pub(super) changes: Vec<(u64, usize, DiskConfig)>,
    /// Longest time that the host takes from a reactor.
    pub(super) stalls: u64,
    pub(super) seed: u64,
}

impl Scenario {
    pub(super) fn new(device: impl Into<DeviceConfig>, profile: Option<Profile>) -> Self {
        Self {
            device: device.into(),
            profile,
            reactors: 1,
            disks: Vec::new(),
            length_ns: 5 * SECOND,
            warm_up_ns: SECOND / 2,
            commands_max: u64::MAX,
            bucket_ns: 10 * MS,
            changes: Vec::new(),
            stalls: 0,
            seed: 1,
        }
    }

    /// Adds a disk with a weight.
    pub(super) fn add(&mut self, weight: u64, workload: Workload) {
        self.disks.push((DiskConfig { weight, ..DiskConfig::default() }, workload));
    }

    pub(super) fn run(&self) -> Report {
        World::new(self).run()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Change(usize),
    Device,
    Arrive(usize),
    Turn(usize),
}

#[derive(Debug)]
struct Request {
    disk: usize,
    arrived: u64,
    op: Op,
    offset: u64,
    /// Pieces in flight.
    pieces: u64,
    all_sent: bool,
    hangs: bool,
}

#[derive(Debug)]
struct SimDisk {
    id: DiskId,
    requests: u64,
    position: u64,
    /// Time at which the cap permits the next request.
    cap_free: u64,
    /// Requests that are not dispatched, and the time of the last dispatch or of the first of them.
    pending: u64,
    progress: u64,
    /// Last time at which it had no request to dispatch and one arrived.
    idle_at: u64,
    /// Device time charged before the end of the warm-up.
    served: u64,
}

pub(super) struct World<'a> {
    scenario: &'a Scenario,
    share: Arc<Share<SimCells>>,
    device: Device,
    device_at: u64,
    reactors: Vec<Reactor>,
    disks: Vec<SimDisk>,
    requests: Vec<Request>,
    free_requests: Vec<u32>,
    /// Commands of the device: reactor, request, permit.
    commands: Vec<Option<(usize, u32, Option<Permit>)>>,
    free_commands: Vec<u64>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    now: u64,
    random: Random,
    report: Report,
    /// Time since which each reactor is overtaken.
    overtaken: Vec<Option<u64>>,
    free_since: Option<u64>,
    discards: u64,
    commands_sent: u64,
    warm: bool,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let cells: SimCells = (0..CELLS).map(|_| AtomicU64::new(0)).collect();
        let share = Share::open(cells, 1).unwrap();
        if let Some(profile) = &scenario.profile {
            share.update_profile(profile).unwrap();
        }
        let open = |_| {
            let queue = scenario.profile.map(|_| DispatchQueue::open(&share).unwrap());
            Reactor::new(queue, scenario.disks.len())
        };
        let reactors = (0..scenario.reactors).map(open).collect();
        let disks = scenario.disks.iter().enumerate().map(|(at, (config, _))| SimDisk {
            id: share.add_disk("d", *config).unwrap(),
            requests: 0,
            position: at as u64 * AREA,
            cap_free: 0,
            pending: 0,
            progress: 0,
            idle_at: 0,
            served: 0,
        });
        let report = |(config, _): &(DiskConfig, Workload)| DiskReport {
            weight: config.weight,
            ..DiskReport::default()
        };
        Self {
            scenario,
            device: Device::new(scenario.device.clone()),
            device_at: u64::MAX,
            reactors,
            disks: disks.collect(),
            requests: Vec::new(),
            free_requests: Vec::new(),
            commands: Vec::new(),
            free_commands: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            now: 0,
            random: Random::new(scenario.seed),
            report: Report {
                disks: scenario.disks.iter().map(report).collect(),
                depths: (u64::MAX, 0),
                ..Report::default()
            },
            overtaken: vec![None; scenario.reactors],
            free_since: None,
            discards: 0,
            commands_sent: 0,
            warm: false,
            share,
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn run(mut self) -> Report {
        for (at, (_, workload)) in self.scenario.disks.iter().enumerate() {
            for _ in 0..workload.depth {
                let time = workload.from_ns + self.random.below(200_000);
                self.at(time, Event::Arrive(at));
            }
        }
        for (at, (time, _, _)) in self.scenario.changes.iter().enumerate() {
            self.at(*time, Event::Change(at));
        }
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > self.scenario.length_ns || self.commands_sent > self.scenario.commands_max {
                break;
            }
            self.now = time;
            if !self.warm && time >= self.scenario.warm_up_ns {
                self.warm = true;
                (0..self.disks.len()).for_each(|at| self.disks[at].served = self.served(at));
            }
            match event {
                Event::Arrive(disk) => self.arrive(disk),
                Event::Device => self.reap(),
                Event::Turn(reactor) if self.reactors[reactor].turn_at == time => {
                    self.turn(reactor)
                }
                Event::Turn(_) => {}
                Event::Change(at) => {
                    let (_, disk, config) = self.scenario.changes[at];
                    self.share.update_disk(self.disks[disk].id, config).unwrap();
                }
            }
        }
        self.finish()
    }

    /// Returns the device time charged to a disk.
    fn served(&self, at: usize) -> u64 {
        self.share.disk(self.disks[at].id).disk(DiskCell::Served).load(Relaxed)
    }

    fn finish(mut self) -> Report {
        self.assert_tokens();
        let end = self.scenario.length_ns.min(self.now);
        self.report.commands = self.commands_sent;
        let queues = self.reactors.iter().filter_map(|reactor| reactor.queue.as_ref());
        self.report.looks = queues.map(DispatchQueue::looks).sum();
        self.report.depth = self.share.stats().depth_ns;
        self.report.counted_ns = end.saturating_sub(self.scenario.warm_up_ns);
        for at in 0..self.disks.len() {
            let (disk, served) = (&self.disks[at], self.served(at));
            let report = &mut self.report.disks[at];
            if disk.pending > 0 {
                report.longest_wait = report.longest_wait.max(end - disk.progress);
            }
            report.served = served - disk.served;
            report.backlogged = disk.pending > 0 && disk.idle_at < self.scenario.warm_up_ns;
            report.latencies.sort_unstable();
        }
        self.report
    }

    /// Asserts that tokens in flight are those of the commands in flight.
    fn assert_tokens(&self) {
        let sent = self.commands.iter().flatten().map(|(_, _, permit)| permit);
        let completed = self.reactors.iter().flat_map(|r| r.completed.iter().map(|(_, p)| p));
        let counted = sent.chain(completed).flatten().filter(|permit| permit.is_counted());
        let in_flight = self.share.in_flight();
        assert_eq!(in_flight.count, counted.count() as u64, "permits are tokens in flight");
        let disks = self.disks.iter().map(|disk| {
            Tokens::from_bits(self.share.disk(disk.id).disk(DiskCell::InFlight).load(Relaxed))
        });
        assert_eq!(
            disks.fold(Tokens::default(), Tokens::plus),
            in_flight,
            "disks and reactors agree"
        );
    }

    fn wake(&mut self, reactor: usize) {
        let time = self.reactors[reactor].notices_at(self.now, &mut self.random);
        self.turn_at(reactor, time);
    }

    fn turn_at(&mut self, reactor: usize, time: u64) {
        if time < self.reactors[reactor].turn_at {
            self.reactors[reactor].turn_at = time;
            self.at(time, Event::Turn(reactor));
        }
    }

    /// A guest sends a request, unless it rests or its cap makes it wait.
    fn arrive(&mut self, at: usize) {
        let workload = &self.scenario.disks[at].1;
        if self.now >= workload.until_ns {
            return;
        }
        let (on, off) = workload.on_off_ns;
        let period = on + off;
        if period > 0 && (self.now - workload.from_ns) % period >= on {
            let periods = (self.now - workload.from_ns) / period + 1;
            let spread = self.random.below(1_000);
            return self.at(workload.from_ns + periods * period + spread, Event::Arrive(at));
        }
        let disk = &mut self.disks[at];
        if let Some(period) = (workload.bytes * SECOND).checked_div(workload.cap) {
            if disk.cap_free > self.now {
                let time = disk.cap_free;
                return self.at(time, Event::Arrive(at));
            }
            disk.cap_free = self.now + period;
        }
        let (kind, urgent) = workload.kind(self.random.below(100));
        let moves = matches!(kind, OpKind::Read | OpKind::Write);
        let bytes = if moves { workload.bytes } else { 0 };
        let op = Op { urgent, ..Op::new(kind, bytes) };
        let offset = if workload.sequential {
            disk.position
        } else {
            at as u64 * AREA + self.random.below(8_000 * MIB / 4096) * 4096
        };
        disk.position += workload.bytes;
        let hangs = workload.hangs == Some(disk.requests);
        let reactor = workload.queues[disk.requests as usize % workload.queues.len()];
        disk.requests += 1;
        disk.pending += 1;
        if disk.pending == 1 {
            (disk.progress, disk.idle_at) = (self.now, self.now);
        }
        let request =
            Request { disk: at, arrived: self.now, op, offset, pieces: 0, all_sent: false, hangs };
        let number = match self.free_requests.pop() {
            Some(number) => {
                self.requests[number as usize] = request;
                number
            }
            None => {
                self.requests.push(request);
                self.requests.len() as u32 - 1
            }
        };
        self.reactors[reactor].rings[at].push_back(number);
        self.reactors[reactor].arrived.push(at);
        self.wake(reactor);
    }

    fn reap(&mut self) {
        let mut done = Vec::new();
        self.device.reap(self.now, &mut done);
        for id in done {
            let command = self.commands[id as usize].take();
            let (reactor, request, permit) = command.expect("the device completes a command once");
            self.free_commands.push(id);
            self.reactors[reactor].completed.push((request, permit));
            self.wake(reactor);
        }
        self.device_at = u64::MAX;
        self.watch_device();
    }

    fn watch_device(&mut self) {
        let next = self.device.next_event().unwrap_or(u64::MAX);
        if next < self.device_at {
            self.device_at = next;
            self.at(next, Event::Device);
        }
    }

    /// A turn of a reactor.
    fn turn(&mut self, at: usize) {
        self.report.turns += 1;
        self.reactors[at].turn_at = u64::MAX;
        let completed = std::mem::take(&mut self.reactors[at].completed);
        let mut steps = completed.len() as u64;
        for (request, permit) in completed {
            if let Some((queue, permit)) = self.reactors[at].queue.as_mut().zip(permit) {
                queue.complete(permit, self.now);
            }
            self.complete_piece(request);
        }
        for disk in std::mem::take(&mut self.reactors[at].arrived) {
            steps += self.submit(at, disk);
        }
        while let Some(dispatch) =
            self.reactors[at].queue.as_mut().and_then(|queue| queue.next(self.now))
        {
            steps += 1;
            let offset = self.requests[dispatch.key as usize].offset + dispatch.offset;
            let permit = Some(dispatch.permit);
            self.send(at, dispatch.key, offset, dispatch.bytes, permit, dispatch.last);
            if dispatch.last {
                let disk = self.requests[dispatch.key as usize].disk;
                steps += self.submit(at, disk);
            }
        }
        while let Some(kicked) = self.reactors[at].queue.as_mut().and_then(|q| q.take_kick()) {
            self.report.kicks += 1;
            self.wake(kicked.slot());
        }
        self.reactors[at].end_turn(self.now, steps, self.scenario.stalls, &mut self.random);
        let reactor = &self.reactors[at];
        if let Some(deadline) = reactor.queue.as_ref().and_then(DispatchQueue::deadline) {
            self.turn_at(at, deadline.max(reactor.busy_until + 1));
        }
        if !self.reactors[at].completed.is_empty() || !self.reactors[at].arrived.is_empty() {
            self.wake(at);
        }
        self.watch_device();
        self.observe(at, steps);
    }

    /// Submits what the ring of a disk has.
    fn submit(&mut self, at: usize, disk: usize) -> u64 {
        let mut steps = 0;
        while let Some(number) = self.reactors[at].rings[disk].front().copied() {
            let request = &self.requests[number as usize];
            let (op, offset) = (request.op, request.offset);
            let submitted = match &mut self.reactors[at].queue {
                Some(queue) => {
                    let id = self.disks[disk].id;
                    match queue.submit(id, op, number, self.now) {
                        Submitted::Send(permit) => Some(Some(permit)),
                        Submitted::Held => None,
                        Submitted::Full => break,
                    }
                }
                None => Some(None),
            };
            steps += 1;
            self.reactors[at].rings[disk].pop_front();
            if let Some(permit) = submitted {
                self.send(at, number, offset, op.bytes, permit, true);
            }
        }
        steps
    }

    /// Sends a piece to the device.
    fn send(
        &mut self,
        at: usize,
        number: u32,
        offset: u64,
        bytes: u64,
        permit: Option<Permit>,
        last: bool,
    ) {
        let request = &mut self.requests[number as usize];
        request.pieces += 1;
        request.all_sent |= last;
        let (kind, hangs) = (request.op.kind, request.hangs);
        let disk = &mut self.disks[request.disk];
        let wait = &mut self.report.disks[request.disk].longest_wait;
        *wait = (*wait).max(self.now - disk.progress);
        disk.progress = self.now;
        disk.pending -= u64::from(last);
        self.commands_sent += 1;
        if kind == OpKind::Discard {
            self.discards += 1;
            self.report.discards = self.report.discards.max(self.discards);
        }
        let command = Some((at, number, permit));
        let id = match self.free_commands.pop() {
            Some(id) => {
                self.commands[id as usize] = command;
                id
            }
            None => {
                self.commands.push(command);
                self.commands.len() as u64 - 1
            }
        };
        if !hangs {
            self.device.submit(self.now, Command { id, kind, offset, bytes });
        }
    }

    fn complete_piece(&mut self, number: u32) {
        let request = &mut self.requests[number as usize];
        request.pieces -= 1;
        if request.op.kind == OpKind::Discard {
            self.discards -= 1;
        }
        if request.pieces > 0 || !request.all_sent {
            return;
        }
        let (at, bytes) = (request.disk, request.op.bytes);
        let latency = self.now - request.arrived;
        self.free_requests.push(number);
        let report = &mut self.report.disks[at];
        let bucket = (self.now / self.scenario.bucket_ns) as usize;
        if report.timeline.len() <= bucket {
            report.timeline.resize(bucket + 1, 0);
        }
        report.timeline[bucket] += bytes;
        if self.now >= self.scenario.warm_up_ns {
            report.bytes += bytes;
            report.requests += 1;
            report.latencies.push(latency);
        }
        let think = self.scenario.disks[at].1.think_ns;
        let time = self.now + think + self.random.below(think / 4 + 1);
        self.at(time, Event::Arrive(at));
    }

    /// Watches for reactors that starve and tokens that nobody takes.
    fn observe(&mut self, at: usize, steps: u64) {
        let Some(profile) = self.scenario.profile.filter(|_| self.now >= self.scenario.warm_up_ns)
        else {
            return;
        };
        let state = self.share.state();
        let load = |slot: usize, cell| state.reactor(slot).reactor(cell).load(Relaxed);
        if steps > 0 {
            // A reactor starves from when another one dispatches a later tag until it dispatches.
            let since = self.overtaken[at].take().unwrap_or(self.now);
            self.report.starved = self.report.starved.max(self.now - since);
            let start = load(at, ReactorCell::Start).saturating_sub(profile.knee_ns / 4);
            for slot in (0..self.reactors.len()).filter(|slot| *slot != at) {
                if load(slot, ReactorCell::Key) & !(1 << 63) < start {
                    self.overtaken[slot].get_or_insert(self.now);
                } else {
                    self.overtaken[slot] = None;
                }
            }
        }
        let waits = (0..self.reactors.len()).any(|slot| load(slot, ReactorCell::Key) != NO_KEY);
        let depth = state.header(Header::Depth).load(Relaxed);
        let (low, high) = self.report.depths;
        self.report.depths = (low.min(depth), high.max(depth));
        let free = waits && self.share.in_flight().ns < depth;
        let since = *self.free_since.get_or_insert(self.now);
        self.report.free_tokens = self.report.free_tokens.max(self.now - since);
        if !free {
            self.free_since = None;
        }
    }
}

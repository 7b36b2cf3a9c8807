//! The writer's side: from clock readings to histograms and records.
//!
//! The owner of a ring tells it, in this order in a turn: [`Times::reaped`] for each request that
//! its disk has finished, [`Times::looked`], [`Times::popped`] for each request and
//! [`Times::inline`] for each that ended at once, and [`Times::published`]. A request that the
//! cap holds back is told by [`Times::held`] and [`Times::released`].

use std::sync::atomic::Ordering;
use std::time::Instant;

use reactor::{Context, Label};

use super::order::Order;
use super::recorder::{At, MINUTE_NS};
use super::stages::OPS;
use super::{Class, InFlight, InFlightTable, Op, Record, Recorder, Stage, Stages};

/// A request that takes longer, and ten times the median of its kind, is slow.
const SLOW_MIN_NS: u64 = 10_000_000;
const SLOW_MEDIANS: u64 = 10;
/// The median is looked up at most this often.
const MEDIAN_EVERY_NS: u64 = 1_000_000_000;
/// A turn of a neighbour is worth a note from here on: a guest feels it.
const NEIGHBOUR_MIN_NS: u64 = 200_000;

/// When a request in flight passed which point, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamps {
    /// When it was known.
    pub(crate) known: u64,
    /// When it was popped.
    pub(crate) popped: u64,
    /// When the cap let it pass; 0 until then.
    pub(crate) admitted: u64,
    /// Of the time in the ring, that for which the cap held the queue.
    pub(crate) held: u64,
}

impl Stamps {
    fn queue(&self) -> u64 {
        self.popped.saturating_sub(self.known).saturating_sub(self.held)
    }

    fn cap(&self) -> u64 {
        self.held + self.admitted.saturating_sub(self.popped)
    }
}

/// Requests of a batch that were known at the same time.
#[derive(Clone, Copy, Debug)]
struct Group {
    stamps: Stamps,
    popped: [u32; OPS],
    inline: [u32; OPS],
}

/// A request of this batch that the disk has finished.
#[derive(Clone, Copy, Debug)]
struct Ended {
    op: Op,
    known: u64,
}

/// What the owner of a ring keeps to measure it.
#[derive(Debug)]
pub(crate) struct Times {
    on: bool,
    base: Instant,
    label: Label,
    order: Order,
    /// Time for which the cap held the queue, up to `held_since` if it does now.
    held_total: u64,
    held_since: u64,
    groups: Vec<Group>,
    ended: Vec<Ended>,
    /// When this turn of the queue began; 0 before its first reading.
    began: u64,
    reaped_at: u64,
    /// The slowest of this batch.
    slowest: Option<Record>,
    slow: u32,
    /// Faster ones need no record.
    bar: u64,
    thresholds: [u64; OPS],
    median_at: u64,
    minute_end: u64,
    longest_of_minute: u64,
    neighbour: Option<(Label, u64, u64)>,
    oldest: u64,
}

fn at(base: Instant, now: Instant) -> u64 {
    // 0 means never.
    (now.saturating_duration_since(base).as_nanos() as u64).max(1)
}

impl Times {
    pub(crate) fn new(on: bool, base: Instant, label: Label) -> Self {
        Self {
            on,
            base,
            label,
            order: Order::default(),
            held_total: 0,
            held_since: 0,
            groups: Vec::new(),
            ended: Vec::new(),
            began: 0,
            reaped_at: 0,
            slowest: None,
            slow: 0,
            bar: 1,
            thresholds: [SLOW_MIN_NS; OPS],
            median_at: 0,
            minute_end: 0,
            longest_of_minute: 0,
            neighbour: None,
            oldest: 0,
        }
    }

    /// The queue is asked. A turn that found only what the cap holds back has shown nothing, and
    /// the time since is not the queue's.
    pub(crate) fn turn_begins(&mut self) {
        self.began = 0;
    }

    /// Time of this batch.
    fn now(&mut self, context: &mut Context<'_>, recorder: &Recorder) -> u64 {
        let now = at(self.base, context.now());
        if self.began == 0 {
            self.began = now;
            let gap = now.saturating_sub(at(self.base, context.last_look()));
            if gap >= NEIGHBOUR_MIN_NS {
                self.note_neighbour(context, recorder, now);
            }
        }
        now
    }

    #[cold]
    fn note_neighbour(&mut self, context: &Context<'_>, recorder: &Recorder, now: u64) {
        let Some((label, time)) = context.longest_other(self.label) else { return };
        let time = time.as_nanos() as u64;
        if time >= NEIGHBOUR_MIN_NS {
            self.neighbour = Some((label, time, now));
            recorder.neighbour_was(label, time, now);
        }
    }

    fn held_by(&self, now: u64) -> u64 {
        let open = if self.held_since == 0 { 0 } else { now.saturating_sub(self.held_since) };
        self.held_total + open
    }

    /// The ring was looked at: `waiting` requests are in it.
    pub(crate) fn looked(&mut self, context: &mut Context<'_>, recorder: &Recorder, waiting: u16) {
        if self.on && waiting > 0 {
            let now = self.now(context, recorder);
            let since = at(self.base, context.last_look()).min(now);
            self.order.look(waiting, since, self.held_by(since));
        }
    }

    /// A request was popped, and nothing holds it back.
    pub(crate) fn popped(
        &mut self,
        context: &mut Context<'_>,
        recorder: &Recorder,
        class: Class,
    ) -> Stamps {
        if !self.on {
            return Stamps::default();
        }
        let now = self.now(context, recorder);
        let held_now = self.held_by(now);
        let (known, held_then) = self.order.pop().unwrap_or((now, held_now));
        let held = held_now.saturating_sub(held_then);
        let stamps = Stamps { known, popped: now, admitted: now, held };
        let op = class.op() as usize;
        match self.groups.last_mut() {
            Some(group) if group.stamps == stamps => count(&mut group.popped, op),
            _ => {
                let mut group = Group { stamps, popped: [0; OPS], inline: [0; OPS] };
                count(&mut group.popped, op);
                self.groups.push(group);
            }
        }
        stamps
    }

    /// A request was popped that needs no disk: it is not measured.
    pub(crate) fn passed_over(&mut self) {
        if self.on {
            self.order.pop();
        }
    }

    /// The cap holds the queue from now on, and the request with these stamps if one was popped.
    pub(crate) fn held(
        &mut self,
        context: &mut Context<'_>,
        recorder: &Recorder,
        popped: Option<&mut Stamps>,
    ) {
        if !self.on {
            return;
        }
        let now = self.now(context, recorder);
        if self.held_since == 0 {
            self.held_since = now;
        }
        if let Some(stamps) = popped {
            stamps.admitted = 0;
        }
        recorder.held_by_cap.store(1, Ordering::Relaxed);
    }

    /// The cap lets the queue go on, and the request with these stamps if one was popped.
    pub(crate) fn released(
        &mut self,
        context: &mut Context<'_>,
        stats: (&Stages, &Recorder),
        popped: Option<(&mut Stamps, Class)>,
    ) {
        if !self.on {
            return;
        }
        let now = self.now(context, stats.1);
        self.held_total = self.held_by(now);
        self.held_since = 0;
        stats.1.held_by_cap.store(0, Ordering::Relaxed);
        if let Some((stamps, class)) = popped {
            stamps.admitted = now;
            stats.0.record(Stage::Cap, class.op(), now.saturating_sub(stamps.popped), 1);
            // It is in another stage now, if it is the oldest.
            self.oldest = 0;
        }
    }

    /// A request ended where it was submitted.
    pub(crate) fn inline(&mut self, entry: &InFlight) {
        if !self.on {
            return;
        }
        let InFlight { stamps, class, offset, bytes, .. } = entry;
        let op = class.op() as usize;
        match self.groups.iter_mut().rev().find(|group| group.stamps == *stamps) {
            Some(group) => count(&mut group.inline, op),
            None => {
                // It was held back: its wait in the ring has been recorded.
                let mut group = Group { stamps: *stamps, popped: [0; OPS], inline: [0; OPS] };
                count(&mut group.inline, op);
                self.groups.push(group);
            }
        }
        let so_far = stamps.popped.saturating_sub(stamps.known);
        let longer = self.slowest.is_none_or(|slowest| so_far > slowest.total_ns());
        if longer {
            self.slowest = Some(self.record(stamps, *class, *offset, *bytes, 0));
        }
    }

    fn record(&self, stamps: &Stamps, class: Class, offset: u64, len: u64, device: u64) -> Record {
        let neighbour = self.neighbour.filter(|(_, _, at)| *at >= stamps.known);
        Record {
            class,
            failed: false,
            offset,
            len,
            known_ns: stamps.known,
            stages_ns: [stamps.queue(), stamps.cap(), device, 0],
            reactor: 0,
            others: 0,
            neighbour: neighbour.map(|(label, time, _)| (label, time)),
        }
    }

    /// The disk has finished a request.
    pub(crate) fn reaped(
        &mut self,
        context: &mut Context<'_>,
        stats: (&Stages, &Recorder),
        entry: &InFlight,
        failed: bool,
    ) {
        if !self.on {
            return;
        }
        let now = self.now(context, stats.1);
        self.reaped_at = now;
        let (op, stamps) = (entry.class.op(), &entry.stamps);
        let device = now.saturating_sub(stamps.admitted.max(stamps.popped));
        stats.0.record(Stage::Device, op, device, 1);
        self.ended.push(Ended { op, known: stamps.known });
        let so_far = now.saturating_sub(stamps.known);
        if so_far >= self.bar {
            self.slow += 1;
            if self.slowest.is_none_or(|slowest| so_far > slowest.total_ns()) {
                let record = self.record(stamps, entry.class, entry.offset, entry.bytes, device);
                self.slowest = Some(Record { failed, ..record });
            }
        }
    }

    /// The end of a turn: what ended in it is about to be shown to the driver.
    pub(crate) fn published(
        &mut self,
        context: &mut Context<'_>,
        stats: (&Stages, &Recorder),
        table: &InFlightTable,
        in_flight: u16,
    ) {
        if !self.on || self.began == 0 {
            return;
        }
        let (stages, recorder) = stats;
        let now = at(self.base, context.now_again());
        if now >= self.minute_end {
            // The first of a minute is its slowest so far.
            self.minute_end = (now / MINUTE_NS + 1) * MINUTE_NS;
            self.longest_of_minute = recorder.longest_of_minute(now / MINUTE_NS);
            self.bar = 1;
        }
        self.record_groups(stages, now);
        self.record_ended(stages, now);
        if let Some(mut slowest) = self.slowest.take() {
            if slowest.stages_ns[2] == 0 {
                slowest.stages_ns[2] = now.saturating_sub(self.began);
            } else {
                slowest.stages_ns[3] = now.saturating_sub(self.reaped_at);
            }
            slowest.reactor = context.reactor();
            slowest.others = self.slow.saturating_sub(1);
            self.offer(&slowest, stats, now);
        }
        self.slow = 0;
        self.publish_state(recorder, table, in_flight);
        let took = now.saturating_sub(self.began);
        let busy = recorder.busy_ns.load(Ordering::Relaxed).wrapping_add(took);
        recorder.busy_ns.store(busy, Ordering::Relaxed);
        if took > recorder.longest_turn_ns.load(Ordering::Relaxed) {
            recorder.longest_turn_ns.store(took, Ordering::Relaxed);
        }
        self.began = 0;
    }

    fn record_groups(&mut self, stages: &Stages, now: u64) {
        for group in self.groups.drain(..) {
            let stamps = &group.stamps;
            let counts = group.popped.into_iter().zip(group.inline);
            for (op, (popped, inline)) in Op::ALL.into_iter().zip(counts) {
                if popped > 0 {
                    stages.record(Stage::Queue, op, stamps.queue(), popped.into());
                    if stamps.held > 0 {
                        stages.record(Stage::Cap, op, stamps.held, popped.into());
                    }
                }
                if inline > 0 {
                    let took = now.saturating_sub(stamps.admitted.max(stamps.popped));
                    stages.record(Stage::Device, op, took, inline.into());
                    let total = now.saturating_sub(stamps.known);
                    stages.record(Stage::Total, op, total, inline.into());
                }
            }
        }
    }

    fn record_ended(&mut self, stages: &Stages, now: u64) {
        let mut ended = [0u32; OPS];
        for one in self.ended.drain(..) {
            stages.record(Stage::Total, one.op, now.saturating_sub(one.known), 1);
            count(&mut ended, one.op as usize);
        }
        for (op, count) in Op::ALL.into_iter().zip(ended) {
            if count > 0 {
                let took = now.saturating_sub(self.reaped_at);
                stages.record(Stage::Completion, op, took, count.into());
            }
        }
    }

    /// Keeps a record if it is slow, or the slowest of this minute.
    fn offer(&mut self, record: &Record, stats: (&Stages, &Recorder), now: u64) {
        let total = record.total_ns();
        let op = record.class.op();
        if total >= SLOW_MIN_NS && now.saturating_sub(self.median_at) >= MEDIAN_EVERY_NS {
            self.median_at = now;
            let slow = stats.0.median_ns(Stage::Total, op).saturating_mul(SLOW_MEDIANS);
            if let Some(threshold) = self.thresholds.get_mut(op as usize) {
                *threshold = slow.max(SLOW_MIN_NS);
            }
        }
        if self.thresholds.get(op as usize).is_some_and(|threshold| total >= *threshold) {
            stats.1.slow(record);
        }
        if total > self.longest_of_minute {
            self.longest_of_minute = total;
            stats.1.slowest_of_minute(now / MINUTE_NS, record);
        }
        let least = self.thresholds.iter().copied().min().unwrap_or(SLOW_MIN_NS);
        self.bar = least.min(self.longest_of_minute);
    }

    fn publish_state(&mut self, recorder: &Recorder, table: &InFlightTable, in_flight: u16) {
        let (waiting, since) = self.order.waiting();
        recorder.in_flight.store(in_flight.into(), Ordering::Relaxed);
        recorder.in_ring.store(waiting as u32, Ordering::Relaxed);
        recorder.in_ring_since_ns.store(since, Ordering::Relaxed);
        let Some(oldest) = table.oldest() else {
            if self.oldest != 0 {
                self.oldest = 0;
                recorder.nothing_in_flight();
            }
            return;
        };
        let InFlight { class, offset, bytes, stamps, .. } = oldest;
        // Heads differ where times do not.
        let mark = stamps.popped ^ (u64::from(oldest.chain.head()) << 48);
        if mark != self.oldest {
            self.oldest = mark;
            let place = match stamps.admitted {
                0 => At::Cap(stamps.popped),
                admitted => At::Device(admitted),
            };
            recorder.oldest_is(*class, *offset, *bytes, stamps.known, place);
        }
    }
}

fn count(counts: &mut [u32; OPS], op: usize) {
    if let Some(one) = counts.get_mut(op) {
        *one += 1;
    }
}

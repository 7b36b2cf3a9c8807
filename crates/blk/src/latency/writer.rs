//! The writer's side: turns clock readings into histograms and records.
//!
//! In each turn, the owner of a ring calls in this order:
//!
//! 1. [`LatencyRecorder::reaped`] for each request that its disk has finished;
//! 2. [`LatencyRecorder::observe_poll`] after the poll of the ring;
//! 3. [`LatencyRecorder::popped`] for each request, then [`LatencyRecorder::inline`] if it ended
//!    during submission, or [`LatencyRecorder::pending`] if not;
//! 4. [`LatencyRecorder::completion_time`] when the driver can see the completions;
//! 5. [`LatencyRecorder::shown`].
//!
//! [`LatencyRecorder::held`] and [`LatencyRecorder::released`] report a request that the cap holds
//! back.
//!
//! Each call for a request only counts it. All other work happens once a turn, after the driver can
//! see its completions, so that the driver does not wait for it.

use std::sync::atomic::Ordering;

use reactor::{Context, OwnerId};

use super::arrivals::{Arrival, ArrivalQueue};
use super::batch::TurnBatch;
use super::flight_recorder::{InFlightStage, PublishedState};
use super::sampler::{TurnDurations, TurnSampler};
use super::slow::{Candidate, SlowFilter};
use super::{Class, FlightRecorder, InFlight, InFlightTable, RequestTimestamps, Stage, Stages};

/// Shortest turn of a neighbour that is recorded, in nanoseconds: a guest notices it.
const NEIGHBOUR_MIN_NS: u64 = 200_000;

/// Measurement state of the owner of a ring.
#[derive(Debug)]
pub(crate) struct LatencyRecorder {
    on: bool,
    label: OwnerId,
    /// Start of this turn; 0 before the first clock reading.
    began: u64,
    /// Whether this turn has popped a request, or its poll has seen one.
    seen: bool,
    arrival_queue: ArrivalQueue,
    batch: TurnBatch,
    slow: SlowFilter,
    turn_sampler: TurnSampler,
    /// Total time that the cap throttled the queue, up to `held_since` if it does now.
    held_total: u64,
    held_since: u64,
    /// State that readers see now.
    published_state: PublishedState,
    oldest: u64,
}

impl LatencyRecorder {
    pub(crate) fn new(on: bool, label: OwnerId) -> Self {
        Self {
            on,
            label,
            began: 0,
            seen: false,
            arrival_queue: ArrivalQueue::default(),
            batch: TurnBatch::default(),
            slow: SlowFilter::default(),
            turn_sampler: TurnSampler::default(),
            held_total: 0,
            held_since: 0,
            published_state: PublishedState::default(),
            oldest: 0,
        }
    }

    /// Begins a turn. If a turn found only requests that the cap holds back, its poll has seen
    /// nothing. The time since then does not count as queue time.
    #[inline]
    pub(crate) fn turn_begins(&mut self) {
        (self.began, self.seen) = (0, false);
    }

    /// Notes that the queue is about to run again after it slept.
    pub(crate) fn wakes(&mut self) {
        self.turn_sampler.wakes();
    }

    /// Notes a turn that found nothing.
    #[inline]
    pub(crate) fn rests(&mut self, stages: &Stages) {
        self.turn_sampler.rests(stages);
    }

    /// Records all counted turns, because the queue is about to sleep or to end.
    pub(crate) fn flush_counts(&mut self, stages: &Stages) {
        self.turn_sampler.put_down(stages);
    }

    /// Returns whether this turn may be counted without its times.
    #[inline]
    fn may_skip(&self, turn_durations: &TurnDurations, in_flight: u16) -> bool {
        self.turn_sampler.may_leave_out(turn_durations)
            && self.batch.is_plain()
            && in_flight == 0
            && self.arrival_queue.is_empty()
            && self.published_state == PublishedState::default()
    }

    /// Returns the time of this batch.
    #[inline]
    fn now(&mut self, context: &mut Context<'_>, recorder: &FlightRecorder) -> u64 {
        let now = context.now_ns();
        if self.began == 0 {
            self.began = now;
            let gap = now.saturating_sub(context.last_poll_ns());
            if gap >= NEIGHBOUR_MIN_NS {
                self.note_neighbour(context, recorder, now);
            }
        }
        now
    }

    #[cold]
    fn note_neighbour(&mut self, context: &Context<'_>, recorder: &FlightRecorder, now: u64) {
        let Some((label, time)) = context.longest_other(self.label) else { return };
        if time >= NEIGHBOUR_MIN_NS {
            self.slow.neighbour = Some((label, time, now));
            recorder.record_neighbour(label, time, now);
        }
    }

    fn held_by(&self, now: u64) -> u64 {
        let open = if self.held_since == 0 { 0 } else { now.saturating_sub(self.held_since) };
        self.held_total + open
    }

    /// Notes a poll of the ring that saw `waiting` requests.
    #[inline]
    pub(crate) fn observe_poll(
        &mut self,
        context: &mut Context<'_>,
        recorder: &FlightRecorder,
        waiting: u16,
    ) {
        if !self.on || waiting == 0 {
            return;
        }
        let now = self.now(context, recorder);
        let since = context.last_poll_ns().min(now);
        self.arrival_queue.observe(waiting, since, self.held_by(since));
        let request_timestamps = self.stamps(self.arrival_queue.first(), now);
        self.batch.begins(request_timestamps);
        self.seen = true;
    }

    /// Returns the timestamps of a request of `arrival` that is popped `now`.
    #[inline]
    fn stamps(&self, arrival: Arrival, now: u64) -> RequestTimestamps {
        let held = self.held_by(now).saturating_sub(arrival.held_ns);
        RequestTimestamps { known: arrival.since_ns, popped: now, admitted: now, held }
    }

    /// Notes that a request was popped.
    #[inline]
    pub(crate) fn popped(&mut self, context: &mut Context<'_>, recorder: &FlightRecorder) {
        if self.on && !self.arrival_queue.pop() && !(self.seen && self.arrival_queue.is_empty()) {
            self.popped_later(context, recorder);
        }
        // A request that came after the poll shares the times of those that the poll saw.
    }

    /// Notes the pop of the first request of an arrival, or of a turn whose poll saw nothing.
    #[inline(never)]
    fn popped_later(&mut self, context: &mut Context<'_>, recorder: &FlightRecorder) {
        let now = self.now(context, recorder);
        self.seen = true;
        let arrival = self.arrival_queue.pop_later();
        let arrival = arrival.unwrap_or_else(|| Arrival::at(now, self.held_by(now)));
        self.batch.set_times(self.stamps(arrival, now));
    }

    /// Notes that the popped request ended during submission.
    #[inline]
    pub(crate) fn inline(&mut self, class: Class, offset: u64, len: u64, failed: bool) {
        if !self.on {
            return;
        }
        self.batch.inline(class.op());
        let request_timestamps = self.batch.stamps();
        let one = || Candidate { class, offset, len, request_timestamps, reaped: 0, failed };
        self.slow.ended(request_timestamps.known, one);
    }

    /// Notes that the popped request is in flight. Returns the timestamps to store with it.
    #[inline]
    pub(crate) fn pending(&mut self, class: Class) -> RequestTimestamps {
        if !self.on {
            return RequestTimestamps::default();
        }
        self.batch.pending(class.op());
        self.batch.stamps()
    }

    /// Notes that the cap throttles the queue from now on, and the popped request if there is one.
    pub(crate) fn held(
        &mut self,
        context: &mut Context<'_>,
        recorder: &FlightRecorder,
        popped: Option<&mut RequestTimestamps>,
    ) {
        if !self.on {
            return;
        }
        let now = self.now(context, recorder);
        if self.held_since == 0 {
            self.held_since = now;
        }
        if let Some(request_timestamps) = popped {
            request_timestamps.admitted = 0;
        }
        recorder.held_by_cap.store(1, Ordering::Relaxed);
    }

    /// Notes that the cap releases the queue, and the popped request if there is one.
    pub(crate) fn released(
        &mut self,
        context: &mut Context<'_>,
        stats: (&Stages, &FlightRecorder),
        popped: Option<(&mut RequestTimestamps, Class)>,
    ) {
        if !self.on {
            return;
        }
        let now = self.now(context, stats.1);
        self.held_total = self.held_by(now);
        self.held_since = 0;
        stats.1.held_by_cap.store(0, Ordering::Relaxed);
        if let Some((request_timestamps, class)) = popped {
            request_timestamps.admitted = now;
            stats.0.record(
                Stage::Cap,
                class.op(),
                now.saturating_sub(request_timestamps.popped),
                1,
            );
            // If this is the oldest request, its published stage has changed.
            self.oldest = 0;
        }
    }

    /// Notes that a request that was held back ended during submission.
    pub(crate) fn ended_at_once(&mut self, entry: &InFlight, failed: bool) {
        if self.on {
            self.batch.ended(entry.class.op(), &entry.request_timestamps, 0);
            self.slow.ended(entry.request_timestamps.known, || candidate(entry, 0, failed));
        }
    }

    /// Notes that the disk has finished a request.
    #[inline]
    pub(crate) fn reaped(
        &mut self,
        context: &mut Context<'_>,
        recorder: &FlightRecorder,
        entry: &InFlight,
        failed: bool,
    ) {
        if !self.on {
            return;
        }
        let now = self.now(context, recorder);
        self.batch.ended(entry.class.op(), &entry.request_timestamps, now);
        let known = entry.request_timestamps.known;
        self.slow.reaped(known, now.saturating_sub(known), || candidate(entry, now, failed));
    }

    /// Returns the time at which the driver can see the completions of this turn, which is now; 0
    /// if there is nothing to record.
    #[inline]
    pub(crate) fn completion_time(&self, context: &mut Context<'_>) -> u64 {
        if self.on && self.began > 0 { context.now_again_ns() } else { 0 }
    }

    /// Ends the turn. The driver can see its completions since `now`, the result of
    /// [`LatencyRecorder::completion_time`].
    #[inline]
    pub(crate) fn shown(
        &mut self,
        now: u64,
        stats: (&Stages, &FlightRecorder),
        table: &InFlightTable,
        in_flight: u16,
    ) {
        if now == 0 {
            return;
        }
        let (stages, recorder) = stats;
        recorder.add_turn(now.saturating_sub(self.began));
        self.began = 0;
        let RequestTimestamps { known, popped, .. } = self.batch.stamps();
        let turn_durations = TurnDurations {
            queue: popped.saturating_sub(known),
            device: now.saturating_sub(popped),
            total: now.saturating_sub(known),
        };
        if self.may_skip(&turn_durations, in_flight) {
            self.slow.forget();
            return self.turn_sampler.leave_out(&self.batch.take_plain());
        }
        let short = self.batch.is_plain() && turn_durations.is_short();
        let joined = self.turn_sampler.timed(stages, short.then_some(turn_durations));
        self.batch.add_counts(joined);
        self.batch.record(stages, now);
        self.slow.turn_ends(stats, now);
        self.show_state(recorder, table, in_flight);
    }

    #[inline]
    fn show_state(&mut self, recorder: &FlightRecorder, table: &InFlightTable, in_flight: u16) {
        let (in_ring, in_ring_since_ns) = self.arrival_queue.waiting();
        let published_state =
            PublishedState { in_flight: in_flight.into(), in_ring, in_ring_since_ns };
        if published_state != self.published_state {
            self.published_state = published_state;
            recorder.show(published_state);
        }
        match table.oldest() {
            Some(oldest) => self.show_oldest(recorder, oldest),
            None if self.oldest != 0 => {
                self.oldest = 0;
                recorder.nothing_in_flight();
            }
            None => {}
        }
    }

    fn show_oldest(&mut self, recorder: &FlightRecorder, oldest: &InFlight) {
        let InFlight { class, offset, bytes, request_timestamps, .. } = oldest;
        // Requests with equal times have different heads.
        let mark = request_timestamps.popped ^ (u64::from(oldest.chain.head()) << 48);
        if mark != self.oldest {
            self.oldest = mark;
            let place = match request_timestamps.admitted {
                0 => InFlightStage::Cap(request_timestamps.popped),
                admitted => InFlightStage::Device(admitted),
            };
            recorder.publish_oldest(*class, *offset, *bytes, request_timestamps.known, place);
        }
    }
}

fn candidate(entry: &InFlight, reaped: u64, failed: bool) -> Candidate {
    let InFlight { class, offset, bytes: len, request_timestamps: stamps, .. } = *entry;
    Candidate { class, offset, len, request_timestamps: stamps, reaped, failed }
}

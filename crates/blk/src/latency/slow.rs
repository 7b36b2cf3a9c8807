//! Selects the requests to record: the slow ones, and the slowest of each minute.

use reactor::OwnerId;

use super::flight_recorder::MINUTE_NS;
use super::stages::OPS;
use super::{Class, FlightRecorder, RequestTimestamps, SlowRequest, Stage, Stages};

/// A request is slow if it takes at least this long and ten times the median of its kind.
const SLOW_MIN_NS: u64 = 10_000_000;
const SLOW_MEDIANS: u64 = 10;
/// Shortest interval between two computations of the median.
const MEDIAN_EVERY_NS: u64 = 1_000_000_000;

/// A request that may be the slowest of its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) class: Class,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) request_timestamps: RequestTimestamps,
    /// Time at which the reactor saw its end; 0 if it ended during submission.
    pub(crate) reaped: u64,
    pub(crate) failed: bool,
}

impl Candidate {
    /// Returns the record of a request that the driver sees as completed at `now`.
    fn record(&self, now: u64, reactor: u32) -> SlowRequest {
        let Self { class, offset, len, request_timestamps, reaped, failed } = *self;
        let seen = if reaped == 0 { now } else { reaped };
        let device = seen.saturating_sub(request_timestamps.given());
        let completion = now.saturating_sub(seen);
        SlowRequest {
            class,
            failed,
            offset,
            len,
            known_ns: request_timestamps.known,
            stages_ns: [request_timestamps.queue(), request_timestamps.cap(), device, completion],
            reactor,
            others: 0,
            neighbour: None,
        }
    }
}

/// Thresholds for slow requests, and the slowest request of the current turn.
#[derive(Debug)]
pub(crate) struct SlowFilter {
    /// Slowest request that ended in this turn; the first of equal ones.
    slowest: Option<Candidate>,
    /// Time at which that request was known; `u64::MAX` if there is none.
    slowest_known: u64,
    /// Number of requests that the disk ended in this turn and that reach `bar`.
    many: u32,
    /// Duration in nanoseconds below which a request needs no record.
    bar: u64,
    minute_end: u64,
    longest_of_minute: u64,
    thresholds: [u64; OPS],
    median_at: u64,
    /// Last neighbour with a long turn: label, duration and time in nanoseconds.
    pub(crate) neighbour: Option<(OwnerId, u64, u64)>,
}

impl Default for SlowFilter {
    fn default() -> Self {
        Self {
            slowest: None,
            slowest_known: u64::MAX,
            many: 0,
            bar: 1,
            minute_end: 0,
            longest_of_minute: 0,
            thresholds: [SLOW_MIN_NS; OPS],
            median_at: 0,
            neighbour: None,
        }
    }
}

impl SlowFilter {
    /// Notes an ended request. All requests of a turn end together, so the one that was known
    /// first is the slowest.
    #[inline]
    pub(crate) fn ended(&mut self, known: u64, one: impl FnOnce() -> Candidate) {
        if known < self.slowest_known {
            (self.slowest, self.slowest_known) = (Some(one()), known);
        }
    }

    /// Notes a request that the disk has ended and that took `so_far` nanoseconds.
    #[inline]
    pub(crate) fn reaped(&mut self, known: u64, so_far: u64, one: impl FnOnce() -> Candidate) {
        if so_far >= self.bar {
            self.many += 1;
            self.ended(known, one);
        }
    }

    /// Forgets the requests of this turn, because none was slow.
    #[inline]
    pub(crate) fn forget(&mut self) {
        (self.slowest_known, self.many) = (u64::MAX, 0);
    }

    /// Ends the turn and records its slowest request if that reaches `bar`.
    #[inline]
    pub(crate) fn turn_ends(&mut self, stats: (&Stages, &FlightRecorder), now: u64) {
        if now >= self.minute_end {
            self.minute_begins(stats.1, now);
        }
        let known = std::mem::replace(&mut self.slowest_known, u64::MAX);
        if now.saturating_sub(known) >= self.bar
            && let Some(slowest) = self.slowest.take()
        {
            self.offer(&slowest, stats, now);
        }
        self.many = 0;
    }

    /// Begins a minute; its first request is its slowest so far.
    #[cold]
    fn minute_begins(&mut self, recorder: &FlightRecorder, now: u64) {
        let minute = now / MINUTE_NS;
        self.minute_end = (minute + 1).saturating_mul(MINUTE_NS);
        self.longest_of_minute = recorder.longest_of_minute(minute);
        self.bar = 1;
    }

    /// Records the request if it is slow, or the slowest of this minute.
    #[cold]
    fn offer(&mut self, one: &Candidate, stats: (&Stages, &FlightRecorder), now: u64) {
        let (stages, recorder) = stats;
        let reactor = recorder.reactor.load(std::sync::atomic::Ordering::Relaxed);
        let neighbour = self.neighbour.filter(|(_, _, at)| *at >= one.request_timestamps.known);
        let record = SlowRequest {
            others: self.many.saturating_sub(1),
            neighbour: neighbour.map(|(label, time, _)| (label, time)),
            ..one.record(now, reactor)
        };
        let total = record.total_ns();
        let op = record.class.op();
        if total >= SLOW_MIN_NS && now.saturating_sub(self.median_at) >= MEDIAN_EVERY_NS {
            self.median_at = now;
            let slow = stages.median_ns(Stage::Total, op).saturating_mul(SLOW_MEDIANS);
            if let Some(threshold) = self.thresholds.get_mut(op as usize) {
                *threshold = slow.max(SLOW_MIN_NS);
            }
        }
        if self.thresholds.get(op as usize).is_some_and(|threshold| total >= *threshold) {
            recorder.slow(&record);
        }
        if total > self.longest_of_minute {
            self.longest_of_minute = total;
            recorder.slowest_of_minute(now / MINUTE_NS, &record);
        }
        let least = self.thresholds.iter().copied().min().unwrap_or(SLOW_MIN_NS);
        // A request as long as the longest changes nothing.
        self.bar = least.min(self.longest_of_minute.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(known: u64) -> Candidate {
        let request_timestamps =
            RequestTimestamps { known, popped: known + 5, admitted: known + 5, held: 0 };
        let (class, reaped, failed) = (Class::Write, known + 20, false);
        Candidate { class, offset: known, len: 512, request_timestamps, reaped, failed }
    }

    #[test]
    fn the_slowest_of_a_turn_is_offered_with_the_number_of_the_others() {
        let (mut slow, stages, recorder) =
            (SlowFilter::default(), Stages::default(), FlightRecorder::default());
        for at in [300, 100, 200] {
            slow.reaped(at, 400 - at, || known(at));
        }
        slow.turn_ends((&stages, &recorder), 430);
        let [record] = recorder.records()[..] else { panic!("{:?}", recorder.records()) };
        assert_eq!((record.known_ns, record.offset, record.others), (100, 100, 2));
        assert_eq!((record.total_ns(), record.stages_ns), (330, [5, 0, 15, 310]));
    }

    #[test]
    fn a_minute_keeps_its_slowest_and_all_that_is_slow_is_kept() {
        let (mut slow, stages, recorder) =
            (SlowFilter::default(), Stages::default(), FlightRecorder::default());
        let stats = (&stages, &recorder);
        let mut ends = |from: u64, took: u64| {
            slow.ended(from, || known(from));
            slow.turn_ends(stats, from + took);
            recorder.records().len()
        };
        assert_eq!(ends(1000, 500), 1, "the first of the minute");
        assert_eq!(ends(2000, 500), 1, "no longer than that");
        assert_eq!(ends(3000, 900), 1, "takes its place");
        assert_eq!(recorder.longest_of_minute(0), 900);
        assert_eq!(ends(4000, SLOW_MIN_NS), 2, "slow, and the slowest");
        assert_eq!(ends(50_000_000, SLOW_MIN_NS), 3, "slow");
        assert_eq!(ends(MINUTE_NS, 30), 4, "the first of the next minute");
    }
}

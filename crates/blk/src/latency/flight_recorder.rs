//! The flight recorder of a queue: slow requests, and the requests in flight now.
//!
//! One thread writes. Any thread may read at any time, even while the storage hangs or the writer
//! is stuck: the reader computes ages from the time at which a request was known.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use reactor::OwnerId;

use super::seqlock::SeqLock;
use super::{Class, Stage};

/// Number of slow requests stored for each queue.
const SLOW_KEPT: u64 = 48;
/// Number of minutes whose slowest request is stored.
const MINUTES_KEPT: u64 = 16;
pub(crate) const MINUTE_NS: u64 = 60_000_000_000;
const WORDS: usize = 11;

/// A slow request. Times are nanoseconds on the clock of [`crate::clock_ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// Kind of request.
    pub class: Class,
    /// Whether it failed.
    pub failed: bool,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Time at which the reactor could first know of it.
    pub known_ns: u64,
    /// Time in each stage, in nanoseconds: queue, cap, device, completion.
    pub stages_ns: [u64; 4],
    /// Number of the reactor that served it.
    pub reactor: u32,
    /// Number of slow but faster requests that ended in the same turn.
    pub others: u32,
    /// Neighbour that the reactor served meanwhile for a long turn, and the turn's duration in
    /// nanoseconds.
    pub neighbour: Option<(OwnerId, u64)>,
}

impl SlowRequest {
    /// Returns the time from known to the end, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.stages_ns.iter().sum()
    }

    fn words(&self) -> [u64; WORDS] {
        let [queue, cap, device, completion] = self.stages_ns;
        let (label, time) = self.neighbour.unwrap_or_default();
        let kind = self.class as u64 | u64::from(self.failed) << 8;
        let who = u64::from(self.reactor) << 32 | u64::from(self.others);
        let Self { offset, len, known_ns, .. } = *self;
        [kind, offset, len, known_ns, queue, cap, device, completion, who, label.into(), time]
    }

    fn from_words(words: [u64; WORDS]) -> Self {
        let [kind, offset, len, known_ns, queue, cap, device, completion, who, label, time] = words;
        Self {
            class: Class::from_code(kind as u8),
            failed: kind & 1 << 8 != 0,
            offset,
            len,
            known_ns,
            stages_ns: [queue, cap, device, completion],
            reactor: (who >> 32) as u32,
            others: who as u32,
            neighbour: (label != 0).then_some((label as u32, time)),
        }
    }
}

/// The oldest unfinished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// Kind, offset and length in bytes; `None` while the request is still in the ring.
    pub request: Option<(Class, u64, u64)>,
    /// Current stage.
    pub stage: Stage,
    /// Time at which the reactor could first know of it, in nanoseconds on [`crate::clock_ns`].
    pub known_ns: u64,
    /// Time at which it entered its current stage, on the same clock.
    pub entered_ns: u64,
}

/// Published counts of waiting and in-flight requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublishedState {
    pub(crate) in_flight: u32,
    pub(crate) in_ring: u32,
    /// Time at which the first request in the ring was known; 0 if the ring is empty.
    pub(crate) in_ring_since_ns: u64,
}

#[derive(Debug)]
struct RecordSlot {
    slow: [SeqLock<WORDS>; SLOW_KEPT as usize],
    minutes: [SeqLock<WORDS>; MINUTES_KEPT as usize],
}

/// Data that one queue publishes about its requests.
#[derive(Debug, Default)]
pub(crate) struct FlightRecorder {
    /// Class and stage, offset, length, time known, time of entering the stage.
    oldest: SeqLock<5>,
    record_slot: OnceLock<Box<RecordSlot>>,
    written: AtomicU64,
    pub(crate) in_flight: AtomicU32,
    pub(crate) in_ring: AtomicU32,
    pub(crate) in_ring_since_ns: AtomicU64,
    pub(crate) held_by_cap: AtomicU32,
    pub(crate) served: AtomicBool,
    pub(crate) reactor: AtomicU32,
    pub(crate) busy_ns: AtomicU64,
    pub(crate) longest_turn_ns: AtomicU64,
    pub(crate) neighbour_ns: AtomicU64,
    /// Label, duration of its turn, time.
    neighbour: SeqLock<3>,
}

const NOTHING: u64 = 0;
const IN_CAP: u64 = 1;
const IN_DEVICE: u64 = 2;

impl FlightRecorder {
    fn kept(&self) -> &RecordSlot {
        self.record_slot.get_or_init(|| {
            Box::new(RecordSlot {
                slow: [const { SeqLock::new() }; SLOW_KEPT as usize],
                minutes: [const { SeqLock::new() }; MINUTES_KEPT as usize],
            })
        })
    }

    /// Marks the queue as served by `reactor`.
    pub(crate) fn starts(&self, reactor: u32) {
        self.reactor.store(reactor, Ordering::Relaxed);
        self.served.store(true, Ordering::Relaxed);
    }

    /// Marks the queue as not served.
    pub(crate) fn ends(&self) {
        self.served.store(false, Ordering::Relaxed);
        self.nothing_in_flight();
        for count in [&self.in_flight, &self.in_ring, &self.held_by_cap] {
            count.store(0, Ordering::Relaxed);
        }
        self.in_ring_since_ns.store(0, Ordering::Relaxed);
    }

    /// Stores a slow request. Only the owning thread may call this and the other writers.
    pub(crate) fn slow(&self, record: &SlowRequest) {
        let at = self.written.load(Ordering::Relaxed);
        self.written.store(at.wrapping_add(1), Ordering::Relaxed);
        if let Some(place) = self.kept().slow.get((at % SLOW_KEPT) as usize) {
            place.write(record.words());
        }
    }

    /// Stores the slowest request of a minute.
    pub(crate) fn slowest_of_minute(&self, minute: u64, record: &SlowRequest) {
        if let Some(place) = self.kept().minutes.get((minute % MINUTES_KEPT) as usize) {
            place.write(record.words());
        }
    }

    /// Returns the total time of the slowest request stored for `minute`; 0 if there is none.
    pub(crate) fn longest_of_minute(&self, minute: u64) -> u64 {
        let kept = self.record_slot.get().and_then(|record_slot| {
            record_slot
                .minutes
                .get((minute % MINUTES_KEPT) as usize)?
                .read()
                .map(SlowRequest::from_words)
        });
        let record = kept.filter(|one| (one.known_ns + one.total_ns()) / MINUTE_NS == minute);
        record.map_or(0, |one| one.total_ns())
    }

    /// Returns the stored slow requests and the slowest of each minute, in no order.
    pub(crate) fn records(&self) -> Vec<SlowRequest> {
        let Some(record_slot) = self.record_slot.get() else { return Vec::new() };
        let all = record_slot.slow.iter().chain(&record_slot.minutes);
        all.filter_map(SeqLock::read).map(SlowRequest::from_words).collect()
    }

    /// Publishes the counts of waiting and in-flight requests.
    pub(crate) fn show(&self, published_state: PublishedState) {
        self.in_flight.store(published_state.in_flight, Ordering::Relaxed);
        self.in_ring.store(published_state.in_ring, Ordering::Relaxed);
        self.in_ring_since_ns.store(published_state.in_ring_since_ns, Ordering::Relaxed);
    }

    /// Adds the duration of a turn that has ended.
    #[inline]
    pub(crate) fn add_turn(&self, ns: u64) {
        let busy = self.busy_ns.load(Ordering::Relaxed).wrapping_add(ns);
        self.busy_ns.store(busy, Ordering::Relaxed);
        if ns > self.longest_turn_ns.load(Ordering::Relaxed) {
            self.longest_turn_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// Publishes the oldest request in flight.
    pub(crate) fn publish_oldest(
        &self,
        class: Class,
        offset: u64,
        len: u64,
        known: u64,
        in_flight_stage: InFlightStage,
    ) {
        let (stage, entered) = match in_flight_stage {
            InFlightStage::Cap(entered) => (IN_CAP, entered),
            InFlightStage::Device(entered) => (IN_DEVICE, entered),
        };
        self.oldest.write([class as u64 | stage << 8, offset, len, known, entered]);
    }

    pub(crate) fn nothing_in_flight(&self) {
        self.oldest.write([NOTHING; 5]);
    }

    pub(crate) fn record_neighbour(&self, label: OwnerId, time_ns: u64, at_ns: u64) {
        let sum = self.neighbour_ns.load(Ordering::Relaxed).wrapping_add(time_ns);
        self.neighbour_ns.store(sum, Ordering::Relaxed);
        self.neighbour.write([label.into(), time_ns, at_ns]);
    }

    /// Returns the neighbour whose long turn last kept this queue waiting: label, duration and time
    /// in nanoseconds.
    pub(crate) fn neighbour(&self) -> Option<(OwnerId, u64, u64)> {
        self.neighbour.read().map(|[label, time, at]| (label as u32, time, at))
    }

    /// Returns the oldest unfinished request: the first one in flight, else the first in the ring.
    pub(crate) fn oldest(&self) -> Option<Oldest> {
        let in_flight = self.oldest.read().and_then(|[kind, offset, len, known_ns, entered_ns]| {
            let stage = match kind >> 8 {
                IN_CAP => Stage::Cap,
                IN_DEVICE => Stage::Device,
                _ => return None,
            };
            let request = Some((Class::from_code(kind as u8), offset, len));
            Some(Oldest { request, stage, known_ns, entered_ns })
        });
        in_flight.or_else(|| {
            let known_ns = self.in_ring_since_ns.load(Ordering::Relaxed);
            let held = self.held_by_cap.load(Ordering::Relaxed) != 0;
            let stage = if held { Stage::Cap } else { Stage::Queue };
            let there = known_ns != 0;
            there.then_some(Oldest { request: None, stage, known_ns, entered_ns: known_ns })
        })
    }
}

/// Stage of a request in flight, and when it entered it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InFlightStage {
    Cap(u64),
    Device(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(known_ns: u64) -> SlowRequest {
        SlowRequest {
            class: Class::Write,
            failed: true,
            offset: 4096,
            len: 512,
            known_ns,
            stages_ns: [1, 2, 3, 4],
            reactor: 3,
            others: 5,
            neighbour: Some((9, 77)),
        }
    }

    #[test]
    fn the_last_slow_requests_are_kept() {
        let recorder = FlightRecorder::default();
        assert!(recorder.records().is_empty());
        for at in 1..=SLOW_KEPT + 3 {
            recorder.slow(&record(at));
        }
        let mut kept = recorder.records();
        kept.sort_by_key(|one| one.known_ns);
        assert_eq!(kept.len() as u64, SLOW_KEPT);
        assert_eq!(kept[0], record(4));
    }

    #[test]
    fn the_slowest_of_a_minute_is_known_in_that_minute_only() {
        let recorder = FlightRecorder::default();
        recorder.slowest_of_minute(2, &record(2 * MINUTE_NS));
        assert_eq!(recorder.longest_of_minute(2), 10);
        assert_eq!(recorder.longest_of_minute(2 + MINUTES_KEPT), 0);
        assert_eq!(recorder.longest_of_minute(3), 0);
    }

    #[test]
    fn the_oldest_is_in_flight_or_in_the_ring() {
        let recorder = FlightRecorder::default();
        assert_eq!(recorder.oldest(), None);
        recorder.in_ring_since_ns.store(5, Ordering::Relaxed);
        let oldest = recorder.oldest().unwrap();
        assert_eq!((oldest.stage, oldest.known_ns, oldest.request), (Stage::Queue, 5, None));
        recorder.publish_oldest(Class::Read, 8192, 4096, 3, InFlightStage::Device(4));
        let oldest = recorder.oldest().unwrap();
        assert_eq!((oldest.stage, oldest.known_ns, oldest.entered_ns), (Stage::Device, 3, 4));
        assert_eq!(oldest.request, Some((Class::Read, 8192, 4096)));
        recorder.nothing_in_flight();
        assert_eq!(recorder.oldest().unwrap().stage, Stage::Queue);
    }
}

//! What a device counts. Each queue writes its own counters; readers sum them up.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::latency::{Class, FlightRecorder, Op, Stage, Stages};
use reactor::{OwnerId, PollControl, PollState, Summary};

const CLASSES: usize = 6;

/// Counters of one queue: one writer, no read-modify-write.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct QueueStats {
    requests: [AtomicU64; CLASSES],
    bytes: [AtomicU64; CLASSES],
    errors: AtomicU64,
    kicks: AtomicU64,
    calls: AtomicU64,
    resubmitted: AtomicU64,
    pub(crate) stages: Stages,
    pub(crate) recorder: FlightRecorder,
    pub(crate) poll_control: PollControl,
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl QueueStats {
    pub(crate) fn request(&self, class: Class, bytes: u64) {
        let at = class as usize;
        if let (Some(requests), Some(sum)) = (self.requests.get(at), self.bytes.get(at)) {
            bump(requests, 1);
            bump(sum, bytes);
        }
    }

    pub(crate) fn error(&self) {
        bump(&self.errors, 1);
    }

    pub(crate) fn kick(&self) {
        bump(&self.kicks, 1);
    }

    pub(crate) fn call(&self) {
        bump(&self.calls, 1);
    }

    pub(crate) fn busy_ns(&self) -> u64 {
        self.recorder.busy_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn resubmitted(&self, count: u64) {
        bump(&self.resubmitted, count);
    }
}

/// A number for each kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// IN.
    pub read: u64,
    /// OUT.
    pub write: u64,
    /// FLUSH.
    pub flush: u64,
    /// DISCARD.
    pub discard: u64,
    /// WRITE_ZEROES.
    pub write_zeroes: u64,
    /// GET_ID.
    pub get_id: u64,
}

impl From<[u64; CLASSES]> for Counts {
    fn from(sums: [u64; CLASSES]) -> Self {
        let [read, write, flush, discard, write_zeroes, get_id] = sums;
        Self { read, write, flush, discard, write_zeroes, get_id }
    }
}

/// Sums over the queues of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Requests that ended.
    pub requests: Counts,
    /// Bytes that they moved, freed or zeroed.
    pub bytes: Counts,
    /// Requests that ended in an error, or could not be answered.
    pub errors: u64,
    /// Kicks received.
    pub kicks: u64,
    /// Calls sent.
    pub calls: u64,
    /// Requests that a former life of a queue left in flight and that were submitted again.
    pub resubmitted: u64,
    /// From when they were known to their end, without flushes.
    pub latency: Summary,
}

impl DeviceStats {
    /// Adds up.
    pub(crate) fn sum<'a>(queues: impl Iterator<Item = &'a QueueStats> + Clone) -> Self {
        let (mut requests, mut bytes) = ([0; CLASSES], [0; CLASSES]);
        let mut out = Self::default();
        for queue in queues.clone() {
            let add = |sums: &mut [u64; CLASSES], from: &[AtomicU64; CLASSES]| {
                for (sum, one) in sums.iter_mut().zip(from) {
                    *sum += one.load(Ordering::Relaxed);
                }
            };
            add(&mut requests, &queue.requests);
            add(&mut bytes, &queue.bytes);
            out.errors += queue.errors.load(Ordering::Relaxed);
            out.kicks += queue.kicks.load(Ordering::Relaxed);
            out.calls += queue.calls.load(Ordering::Relaxed);
            out.resubmitted += queue.resubmitted.load(Ordering::Relaxed);
        }
        out.requests = requests.into();
        out.bytes = bytes.into();
        let mut total = None;
        for queue in queues {
            for op in [Op::Read, Op::Write, Op::Other] {
                queue.stages.add_to(Stage::Total, op, &mut total);
            }
        }
        out.latency = total.unwrap_or_default().summary();
        out
    }
}

/// One queue as it stands now. Counts lag behind by the turn that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// It is served now.
    pub served: bool,
    /// Number of the reactor that serves it, or served it last.
    pub reactor: u32,
    /// Requests that the disk works on.
    pub in_flight: u32,
    /// Requests in the ring, as the last turn left it.
    pub in_ring: u32,
    /// The cap holds it.
    pub held_by_cap: bool,
    /// Time that its turns took, in nanoseconds.
    pub busy_ns: u64,
    /// The longest of its turns, in nanoseconds.
    pub longest_turn_ns: u64,
    /// Time of neighbours' turns that it waited for, in nanoseconds; short ones are not counted.
    pub neighbour_ns: u64,
    /// The last of them: whose, how long in nanoseconds, and when on [`crate::clock_ns`].
    pub neighbour: Option<(OwnerId, u64, u64)>,
    /// How it has waited when it had nothing to do.
    pub poll: PollState,
}

impl QueueState {
    pub(crate) fn of(stats: &QueueStats) -> Self {
        let recorder = &stats.recorder;
        Self {
            poll: stats.poll_control.state(),
            served: recorder.served.load(Ordering::Relaxed),
            reactor: recorder.reactor.load(Ordering::Relaxed),
            in_flight: recorder.in_flight.load(Ordering::Relaxed),
            in_ring: recorder.in_ring.load(Ordering::Relaxed),
            held_by_cap: recorder.held_by_cap.load(Ordering::Relaxed) != 0,
            busy_ns: recorder.busy_ns.load(Ordering::Relaxed),
            longest_turn_ns: recorder.longest_turn_ns.load(Ordering::Relaxed),
            neighbour_ns: recorder.neighbour_ns.load(Ordering::Relaxed),
            neighbour: recorder.neighbour(),
        }
    }
}

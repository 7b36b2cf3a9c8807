//! Counters of a device. Each queue writes its own counters; readers add them up.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::latency::{Class, FlightRecorder, Op, Stage, Stages};
use crate::storage_errors::{StorageErrorRecord, StorageErrors};
use reactor::{OwnerId, PollControl, PollState, Summary};
use virtq::BrokenRingRecord;

const CLASSES: usize = 6;

/// Counters of one queue. Only its reactor writes them, without read-modify-write operations.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct QueueStats {
    requests: [AtomicU64; CLASSES],
    bytes: [AtomicU64; CLASSES],
    errors: AtomicU64,
    kicks: AtomicU64,
    calls: AtomicU64,
    publishes: AtomicU64,
    resubmitted: AtomicU64,
    failed_suspects: AtomicU64,
    pub(crate) stages: Stages,
    pub(crate) recorder: FlightRecorder,
    pub(crate) poll_control: PollControl,
    pub(crate) broken_ring: BrokenRingRecord,
    pub(crate) storage_errors: StorageErrorRecord,
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

    pub(crate) fn publish(&self) {
        bump(&self.publishes, 1);
    }

    pub(crate) fn busy_ns(&self) -> u64 {
        self.recorder.busy_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn failed_suspect(&self) {
        bump(&self.failed_suspects, 1);
    }

    pub(crate) fn resubmitted(&self, count: u64) {
        bump(&self.resubmitted, count);
    }
}

/// A number for each kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads (IN).
    pub read: u64,
    /// Writes (OUT).
    pub write: u64,
    /// Flushes (FLUSH).
    pub flush: u64,
    /// Discards (DISCARD).
    pub discard: u64,
    /// Writes of zeroes (WRITE_ZEROES).
    pub write_zeroes: u64,
    /// Requests for the serial number (GET_ID).
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
    /// Completed requests.
    pub requests: Counts,
    /// Bytes that completed requests moved, discarded or zeroed.
    pub bytes: Counts,
    /// Requests that failed or could not be answered.
    pub errors: u64,
    /// Kicks received.
    pub kicks: u64,
    /// Calls sent.
    pub calls: u64,
    /// Times that completions were published: one or more at once.
    pub publishes: u64,
    /// Requests that were in flight when a former process died, and that were submitted again.
    pub resubmitted: u64,
    /// Requests that failed because each was alone in flight when a process died by its own fault.
    pub failed_suspects: u64,
    /// Requests that failed because of the storage, if there are any.
    pub storage_errors: Option<StorageErrors>,
    /// Times that a ring broke: its driver violated the virtqueue rules, or it could not start.
    pub broken_rings: u64,
    /// Total latency, from known to the end, without flushes.
    pub latency: Summary,
}

impl DeviceStats {
    /// Adds up the counters of `queues`.
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
            out.publishes += queue.publishes.load(Ordering::Relaxed);
            out.resubmitted += queue.resubmitted.load(Ordering::Relaxed);
            out.failed_suspects += queue.failed_suspects.load(Ordering::Relaxed);
            out.broken_rings += queue.broken_ring.count();
        }
        out.storage_errors =
            StorageErrorRecord::sum(queues.clone().map(|queue| &queue.storage_errors));
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

/// Current state of one queue. Counts exclude the current turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Whether a reactor serves the queue.
    pub served: bool,
    /// Number of the reactor that serves it, or served it last.
    pub reactor: u32,
    /// Number of requests that the disk works on.
    pub in_flight: u32,
    /// Number of requests in the ring at the end of the last turn.
    pub in_ring: u32,
    /// Whether the cap holds requests of the queue back.
    pub held_by_cap: bool,
    /// Total duration of its turns, in nanoseconds.
    pub busy_ns: u64,
    /// Duration of its longest turn, in nanoseconds.
    pub longest_turn_ns: u64,
    /// Time that the queue waited for long turns of neighbours, in nanoseconds.
    pub neighbour_ns: u64,
    /// The last such turn: its owner, its duration in nanoseconds, and its time on
    /// [`crate::clock_ns`].
    pub neighbour: Option<(OwnerId, u64, u64)>,
    /// Polling state of the queue.
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

//! Counters and wait statistics of a queue pair.
//!
//! The reactor that serves the pair writes, any thread reads. There is no read-modify-write, and no
//! memory that two reactors write.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use net::{Drops, Reason};
use reactor::{Histogram, PollControl, PollState, Snapshot};

use crate::counts::{ByReason, add};

/// Number of size counters: one for each power of two.
pub const SIZES: usize = 12;
/// Frames below 2^6 bytes share the first size counter.
const FIRST_BIT: u32 = 6;

/// Returns the size counter for frames of `bytes` bytes.
fn size(bytes: usize) -> usize {
    let bits = usize::BITS - bytes.leading_zeros();
    (bits.saturating_sub(FIRST_BIT) as usize).min(SIZES - 1)
}

/// Returns the largest frame, in bytes, for each size counter but the last.
pub fn size_bounds() -> impl Iterator<Item = u64> {
    (FIRST_BIT..).take(SIZES - 1).map(|bit| (1 << bit) - 1)
}

/// Counters of one direction.
#[derive(Debug, Default)]
struct DirectionCounters {
    frames: AtomicU64,
    bytes: AtomicU64,
    sizes: [AtomicU64; SIZES],
    drops: Drops,
}

impl DirectionCounters {
    fn count(&self, bytes: usize) {
        add(&self.frames, 1);
        add(&self.bytes, bytes as u64);
        if let Some(counter) = self.sizes.get(size(bytes)) {
            add(counter, 1);
        }
    }

    fn read(&self) -> DirectionCounts {
        let mut drops = ByReason::default();
        drops.add(&self.drops);
        DirectionCounts {
            frames: self.frames.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            sizes: self.sizes.each_ref().map(|counter| counter.load(Ordering::Relaxed)),
            drops,
        }
    }
}

/// Counters of a pair since its port was added.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueCounts {
    sent: DirectionCounters,
    got: DirectionCounters,
    /// Times that the rate limit throttled the pair, and the total time in nanoseconds.
    held: AtomicU64,
    held_ns: AtomicU64,
    /// Time since which the pair is throttled, in nanoseconds; 0 if it is not.
    held_since: AtomicU64,
    /// Frames that waited for buffers, and those that wait now.
    waited: AtomicU64,
    waiting: AtomicU64,
    reactor: AtomicU32,
    served: AtomicBool,
    pub(crate) residence: Histogram,
    pub(crate) poll_control: PollControl,
}

impl QueueCounts {
    /// Records that the reactor of this number serves the pair from now on.
    pub(crate) fn start(&self, reactor: u32) {
        self.reactor.store(reactor, Ordering::Relaxed);
        self.served.store(true, Ordering::Relaxed);
    }

    /// Records that no reactor serves the pair any more.
    pub(crate) fn stop(&self) {
        self.served.store(false, Ordering::Relaxed);
        self.held_since.store(0, Ordering::Relaxed);
    }

    /// Counts a frame of `bytes` bytes that the pair sent, with the reason if it was dropped.
    pub(crate) fn count_sent(&self, bytes: usize, refused: Option<Reason>) {
        self.sent.count(bytes);
        if let Some(reason) = refused {
            self.sent.drops.count(reason);
        }
    }

    /// Counts the outcome of a frame of `bytes` bytes for the pair.
    pub(crate) fn count_received(&self, bytes: usize, outcome: Result<(), Reason>) {
        match outcome {
            Ok(()) => self.got.count(bytes),
            Err(reason) => self.got.drops.count(reason),
        }
    }

    /// Counts a frame that waits for buffers; `waiting` frames wait in all.
    pub(crate) fn waits(&self, waiting: usize) {
        add(&self.waited, 1);
        self.still_waits(waiting);
    }

    /// Sets the number of waiting frames.
    pub(crate) fn still_waits(&self, waiting: usize) {
        self.waiting.store(waiting as u64, Ordering::Relaxed);
    }

    /// Records that the rate limit throttles the pair at `now_ns`.
    pub(crate) fn throttle(&self, now_ns: u64) {
        if self.held_since.load(Ordering::Relaxed) == 0 {
            add(&self.held, 1);
            self.held_since.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    /// Records that the rate limit admits the pair again at `now_ns`.
    pub(crate) fn unthrottle(&self, now_ns: u64) {
        let since = self.held_since.load(Ordering::Relaxed);
        if since > 0 {
            add(&self.held_ns, now_ns.saturating_sub(since));
            self.held_since.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the current statistics.
    pub(crate) fn read(&self) -> PairStats {
        let mut residence = Snapshot::default();
        residence.add(&self.residence);
        let held_since = self.held_since.load(Ordering::Relaxed);
        PairStats {
            served: self.served.load(Ordering::Relaxed),
            reactor: self.reactor.load(Ordering::Relaxed),
            sent: self.sent.read(),
            got: self.got.read(),
            held: self.held.load(Ordering::Relaxed),
            held_ns: self.held_ns.load(Ordering::Relaxed),
            waited: self.waited.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            held_since_ns: (held_since > 0).then_some(held_since),
            residence,
            poll: self.poll_control.state(),
        }
    }
}

/// Counts of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounts {
    /// Frames; for the sent direction including dropped ones.
    pub frames: u64,
    /// Bytes of these frames, without virtio-net headers.
    pub bytes: u64,
    /// Frames by size, up to each of [`size_bounds`] and beyond.
    pub sizes: [u64; SIZES],
    drops: ByReason,
}

impl DirectionCounts {
    /// Returns the number of frames that were dropped for this reason.
    pub fn drops(&self, reason: Reason) -> u64 {
        self.drops.get(reason)
    }
}

/// Statistics of a queue pair. They lag behind by the turn in progress.
#[derive(Clone, Debug)]
pub struct PairStats {
    /// True while a reactor serves the pair.
    pub served: bool,
    /// Number of the reactor that serves the pair, or served it last.
    pub reactor: u32,
    /// Frames that the guest sent.
    pub sent: DirectionCounts,
    /// Frames that the guest received. Frames dropped before they reached this queue's reactor are
    /// counted only by the port.
    pub got: DirectionCounts,
    /// Times that the rate limit throttled the pair.
    pub held: u64,
    /// Total throttled time in nanoseconds, without the current time.
    pub held_ns: u64,
    /// Time since which the rate limit throttles the pair, on [`reactor::clock_ns`].
    pub held_since_ns: Option<u64>,
    /// Frames that found no buffers on arrival and waited.
    pub waited: u64,
    /// Frames that wait now.
    pub waiting: u64,
    /// Time of the received frames from the sender's ring to this one.
    pub residence: Snapshot,
    /// Wait statistics of the transmit queue.
    pub poll: PollState,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two() {
        let bounds: Vec<_> = size_bounds().collect();
        assert_eq!((bounds.len(), bounds[0], bounds[SIZES - 2]), (SIZES - 1, 63, 65_535));
        for (at, bound) in bounds.into_iter().enumerate() {
            assert_eq!((size(bound as usize), size(bound as usize + 1)), (at, at + 1));
        }
        assert_eq!((size(0), size(usize::MAX)), (0, SIZES - 1));
    }

    #[test]
    fn what_is_counted_is_read() {
        let counts = QueueCounts::default();
        counts.start(3);
        counts.count_sent(60, None);
        counts.count_sent(1500, Some(Reason::FloodLimit));
        counts.count_received(64, Ok(()));
        counts.count_received(9000, Err(Reason::NoBuffer));
        (1..4).for_each(|at| counts.throttle(at * 100));
        counts.unthrottle(500);
        counts.unthrottle(900);
        counts.throttle(1000);
        let read = counts.read();
        assert_eq!((read.served, read.reactor), (true, 3));
        assert_eq!((read.sent.frames, read.sent.bytes, read.got.frames), (2, 1560, 1));
        assert_eq!((read.sent.sizes[0], read.sent.sizes[5], read.got.sizes[1]), (1, 1, 1));
        assert_eq!(read.sent.drops(Reason::FloodLimit), 1);
        assert_eq!(read.got.drops(Reason::NoBuffer), 1);
        assert_eq!((read.held, read.held_ns, read.held_since_ns), (2, 400, Some(1000)));
        counts.stop();
        assert!(!counts.read().served && counts.read().held_since_ns.is_none());
    }
}

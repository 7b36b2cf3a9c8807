//! What a pair of queues has sent and got, and how it waited.
//!
//! The reactor that serves the pair writes, anybody reads: no read-modify-write, and nothing that
//! two reactors write.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use net::{Drops, Reason};
use reactor::{Histogram, PollControl, PollState, Snapshot};

use crate::counts::{ByReason, add};

/// Counters of sizes: one for each power of two.
pub const SIZES: usize = 12;
/// Frames of fewer bytes share the first of them.
const FIRST_BIT: u32 = 6;

/// The counter of frames of so many bytes.
fn size(bytes: usize) -> usize {
    let bits = usize::BITS - bytes.leading_zeros();
    (bits.saturating_sub(FIRST_BIT) as usize).min(SIZES - 1)
}

/// The largest frame, in bytes, that each counter of sizes but the last has.
pub fn size_bounds() -> impl Iterator<Item = u64> {
    (FIRST_BIT..).take(SIZES - 1).map(|bit| (1 << bit) - 1)
}

/// Frames one way.
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

/// Counters of a pair since its port was plugged in.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueCounts {
    sent: DirectionCounters,
    got: DirectionCounters,
    /// Times that the cap held it, and for how long in nanoseconds.
    held: AtomicU64,
    held_ns: AtomicU64,
    /// Since when it is held, in nanoseconds; 0: it is not.
    held_since: AtomicU64,
    /// Frames that waited for buffers, and those that do now.
    waited: AtomicU64,
    waiting: AtomicU64,
    reactor: AtomicU32,
    served: AtomicBool,
    pub(crate) residence: Histogram,
    pub(crate) poll_control: PollControl,
}

impl QueueCounts {
    /// It is served by the reactor of this number from now on.
    pub(crate) fn begins(&self, reactor: u32) {
        self.reactor.store(reactor, Ordering::Relaxed);
        self.served.store(true, Ordering::Relaxed);
    }

    /// Nobody serves it any more.
    pub(crate) fn ends(&self) {
        self.served.store(false, Ordering::Relaxed);
        self.held_since.store(0, Ordering::Relaxed);
    }

    /// It sent a frame of so many bytes, which may have gone nowhere.
    pub(crate) fn sends(&self, bytes: usize, refused: Option<Reason>) {
        self.sent.count(bytes);
        if let Some(reason) = refused {
            self.sent.drops.count(reason);
        }
    }

    /// What came of a frame of so many bytes for it.
    pub(crate) fn gets(&self, bytes: usize, outcome: Result<(), Reason>) {
        match outcome {
            Ok(()) => self.got.count(bytes),
            Err(reason) => self.got.drops.count(reason),
        }
    }

    /// A frame waits for buffers, with so many in all.
    pub(crate) fn waits(&self, waiting: usize) {
        add(&self.waited, 1);
        self.still_waits(waiting);
    }

    /// So many frames wait.
    pub(crate) fn still_waits(&self, waiting: usize) {
        self.waiting.store(waiting as u64, Ordering::Relaxed);
    }

    /// The cap holds it at `now_ns`.
    pub(crate) fn holds(&self, now_ns: u64) {
        if self.held_since.load(Ordering::Relaxed) == 0 {
            add(&self.held, 1);
            self.held_since.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    /// The cap lets it go on at `now_ns`.
    pub(crate) fn passes(&self, now_ns: u64) {
        let since = self.held_since.load(Ordering::Relaxed);
        if since > 0 {
            add(&self.held_ns, now_ns.saturating_sub(since));
            self.held_since.store(0, Ordering::Relaxed);
        }
    }

    /// As it stands.
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

/// Frames one way, as they were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounts {
    /// Frames; of those sent also those that went nowhere.
    pub frames: u64,
    /// Their bytes, without virtio-net headers.
    pub bytes: u64,
    /// Frames by size, up to each of [`size_bounds`] and beyond.
    pub sizes: [u64; SIZES],
    drops: ByReason,
}

impl DirectionCounts {
    /// Frames that were lost for this reason.
    pub fn drops(&self, reason: Reason) -> u64 {
        self.drops.get(reason)
    }
}

/// A pair of queues as it stands now. Counts lag behind by the turn that is under way.
#[derive(Clone, Debug)]
pub struct PairStats {
    /// It is served now.
    pub served: bool,
    /// Number of the reactor that serves it, or served it last.
    pub reactor: u32,
    /// What its guest sent.
    pub sent: DirectionCounts,
    /// What its guest got. What was lost before it reached this queue's reactor is counted by its
    /// port alone.
    pub got: DirectionCounts,
    /// Times that its cap held it.
    pub held: u64,
    /// For how long, in nanoseconds, without the present time.
    pub held_ns: u64,
    /// Since when its cap holds it, on [`reactor::clock_ns`].
    pub held_since_ns: Option<u64>,
    /// Frames for which there were no buffers when they came, and which waited.
    pub waited: u64,
    /// Those that wait now.
    pub waiting: u64,
    /// How long what its guest got took from the sender's ring to its own.
    pub residence: Snapshot,
    /// How it has waited when it had nothing to send.
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
        counts.begins(3);
        counts.sends(60, None);
        counts.sends(1500, Some(Reason::FloodLimit));
        counts.gets(64, Ok(()));
        counts.gets(9000, Err(Reason::NoBuffer));
        (1..4).for_each(|at| counts.holds(at * 100));
        counts.passes(500);
        counts.passes(900);
        counts.holds(1000);
        let read = counts.read();
        assert_eq!((read.served, read.reactor), (true, 3));
        assert_eq!((read.sent.frames, read.sent.bytes, read.got.frames), (2, 1560, 1));
        assert_eq!((read.sent.sizes[0], read.sent.sizes[5], read.got.sizes[1]), (1, 1, 1));
        assert_eq!(read.sent.drops(Reason::FloodLimit), 1);
        assert_eq!(read.got.drops(Reason::NoBuffer), 1);
        assert_eq!((read.held, read.held_ns, read.held_since_ns), (2, 400, Some(1000)));
        counts.ends();
        assert!(!counts.read().served && counts.read().held_since_ns.is_none());
    }
}

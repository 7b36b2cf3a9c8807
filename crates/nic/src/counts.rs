//! Counters of the frames that a port has sent and received.

use std::sync::atomic::{AtomicU64, Ordering};

use net::{Drops, Reason};

/// Counters of a port on one reactor: the reactor writes them, any thread reads them.
#[derive(Debug, Default)]
pub struct Counts {
    sent: Pair,
    got: Pair,
    /// Frames that the port sent and that were dropped, by reason.
    pub refused: Drops,
    /// Frames for the port that did not reach it, by reason.
    pub missed: Drops,
}

/// Number of frames, and of their bytes.
#[derive(Debug, Default)]
struct Pair {
    frames: AtomicU64,
    bytes: AtomicU64,
}

/// Adds to a counter. With one writer, no read-modify-write is needed.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Pair {
    fn count(&self, bytes: usize) {
        add(&self.frames, 1);
        add(&self.bytes, bytes as u64);
    }

    fn get(&self) -> (u64, u64) {
        (self.frames.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

impl Counts {
    /// Counts a sent frame of `bytes` bytes. Only the owner of the counters may call this.
    pub(crate) fn sends(&self, bytes: usize) {
        self.sent.count(bytes);
    }

    /// Counts a received frame of `bytes` bytes. Only the owner of the counters may call this.
    pub(crate) fn gets(&self, bytes: usize) {
        self.got.count(bytes);
    }
}

/// Sum of a port's counters over all reactors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Frames that the port sent, including dropped ones.
    pub sent_frames: u64,
    /// Bytes of these frames, without virtio-net headers.
    pub sent_bytes: u64,
    /// Frames that the port received. A frame that was segmented for it counts as its segments. A
    /// frame that was dropped after its frame sink accepted it counts too.
    pub got_frames: u64,
    /// Bytes of these frames, without virtio-net headers.
    pub got_bytes: u64,
    /// Frames that the port sent and that were dropped, by [`Reason`].
    refused: ByReason,
    /// Frames for the port that did not reach it, by [`Reason`].
    missed: ByReason,
}

/// Count for each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByReason([u64; Reason::ALL.len()]);

impl Default for ByReason {
    fn default() -> Self {
        Self([0; Reason::ALL.len()])
    }
}

impl ByReason {
    pub(crate) fn add(&mut self, drops: &Drops) {
        for (count, reason) in self.0.iter_mut().zip(Reason::ALL) {
            *count += drops.get(*reason);
        }
    }

    pub(crate) fn get(&self, reason: Reason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }
}

impl PortCounts {
    /// Adds the counts of one reactor.
    pub(crate) fn add(&mut self, counts: &Counts) {
        let ((sent_frames, sent_bytes), (got_frames, got_bytes)) =
            (counts.sent.get(), counts.got.get());
        self.sent_frames += sent_frames;
        self.sent_bytes += sent_bytes;
        self.got_frames += got_frames;
        self.got_bytes += got_bytes;
        self.refused.add(&counts.refused);
        self.missed.add(&counts.missed);
    }

    /// Returns the number of frames that the port sent and that were dropped for this reason.
    pub fn refused(&self, reason: Reason) -> u64 {
        self.refused.get(reason)
    }

    /// Returns the number of frames for the port that did not reach it for this reason.
    pub fn missed(&self, reason: Reason) -> u64 {
        self.missed.get(reason)
    }
}

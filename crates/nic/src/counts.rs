//! What a port has sent and got.

use std::sync::atomic::{AtomicU64, Ordering};

use net::{Drops, Reason};

/// Counters of a port on one reactor: that writes them, anybody reads them.
#[derive(Debug, Default)]
pub struct Counts {
    sent: Pair,
    got: Pair,
    /// Why frames that it sent went nowhere.
    pub refused: Drops,
    /// Why frames that were for it did not reach it.
    pub missed: Drops,
}

/// Frames, and their bytes.
#[derive(Debug, Default)]
struct Pair {
    frames: AtomicU64,
    bytes: AtomicU64,
}

/// One writer: no read-modify-write is needed.
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
    /// It sent a frame of so many bytes. Only the owner of the counters may call it.
    pub(crate) fn sends(&self, bytes: usize) {
        self.sent.count(bytes);
    }

    /// It got a frame of so many bytes. Only the owner of the counters may call it.
    pub(crate) fn gets(&self, bytes: usize) {
        self.got.count(bytes);
    }
}

/// The counters of a port on all reactors together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Frames that it sent, also those that were refused.
    pub sent_frames: u64,
    /// Their bytes, without virtio-net headers.
    pub sent_bytes: u64,
    /// Frames that it got. One that was cut for it counts as its pieces; one that was lost behind its
    /// outlet counts all the same.
    pub got_frames: u64,
    /// Their bytes, without virtio-net headers.
    pub got_bytes: u64,
    /// By [`Reason`]: frames that it sent and that went nowhere.
    refused: ByReason,
    /// By [`Reason`]: frames that were for it and did not reach it.
    missed: ByReason,
}

/// A count for each reason.
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
    /// Adds what one reactor has counted.
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

    /// Frames that it sent and that went nowhere for this reason.
    pub fn refused(&self, reason: Reason) -> u64 {
        self.refused.get(reason)
    }

    /// Frames that were for it and did not reach it for this reason.
    pub fn missed(&self, reason: Reason) -> u64 {
        self.missed.get(reason)
    }
}

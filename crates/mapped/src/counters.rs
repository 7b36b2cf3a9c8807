//! Counters of one layer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use disk::LayerCounts;
use image::format::Format;
use image::owner::{Owner, OwnerCounts};
use image::shared::Shared;

/// Counters of a layer: those of its channels, and those of its owner after the last batch.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) fills: AtomicU64,
    pub(crate) read_modify_writes: AtomicU64,
    pub(crate) wait_ns: AtomicU64,
    questions: AtomicU64,
    answers: AtomicU64,
    rounds: AtomicU64,
    allocations: AtomicU64,
    /// Clusters in limbo, and those of them that requests keep.
    limbo: AtomicU64,
    held: AtomicU64,
    /// Oldest epoch at the last batch, and nanoseconds from `made` to the first batch with it.
    oldest: AtomicU64,
    since_ns: AtomicU64,
    made: Instant,
}

impl Default for Counters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            fills: zero(),
            read_modify_writes: zero(),
            wait_ns: zero(),
            questions: zero(),
            answers: zero(),
            rounds: zero(),
            allocations: zero(),
            limbo: zero(),
            held: zero(),
            oldest: zero(),
            since_ns: zero(),
            made: Instant::now(),
        }
    }
}

/// Returns a duration in nanoseconds.
pub(crate) fn ns_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    /// Takes the counts of an owner over, after a batch. `last` are those of the batch before.
    pub(crate) fn publish<F: Format>(&self, owner: &Owner<F>, last: &mut OwnerCounts) {
        let now = owner.counts();
        for (counter, now, before) in [
            (&self.questions, now.questions, last.questions),
            (&self.answers, now.answers, last.answers),
            (&self.rounds, now.rounds, last.rounds),
            (&self.allocations, now.allocations, last.allocations),
        ] {
            counter.fetch_add(now - before, Ordering::Relaxed);
        }
        *last = now;
        self.limbo.store(owner.limbo() as u64, Ordering::Relaxed);
        let held = owner.held() as u64;
        // Another oldest epoch: other requests keep the clusters now.
        let oldest = if held > 0 { owner.oldest_epoch() } else { 0 };
        if self.oldest.swap(oldest, Ordering::Relaxed) != oldest {
            self.since_ns.store(ns_since(self.made), Ordering::Relaxed);
        }
        self.held.store(held, Ordering::Relaxed);
    }

    /// Returns the counts. `shared` is the state of the map, if it is open.
    pub(crate) fn counts(&self, shared: Option<&Shared>) -> LayerCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // The requests may have ended since the last batch.
        let oldest = shared.map_or(0, |shared| shared.map.epochs().oldest());
        let held = if oldest == load(&self.oldest) { load(&self.held) } else { 0 };
        let held_ns = ns_since(self.made).saturating_sub(load(&self.since_ns));
        let bits = shared.map_or(0, |shared| shared.map.layout().granule_bits);
        LayerCounts {
            layers: 1,
            questions: load(&self.questions),
            answers: load(&self.answers),
            rounds: load(&self.rounds),
            allocations: load(&self.allocations),
            fills: load(&self.fills),
            read_modify_writes: load(&self.read_modify_writes),
            wait_ns: load(&self.wait_ns),
            pages: shared.map_or(0, |shared| shared.map.pages()),
            limbo_bytes: load(&self.limbo) << bits,
            held_bytes: held << bits,
            held_ns: if held > 0 { held_ns } else { 0 },
        }
    }
}

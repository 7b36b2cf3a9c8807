//! Record of a ring that its driver has broken, for reports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Longest recorded cause in bytes.
const CAUSE_BYTES_MAX: usize = 384;

/// A ring that is not served until its front-end starts it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRing {
    /// First rule that the driver broke, or the range outside memory, in at most 384 bytes.
    pub cause: String,
    /// Time at which the ring broke.
    pub since: SystemTime,
}

/// Whether a ring is broken, and how often it broke.
///
/// The thread that serves the ring writes it only when the ring breaks. Others read and clear it,
/// so the lock is never taken while the ring works.
#[derive(Debug, Default)]
pub struct BrokenRingRecord {
    broken_ring: Mutex<Option<BrokenRing>>,
    count: AtomicU64,
}

impl BrokenRingRecord {
    /// Records that the ring has broken now. A ring that is broken already keeps its first cause.
    #[cold]
    pub fn record(&self, cause: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.restore(BrokenRing { cause: cause.to_owned(), since: SystemTime::now() });
    }

    /// Sets the state that the ring had in another process. It does not count as broken anew.
    pub fn restore(&self, BrokenRing { mut cause, since }: BrokenRing) {
        cause.truncate(cause.floor_char_boundary(CAUSE_BYTES_MAX));
        self.lock().get_or_insert(BrokenRing { cause, since });
    }

    /// Records that the front-end has stopped the ring or starts it again.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    /// Returns the state of the ring, if it is broken.
    pub fn get(&self) -> Option<BrokenRing> {
        self.lock().clone()
    }

    /// Returns how often the ring has broken in this process.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Option<BrokenRing>> {
        // Each change is a single step, so a panic elsewhere leaves it complete.
        self.broken_ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_stays_until_the_ring_starts_again() {
        let record = BrokenRingRecord::default();
        assert_eq!((record.get(), record.count()), (None, 0));
        record.record("one");
        record.record("two");
        assert_eq!((record.get().unwrap().cause.as_str(), record.count()), ("one", 2));
        record.clear();
        assert_eq!((record.get(), record.count()), (None, 2));
        let handed_over = BrokenRing { cause: "three".into(), since: SystemTime::UNIX_EPOCH };
        record.restore(handed_over.clone());
        assert_eq!((record.get(), record.count()), (Some(handed_over), 2));
    }

    #[test]
    fn a_long_cause_is_cut_at_a_character() {
        let record = BrokenRingRecord::default();
        record.record(&format!("x{}", "\u{e9}".repeat(500)));
        assert_eq!(record.get().unwrap().cause.len(), CAUSE_BYTES_MAX - 1);
    }
}

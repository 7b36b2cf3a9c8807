//! Memory order of a share: the steps by which reactors meet.
//!
//! Each reactor stores only in its own slot and reads those of the others. Both sides store, then
//! fence, then load, so that at least one of them sees the other: a freed token and a held request
//! never miss each other. The functions work on any [`Cell`]: `loom` walks through all orders of
//! their steps in the tests.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Atomic number.
pub(crate) trait Cell {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64>;
    fn fence();
}

impl Cell for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Stores a number of the own slot. Loads of other slots, which follow, are ordered behind it.
#[inline]
pub(crate) fn publish<C: Cell>(own: &C, value: u64) {
    own.store(value, Ordering::Release);
    C::fence();
}

/// Marks a reactor as kicked since `now`. Returns whether it must be woken: false if another kick
/// is on its way.
#[inline]
pub(crate) fn kick<C: Cell>(kicked: &C, now: u64) -> bool {
    kicked.load(Ordering::Acquire) == 0 && kicked.compare_exchange(0, now.max(1)).is_ok()
}

/// Takes the kick of the own slot. The reactor looks at the other slots afterwards.
#[inline]
pub(crate) fn take_kick<C: Cell>(kicked: &C) {
    if kicked.load(Ordering::Relaxed) != 0 {
        publish(kicked, 0);
    }
}

#[cfg(test)]
mod tests;

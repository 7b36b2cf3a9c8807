//! Memory order of a map: the steps by which owner and channels meet.
//!
//! Both sides store, then fence, then load, so that at least one of them sees the other. The
//! functions work on any [`Cell`]: `loom` walks through all orders of their steps in the tests.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::Word;

/// Atomic number.
pub(crate) trait Cell {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
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
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
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

/// Shows the present epoch in a channel's slot. Words that are loaded afterwards stay valid.
#[inline]
pub(crate) fn publish_epoch<C: Cell>(now: &C, slot: &C) -> u64 {
    let epoch = now.load(Ordering::SeqCst);
    slot.store(epoch, Ordering::Release);
    C::fence();
    epoch
}

/// Ends the epoch after the owner has replaced words. Returns the epoch that ended.
#[inline]
pub(crate) fn end_epoch<C: Cell>(now: &C) -> u64 {
    now.fetch_add(1, Ordering::SeqCst)
}

/// Orders the loads of slots, which follow, behind the owner's words.
#[inline]
pub(crate) fn before_slots<C: Cell>() {
    C::fence();
}

/// Counts a change of a reference, before a word shows it.
#[inline]
pub(crate) fn count_commit<C: Cell>(commits: &C) {
    commits.fetch_add(1, Ordering::SeqCst);
}

/// Counts a change, then adds blocks to the mask of a word, if it is still data in the same
/// cluster. Returns whether it was.
#[inline]
pub(crate) fn add_blocks<C: Cell>(commits: &C, cell: &C, blocks: Word) -> bool {
    count_commit(commits);
    let mut now = cell.load(Ordering::Acquire);
    loop {
        let word = Word::from_bits(now);
        if !word.is_same_cluster(blocks) {
            return false;
        }
        match cell.compare_exchange(now, word.with_blocks(blocks.mask()).bits()) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
}

/// Stores the number of questions that wait for a commit. The owner loads the word afterwards.
#[inline]
pub(crate) fn announce_waiters<C: Cell>(waiters: &C, count: u64) {
    waiters.store(count, Ordering::SeqCst);
    C::fence();
}

/// Returns whether questions wait, after the channel has stored its word.
#[inline]
pub(crate) fn has_waiters<C: Cell>(waiters: &C) -> bool {
    C::fence();
    waiters.load(Ordering::SeqCst) > 0
}

#[cfg(test)]
mod tests;

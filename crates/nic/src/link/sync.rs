//! Memory ordering of a link: all loads, stores and fences on its shared indices.
//!
//! The writer publishes how far it has written, the reader releases how far it has read. Both are
//! bytes since the beginning and never decrease. Before the reader's thread sleeps, it announces
//! that and then polls once more. The writer first publishes and then checks whether the reader
//! sleeps. A full fence separates the two steps on each side, so that at least one side sees the
//! other.
//!
//! The functions work on any [`LinkMemory`]. The tests run them on memory under `loom`, which
//! explores every order in which the steps of both sides can be seen.

use std::sync::atomic::Ordering;

/// Index or flag in the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkWord {
    /// Bytes written.
    Written,
    /// Bytes read, which may be overwritten.
    Read,
    /// Nonzero if the reader sleeps, or is about to.
    Asleep,
}

/// Memory that both sides share.
pub(crate) trait LinkMemory {
    /// Loads a word.
    fn load(&self, word: LinkWord, order: Ordering) -> u64;
    /// Stores a word.
    fn store(&self, word: LinkWord, value: u64, order: Ordering);
    /// Full fence: if a later load does not see the other side's store, the other side sees the
    /// earlier stores of this side.
    fn full_fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Publishes the bytes below `position`. Returns true if the reader must be woken.
pub(crate) fn publish(link_memory: &impl LinkMemory, position: u64) -> bool {
    link_memory.store(LinkWord::Written, position, Ordering::Release);
    link_memory.full_fence();
    link_memory.load(LinkWord::Asleep, Ordering::Relaxed) != 0
}

/// Returns the position up to which the reader may read; the bytes are visible after this.
pub(crate) fn written(link_memory: &impl LinkMemory) -> u64 {
    link_memory.load(LinkWord::Written, Ordering::Acquire)
}

/// Releases the bytes below `position` for the writer.
pub(crate) fn release(link_memory: &impl LinkMemory, position: u64) {
    link_memory.store(LinkWord::Read, position, Ordering::Release);
}

/// Returns the position up to which the writer may overwrite.
pub(crate) fn released(link_memory: &impl LinkMemory) -> u64 {
    link_memory.load(LinkWord::Read, Ordering::Acquire)
}

/// Announces that the reader will sleep: the caller must check [`written`] after this.
pub(crate) fn prepare_sleep(link_memory: &impl LinkMemory) {
    link_memory.store(LinkWord::Asleep, 1, Ordering::Relaxed);
    link_memory.full_fence();
}

/// Announces that the reader polls again.
pub(crate) fn cancel_sleep(link_memory: &impl LinkMemory) {
    link_memory.store(LinkWord::Asleep, 0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;

//! By which the two sides of a link meet: every store, load and fence.
//!
//! The writer shows how far it has written, the reader gives back how far it has read; both are
//! bytes since the beginning and never go back. Before the reader's thread sleeps it says so and then
//! looks once more; the writer shows first and then looks whether the reader sleeps. Between the two
//! steps of each stands a full fence, so that at least one of them sees the other.
//!
//! The functions work on any [`LinkMemory`]. In the tests these are memory under `loom`, which walks
//! through every order in which the steps of both sides can be seen.

use std::sync::atomic::Ordering;

/// What both sides see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkWord {
    /// Bytes that were written.
    Written,
    /// Bytes that were read, and may be written again.
    Read,
    /// The reader sleeps, or is about to.
    Asleep,
}

/// Memory that both sides see.
pub(crate) trait LinkMemory {
    /// What is there.
    fn load(&self, word: LinkWord, order: Ordering) -> u64;
    /// Puts it there.
    fn store(&self, word: LinkWord, value: u64, order: Ordering);
    /// Whatever was stored before is seen by whoever is not seen by what is loaded after.
    fn full_fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// The writer shows what is below `position`; true when the reader must be woken.
pub(crate) fn publish(link_memory: &impl LinkMemory, position: u64) -> bool {
    link_memory.store(LinkWord::Written, position, Ordering::Release);
    link_memory.full_fence();
    link_memory.load(LinkWord::Asleep, Ordering::Relaxed) != 0
}

/// What the reader may read; it is visible after this.
pub(crate) fn written(link_memory: &impl LinkMemory) -> u64 {
    link_memory.load(LinkWord::Written, Ordering::Acquire)
}

/// The reader needs nothing below `position` any more.
pub(crate) fn release(link_memory: &impl LinkMemory, position: u64) {
    link_memory.store(LinkWord::Read, position, Ordering::Release);
}

/// What the writer may write over.
pub(crate) fn given_back(link_memory: &impl LinkMemory) -> u64 {
    link_memory.load(LinkWord::Read, Ordering::Acquire)
}

/// The reader is about to sleep: whoever does so must look at [`written`] after this.
pub(crate) fn prepare_sleep(link_memory: &impl LinkMemory) {
    link_memory.store(LinkWord::Asleep, 1, Ordering::Relaxed);
    link_memory.full_fence();
}

/// The reader looks by itself again.
pub(crate) fn cancel_sleep(link_memory: &impl LinkMemory) {
    link_memory.store(LinkWord::Asleep, 0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;

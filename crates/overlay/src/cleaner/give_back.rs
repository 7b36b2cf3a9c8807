//! Memory and space of the overflow file that a disk does not need.

use super::{TOUCH, Worker};
use crate::BYTES;

/// Most places of the overflow file whose space goes back at a time.
const PUNCH: u64 = 4096;

impl Worker {
    /// Gives memory of free slots back to the host.
    pub(super) fn release(&self) {
        let shared = &self.shared;
        let cleans = shared.overflow.is_some();
        loop {
            let slots = shared.pool().take_excess(cleans, TOUCH as usize);
            if slots.is_empty() {
                return;
            }
            for run in slots.chunk_by(|one, next| one + 1 == *next) {
                let at = shared.memory.slot_at(run.first().copied().unwrap_or_default());
                // What the host does not take back is there for later writes.
                let _ = shared.memory.mapping().remove(at, run.len() * BYTES);
            }
            let mut pool = shared.pool();
            pool.released(slots);
            shared.wake_waiting(&mut pool);
        }
    }

    /// Gives space of the overflow file back that no place uses. Only this thread takes places.
    pub(super) fn punch(&self) {
        let shared = &self.shared;
        let Some(overflow) = shared.overflow.as_ref().filter(|one| one.can_punch()) else { return };
        let mut from = 0;
        loop {
            let mut pool = shared.pool();
            // Writes that need memory go first: a file of many small holes takes a second.
            if self.must_end(&pool)
                || shared.is_short(&pool)
                || from == 0 && !pool.places.wants_punch()
            {
                return;
            }
            let Some(run) = pool.places.take_backed(from, PUNCH) else { return };
            drop(pool);
            if overflow.punch(run).is_err() {
                // The file system cannot do it: a later life of the file begins it anew.
                return;
            }
            from = run.first + run.len;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tests::Fixture;

    #[test]
    fn writes_that_need_memory_go_before_holes_of_the_file() {
        let disk = Fixture::new(1 << 20, true).open_inactive();
        let (shared, _) = disk.parts();
        let worker = Worker::new(Arc::clone(shared), 0);
        let mut pool = shared.pool();
        pool.places.take_run(10_000, u64::MAX).unwrap();
        (1..8000).for_each(|place| pool.places.free(place));
        let slots = pool.take_untouched(u32::MAX);
        assert!(shared.is_short(&pool) && pool.places.wants_punch());
        drop(pool);
        worker.punch();
        let mut pool = shared.pool();
        assert!(pool.places.wants_punch());
        pool.free.extend(slots);
        assert!(!shared.is_short(&pool));
        drop(pool);
        worker.punch();
        assert!(!shared.pool().places.wants_punch());
    }
}

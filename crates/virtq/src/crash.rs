//! Crash points for tests: after each store to memory that outlives the process.

/// Marks a store. Does nothing outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn stored() {}

#[cfg(test)]
pub(crate) use simulated::{live, made, stored};

#[cfg(test)]
mod simulated {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// Number of stores made, and the number of the store after which the thread dies.
        static STORES: Cell<(u64, u64)> = const { Cell::new((0, u64::MAX)) };
    }

    /// Result of a life that ended at its crash point.
    #[derive(Debug)]
    pub(crate) struct Died;

    /// Runs `life`. It dies after store number `last`, counted from 0, if it makes so many stores.
    pub(crate) fn live<R>(last: u64, life: impl FnOnce() -> R) -> Result<R, Died> {
        STORES.set((0, last));
        let end = catch_unwind(AssertUnwindSafe(life));
        STORES.set((made(), u64::MAX));
        match end {
            Ok(value) => Ok(value),
            Err(cause) if cause.is::<Died>() => Err(Died),
            Err(cause) => resume_unwind(cause),
        }
    }

    /// Returns the number of stores of this life, or of the last life.
    pub(crate) fn made() -> u64 {
        STORES.get().0
    }

    /// Counts a store, and ends the life if this is its crash point.
    pub(crate) fn stored() {
        let (stores, last) = STORES.get();
        STORES.set((stores + 1, last));
        if stores == last {
            // Unlike a panic, this prints nothing.
            resume_unwind(Box::new(Died));
        }
    }
}

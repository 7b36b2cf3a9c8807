//! Where a test may end a life: behind each store to memory that outlives the process.

/// A store was made.
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
        /// Stores made, and the one behind which the thread dies.
        static STORES: Cell<(u64, u64)> = const { Cell::new((0, u64::MAX)) };
    }

    /// The life ended at its crash point.
    #[derive(Debug)]
    pub(crate) struct Died;

    /// Runs `life`, which dies behind its `last`th store (from 0 on), if it comes to that.
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

    /// Stores of this life, or of the last one.
    pub(crate) fn made() -> u64 {
        STORES.get().0
    }

    /// A store was made.
    pub(crate) fn stored() {
        let (stores, last) = STORES.get();
        STORES.set((stores + 1, last));
        if stores == last {
            // Unlike a panic this prints nothing.
            resume_unwind(Box::new(Died));
        }
    }
}

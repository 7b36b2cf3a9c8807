//! Crashes of a worker between two changes of its directory.

use std::cell::Cell;

thread_local! {
    /// Changes that still happen. `None` without a crash.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Lets the process of this thread crash after so many changes.
pub(super) fn after(changes: usize) {
    LEFT.set(Some(changes));
}

/// Begins a new process. Returns whether the former one has crashed.
pub(super) fn restart() -> bool {
    LEFT.take() == Some(0)
}

/// Counts a change. Returns whether the process has crashed before it.
pub(in super::super) fn has_crashed() -> bool {
    match LEFT.get() {
        Some(0) => true,
        Some(left) => {
            LEFT.set(Some(left - 1));
            false
        }
        None => false,
    }
}

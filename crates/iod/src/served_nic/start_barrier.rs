//! NICs that go on together: nobody sends before all are there to receive.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long those that are late are waited for: they have only to start a ring.
const PATIENCE: Duration = Duration::from_secs(1);

/// Those who are not there yet.
#[derive(Debug, Default)]
pub(crate) struct StartBarrier {
    missing: Mutex<usize>,
    changed: Condvar,
}

/// Somebody who is still to come: is there when this is dropped, whatever became of it.
#[derive(Debug)]
pub(crate) struct BarrierTicket(Arc<StartBarrier>);

impl StartBarrier {
    /// One more is to come.
    pub(crate) fn expect(self: &Arc<Self>) -> BarrierTicket {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        BarrierTicket(Arc::clone(self))
    }

    /// Waits until all are there, but no longer than a bit.
    fn wait(&self) {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let some = |missing: &mut usize| *missing > 0;
        drop(self.changed.wait_timeout_while(missing, PATIENCE, some));
    }
}

impl BarrierTicket {
    /// Is there, and waits for the others.
    pub(crate) fn join(self) {
        let start_barrier = Arc::clone(&self.0);
        drop(self);
        start_barrier.wait();
    }
}

impl Drop for BarrierTicket {
    fn drop(&mut self) {
        *self.0.missing.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn nobody_goes_on_before_all_are_there() {
        let (start_barrier, there) = (Arc::new(StartBarrier::default()), AtomicUsize::new(0));
        start_barrier.wait();
        let all: Vec<_> = (0..8).map(|_| start_barrier.expect()).collect();
        std::thread::scope(|scope| {
            let there = &there;
            for (number, one) in all.into_iter().enumerate() {
                scope.spawn(move || {
                    there.fetch_add(1, Ordering::SeqCst);
                    // One is gone before it could come.
                    if number == 3 {
                        drop(one)
                    } else {
                        one.join()
                    }
                    assert!(number == 3 || there.load(Ordering::SeqCst) == 8);
                });
            }
        });
        start_barrier.wait();
    }

    #[test]
    fn one_that_never_comes_holds_up_nobody_for_long() {
        let start_barrier = Arc::new(StartBarrier::default());
        let _late = start_barrier.expect();
        start_barrier.expect().join();
    }
}

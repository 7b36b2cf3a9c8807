//! Start barrier of NICs: none sends before all can receive.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for late participants, which only have to start a ring.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of participants that have not arrived yet.
#[derive(Debug, Default)]
pub(crate) struct StartBarrier {
    missing: Mutex<usize>,
    changed: Condvar,
}

/// Participant that has not arrived yet. It arrives when this is dropped, whatever the reason.
#[derive(Debug)]
pub(crate) struct BarrierTicket(Arc<StartBarrier>);

impl StartBarrier {
    /// Adds a participant.
    pub(crate) fn expect(self: &Arc<Self>) -> BarrierTicket {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        BarrierTicket(Arc::clone(self))
    }

    /// Waits until all participants have arrived, at most [`PATIENCE`].
    fn wait(&self) {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let some = |missing: &mut usize| *missing > 0;
        drop(self.changed.wait_timeout_while(missing, PATIENCE, some));
    }
}

impl BarrierTicket {
    /// Arrives and waits for the others.
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
                    // One participant ends before it arrives.
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

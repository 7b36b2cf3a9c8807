//! The thread that moves queues when something has come or gone.
//!
//! It sleeps until then. What it decides rests on a look before and one after [`SETTLE`]: what
//! has just come is measured, and what comes and goes together is one event.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Shared, lock};

/// From an event to the decision.
const SETTLE: Duration = Duration::from_millis(250);

/// Starts the thread. It ends when the pool does, and nobody waits for it: its last act may be to
/// drop what held the pool.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let shared = Arc::clone(shared);
    let work = move || {
        while shared.settled() {
            shared.balance();
        }
    };
    std::thread::Builder::new().name("balance".into()).spawn(work).map(drop)
}

impl Shared {
    /// Waits until something has come or gone, and then for a moment; false: the pool is gone.
    fn settled(&self) -> bool {
        let wait = self
            .noted
            .wait_while(lock(&self.placements), |placements| !placements.note && !placements.over);
        let mut placements = wait.unwrap_or_else(std::sync::PoisonError::into_inner);
        placements.loads.read(reactor::clock_ns());
        let until = Instant::now() + SETTLE;
        loop {
            if placements.over {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                placements.loads.read(reactor::clock_ns());
                // What came last is not measured yet: it is looked at once more.
                placements.note = placements.loads.unmeasured();
                return true;
            }
            let wait = self.noted.wait_timeout(placements, left);
            placements = wait.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn balance(self: &Arc<Self>) {
        let moves = lock(&self.placements).loads.find_imbalance();
        for (id, to) in moves {
            let moved = self.relocate(id, to);
            tracing::debug!(place = id, to, moved, "reactors were not evenly busy");
        }
    }
}

//! Thread that moves queues after a queue was placed or removed.
//!
//! It sleeps until then. It reads the loads before and after a pause of [`SETTLE`]. So new queues
//! are measured, and changes at the same time count as one event.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Shared, lock};

/// Time between an event and the decision.
const SETTLE: Duration = Duration::from_millis(250);

/// Starts the thread. It ends with the pool and is not joined, because its last action may be to
/// drop the last reference to the pool.
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
    /// Waits for an event and then for [`SETTLE`]. Returns false if the pool is gone.
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
                // The newest queue is not measured yet, so check once more.
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
            tracing::debug!(place = id, to, moved, "queue moved: reactor load was uneven");
        }
    }
}

//! Shared state of the daemon: everything that calls need.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::admission::StepLimits;
use model::id::Uuid;
use tokio::time::MissedTickBehavior;
use toolstack::machines::{Drivers, Machines};
use xenapi::ApiError;

use crate::bootstrap;
use crate::calls;
use crate::clock::Clock;
use crate::db::{Db, Ref};
use crate::dispatch::limits::{CallLimiter, WriteLimiter};
use crate::options::CalibrateMode;
use crate::persistence::Persistence;
use crate::random;
use crate::reconcile::restarts::Restarts;
use crate::records::BootDirs;
use crate::sessions::{self, Sessions};
use crate::slices::Slices;
use crate::storage::space::SpaceWatch;
use crate::storage::{Coalescer, Storage};
use crate::tasks::{self, Tasks};

/// Interval at which the host's free memory is measured. Each measurement sends an event to every
/// subscriber.
const MEASURED_EVERY: Duration = Duration::from_secs(60);

/// Settings that are fixed when the daemon starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSettings {
    /// Directories from which VMs may boot.
    pub boot: BootDirs,
    /// Longest time that an operation waits in its VM's queue.
    pub queue_deadline: Duration,
    /// Limits of concurrent steps where the host's record sets none.
    pub limits: StepLimits,
    /// Measurement of storage repositories.
    pub calibrate: CalibrateMode,
    /// Directory for persistent state.
    pub state: PathBuf,
    /// Certificate with which the listeners serve TLS, as PEM.
    pub certificate: String,
}

/// Shared state of the daemon: everything that calls need.
#[derive(Debug)]
pub struct AppState {
    /// Records in memory.
    pub db: Db,
    /// Writer that stores changes of the records.
    pub persistence: Persistence,
    /// Sessions of logged-in users.
    pub sessions: Sessions,
    /// Tasks of calls under way, as clients see them.
    pub tasks: Tasks,
    /// Limits on long calls.
    pub call_limiter: CallLimiter,
    /// Limits on waits for events.
    pub wait_limiter: CallLimiter,
    /// Limits on calls that write.
    pub writes: WriteLimiter,
    /// VMs and the operations on them.
    pub machines: Arc<Machines>,
    /// Restarts of VMs that crashed.
    pub restarts: Restarts,
    /// Drivers that carry out steps.
    pub drivers: Drivers,
    /// Driver of each SR.
    pub storage: Storage,
    /// Merges of images in the background.
    pub coalescer: Coalescer,
    /// Control groups that reserve CPU time for the control plane.
    pub slices: Arc<Slices>,
    /// Clocks of the host.
    pub clock: Clock,
    /// Settings fixed at start.
    pub settings: OpSettings,
}

impl AppState {
    /// Spawns the background tasks, which run until the daemon ends. Call this once, within a
    /// runtime, before the first call is accepted.
    pub fn spawn_tasks(self: &Arc<Self>) {
        tasks::take_over(self);
        calls::host::begin(self);
        sessions::watch(self);
        tokio::spawn(tasks::expire_loop(self.clone()));
        tokio::spawn(measure(self.clone()));
    }

    /// Returns a fresh reference that names no object. It identifies an operation without a task.
    pub fn new_ref(&self) -> Ref {
        Ref::of(Uuid::from_random(random::bytes()))
    }

    /// Waits until the change of this generation is stored.
    ///
    /// # Errors
    /// `OUT_OF_SPACE` if the change could not be stored. It has been rolled back.
    pub async fn wait_persisted(&self, generation: u64) -> Result<(), ApiError> {
        self.persistence.wait_generation(generation).await
    }
}

/// Updates the host's free memory and the space of SRs in the records periodically, because no event
/// reports changes of them.
async fn measure(app: Arc<AppState>) {
    let mut turns = tokio::time::interval(MEASURED_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watch = Arc::new(tokio::sync::Mutex::new(SpaceWatch::default()));
    loop {
        turns.tick().await;
        // Storage may hang. Then the next measurement waits for a later turn.
        if let Ok(mut watch) = Arc::clone(&watch).try_lock_owned() {
            let app = Arc::clone(&app);
            tokio::spawn(async move { watch.measure(&app).await });
        }
        let (memory, now) = (app.drivers.memory.read(), app.clock.date());
        // The values always fit their fields, so this cannot fail.
        let _ = app.db.write_observed(|tx| bootstrap::measured(tx, memory, now));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use toolstack::machines::{HostBytes, HostMemory};
    use xenapi::table::host_metrics::{CLASS, Field};
    use xenapi::{Date, Value};

    use super::*;
    use crate::tests::app::TestApp;

    /// Free memory of the simulated host, in bytes.
    #[derive(Debug)]
    struct Left(AtomicU64);

    impl HostMemory for Left {
        fn read(&self) -> HostBytes {
            HostBytes { total: 8 << 30, available: self.0.load(Ordering::Relaxed) }
        }
    }

    #[tokio::test]
    async fn free_memory_of_the_host_is_told_again_and_again() {
        let mut test_app = TestApp::new().await;
        let left = Arc::new(Left(AtomicU64::default()));
        Arc::get_mut(&mut test_app.app).unwrap().drivers.memory = left.clone();
        let app = &test_app.app;
        // Time now advances whenever the runtime is idle.
        tokio::time::pause();
        tokio::spawn(measure(app.clone()));
        for (turn, bytes) in [(1, 3 << 30), (2, 1 << 30), (3, 2 << 30)] {
            left.0.store(bytes, Ordering::Relaxed);
            test_app.hands.set(turn);
            let mut changed = app.db.changed();
            let is_updated = || {
                app.db.read(|view| {
                    let metrics = view.all(&CLASS).next().unwrap();
                    let bytes = i64::try_from(bytes).unwrap();
                    metrics.get(Field::memory_free.into()) == Some(&Value::Int(bytes))
                        && metrics.get(Field::last_updated.into()) == Some(&Value::Date(Date(turn)))
                })
            };
            let until = async {
                while !is_updated() {
                    changed.changed().await.unwrap();
                }
            };
            tokio::time::timeout(2 * MEASURED_EVERY, until).await.unwrap();
        }
    }
}

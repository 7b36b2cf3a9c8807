//! Everything that calls need, in one place.

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
use crate::persistence::Persistence;
use crate::random;
use crate::records::BootDirs;
use crate::sessions::{self, Sessions};
use crate::slices::Slices;
use crate::storage::Storage;
use crate::tasks::{self, Tasks};

/// How often the host's memory is looked at: whoever watches is sent an event each time.
const MEASURED_EVERY: Duration = Duration::from_secs(60);

/// What is set when the daemon starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSettings {
    /// Where files may be that machines boot.
    pub boot: BootDirs,
    /// How long an operation waits for its turn.
    pub queue_deadline: Duration,
    /// How many steps run at once, where the host's record says nothing else.
    pub limits: StepLimits,
}

/// Everything that calls need.
#[derive(Debug)]
pub struct AppState {
    /// The records.
    pub db: Db,
    /// What stores them.
    pub persistence: Persistence,
    /// Who is logged in.
    pub sessions: Sessions,
    /// Calls under way, as their callers see them.
    pub tasks: Tasks,
    /// Places for calls that take a while.
    pub call_limiter: CallLimiter,
    /// Turns of those that write.
    pub writes: WriteLimiter,
    /// Machines, and what is done to them.
    pub machines: Arc<Machines>,
    /// Who carries out steps.
    pub drivers: Drivers,
    /// Which SR has which driver.
    pub storage: Storage,
    /// CPU time for control.
    pub slices: Arc<Slices>,
    /// Time.
    pub clock: Clock,
    /// What is set.
    pub settings: OpSettings,
}

impl AppState {
    /// Begins what goes on by itself for as long as the house stands. Called within a runtime, once,
    /// before the first call.
    pub fn spawn_tasks(self: &Arc<Self>) {
        tasks::take_over(self);
        calls::host::begin(self);
        sessions::watch(self);
        tokio::spawn(tasks::expire_loop(self.clone()));
        tokio::spawn(measure(self.clone()));
    }

    /// A reference that names nothing yet: what an operation without a task is called by.
    pub fn new_ref(&self) -> Ref {
        Ref::of(Uuid::from_random(random::bytes()))
    }

    /// Ends when the change of this generation is stored.
    ///
    /// # Errors
    /// `OUT_OF_SPACE`: it could not be stored, and has been taken back.
    pub async fn wait_persisted(&self, generation: u64) -> Result<(), ApiError> {
        self.persistence.wait_generation(generation).await
    }
}

/// Tells again and again how much memory the host has left: nobody else says when that changes.
async fn measure(app: Arc<AppState>) {
    let mut turns = tokio::time::interval(MEASURED_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let (memory, now) = (app.drivers.memory.read(), app.clock.date());
        // What it writes fits its fields.
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
    use crate::trial::TestApp;

    /// What a host has left, in bytes.
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
        // From here on time passes while nothing happens.
        tokio::time::pause();
        tokio::spawn(measure(app.clone()));
        for (turn, bytes) in [(1, 3 << 30), (2, 1 << 30), (3, 2 << 30)] {
            left.0.store(bytes, Ordering::Relaxed);
            test_app.hands.set(turn);
            let mut changed = app.db.changed();
            let is_told = || {
                app.db.read(|view| {
                    let told = view.all(&CLASS).next().unwrap();
                    let bytes = i64::try_from(bytes).unwrap();
                    told.get(Field::memory_free.into()) == Some(&Value::Int(bytes))
                        && told.get(Field::last_updated.into()) == Some(&Value::Date(Date(turn)))
                })
            };
            let until = async {
                while !is_told() {
                    changed.changed().await.unwrap();
                }
            };
            tokio::time::timeout(2 * MEASURED_EVERY, until).await.unwrap();
        }
    }
}

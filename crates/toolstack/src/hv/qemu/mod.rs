//! Guests on QEMU: one process for each domain, which outlives the daemon.
//!
//! # Model
//! [`Qemu`] holds a domain for every process that it started or found; each has a task that watches
//! it. A process that cannot be looked at is looked at again until it can. Everything that must
//! outlive us is in the domain's directory: the control socket, the lock that says that the process
//! lives, and the little that QEMU could not tell. Whatever else is asked about a domain is asked of
//! its QEMU.
//!
//! # A guest's end
//! QEMU pauses a guest that switches itself off, resets itself or panics, and says which it was: also to
//! a daemon that comes later (`watch`).
//!
//! # Before the first instruction
//! Disks are plugged into a domain whose CPUs have never run. Then it is reset once, so that
//! firmware finds them as if they had always been there, and in their order.

mod agent;
mod ask;
mod boot;
mod command;
mod create;
mod devices;
mod domain;
mod domains;
mod door;
mod drives;
mod find;
mod group;
mod host_ends;
mod kill;
mod names;
mod process;
mod rundir;
mod settings;
mod trace;
mod watch;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::id::VmId;
use model::plan::{GuestRequest, RunState};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{DomainEvent, HvError};
use domain::Domain;
use domains::Domains;
use rundir::RunDir;
pub use settings::Settings;

/// Events that wait for the daemon; a full queue keeps those who have more waiting.
const EVENTS_WAITING: usize = 256;

/// Runs guests on QEMU. Dropped, it leaves them running.
#[derive(Debug)]
pub struct Qemu {
    settings: Settings,
    engine: create::Known,
    domains: Arc<Domains>,
    events: Mutex<Option<mpsc::Receiver<DomainEvent>>>,
}

/// A domain with the tasks that work on it.
#[derive(Debug)]
struct Held {
    domain: Arc<Domain>,
    asking: Mutex<Option<Task>>,
    _watching: Task,
}

/// A task that ends with this.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Held {
    fn stop_asking(&self) {
        lock(&self.asking).take();
    }
}

impl Qemu {
    /// Runs guests with these settings. Those that run already are found when they are asked for.
    pub fn new(settings: Settings) -> Self {
        let (happened, events) = mpsc::channel(EVENTS_WAITING);
        Self {
            domains: Domains::new(settings.run.clone(), settings.tree.clone(), happened),
            settings,
            engine: create::Known::default(),
            events: Mutex::new(Some(events)),
        }
    }

    /// The domain of a machine whose process is there, or was there when it was last looked at.
    async fn held(&self, vm: VmId) -> Result<Option<Arc<Held>>, HvError> {
        self.domains.of(vm).await
    }

    /// The domain of a machine whose process is there, for a call that changes it.
    async fn live(&self, vm: VmId) -> Result<Arc<Held>, HvError> {
        let held = self.held(vm).await?.filter(|held| !held.domain.process.is_gone());
        let held = held.ok_or(HvError::Absent)?;
        held.stop_asking();
        Ok(held)
    }

    /// Lets the CPUs run, from the beginning if they never have.
    async fn run_now(&self, vm: VmId) -> Result<(), HvError> {
        let held = self.live(vm).await?;
        let domain = &held.domain;
        match domain.state().await? {
            RunState::Running => return Ok(()),
            RunState::Ended(exit) => {
                let why = format!("its guest has ended ({exit:?}); it needs a new domain");
                return Err(HvError::Refused { what: "letting the machine run".into(), why });
            }
            RunState::Fresh => start_anew(domain).await?,
            RunState::Paused | RunState::Silent => {}
        }
        domain.execute("cont", Value::Null).await.map(drop)
    }

    async fn pause_now(&self, vm: VmId) -> Result<(), HvError> {
        let held = self.live(vm).await?;
        match held.domain.state().await? {
            RunState::Running => held.domain.execute("stop", Value::Null).await.map(drop),
            _ => Ok(()),
        }
    }

    async fn ask_now(&self, vm: VmId, what: GuestRequest) -> Result<(), HvError> {
        let held = self.live(vm).await?;
        ask::once(&held.domain, what).await?;
        let asking = tokio::spawn(ask::until_ended(Arc::clone(&held.domain)));
        *lock(&held.asking) = Some(Task(asking));
        Ok(())
    }

    /// Removes what a process that is gone has left.
    fn forget_now(&self, vm: VmId) -> Result<(), HvError> {
        let dir = RunDir::of(&self.settings.run, vm);
        if dir.in_use().map_err(|source| os("looking at", dir.path(), source))? {
            let why = "its process is there still; kill it first".into();
            return Err(HvError::Refused { what: "removing a domain".into(), why });
        }
        self.domains.forget(vm);
        self.leave_group(vm);
        dir.remove().map_err(|source| os("removing", dir.path(), source))
    }
}

/// Resets a machine that has never run; any other reset from then on is an end.
async fn start_anew(domain: &Domain) -> Result<(), HvError> {
    let at_reset =
        async |action: &str| domain.execute("set-action", json!({ "reboot": action })).await;
    // Who was here before us may have come no further than half of this.
    at_reset("reset").await?;
    domain.execute("system_reset", Value::Null).await?;
    at_reset("shutdown").await.map(drop)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn os(doing: &str, path: &Path, source: io::Error) -> HvError {
    HvError::Os { what: format!("{doing} {}", path.display()), source }
}

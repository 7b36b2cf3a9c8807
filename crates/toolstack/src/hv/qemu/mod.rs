//! QEMU driver: one process for each domain, which outlives the daemon.
//!
//! # Model
//! [`QemuHypervisor`] has a domain for every process that it started or found. A task watches each
//! domain. If a process cannot be adopted, a task retries until it can.
//!
//! The domain's directory contains the control socket, the lock that shows that the process lives,
//! and the few values that QEMU cannot report. These must outlive the daemon. Everything else is
//! queried from QEMU.
//!
//! # A guest's end
//! QEMU pauses a guest that powers off, resets or panics, and reports which it was. A daemon that
//! starts later can read it too (`watch`).
//!
//! # Before the first instruction
//! Disks are plugged into a domain whose CPUs have never run. Then the machine is reset once, so
//! that firmware finds the disks as if they had always existed, in their order.

mod agent;
mod backends;
mod boot;
mod command;
mod create;
mod device_ids;
mod devices;
mod discovery;
mod domain;
mod domains;
mod drives;
mod freeze;
mod group;
mod guest_mounts;
mod guest_request;
mod hypervisor;
mod kill;
mod process;
mod process_output;
mod reset_trace;
mod rundir;
mod settings;
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

/// Most events that wait for the daemon. While the queue is full, senders wait.
const EVENTS_WAITING: usize = 256;

/// Driver that runs guests on QEMU. Dropping it leaves the guests running.
#[derive(Debug)]
pub struct QemuHypervisor {
    settings: Settings,
    engine: create::EngineCache,
    domains: Arc<Domains>,
    events: Mutex<Option<mpsc::Receiver<DomainEvent>>>,
}

/// Domain with the tasks that work on it.
#[derive(Debug)]
struct WatchedDomain {
    domain: Arc<Domain>,
    asking: Mutex<Option<AbortOnDrop>>,
    _watching: AbortOnDrop,
    _collecting: AbortOnDrop,
}

/// Task that is aborted on drop.
#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl WatchedDomain {
    fn stop_asking(&self) {
        lock(&self.asking).take();
    }
}

impl QemuHypervisor {
    /// Creates a driver with these settings. Running guests are discovered on the first query.
    pub fn new(settings: Settings) -> Self {
        let (happened, events) = mpsc::channel(EVENTS_WAITING);
        Self {
            domains: Domains::new(settings.run.clone(), settings.tree.clone(), happened),
            settings,
            engine: create::EngineCache::default(),
            events: Mutex::new(Some(events)),
        }
    }

    /// Returns the domain of a machine whose process exists, or existed at the last check.
    async fn held(&self, vm: VmId) -> Result<Option<Arc<WatchedDomain>>, HvError> {
        self.domains.of(vm).await
    }

    /// Returns the domain of a machine whose process exists, for a call that changes it.
    async fn live(&self, vm: VmId) -> Result<Arc<WatchedDomain>, HvError> {
        let watched_domain =
            self.held(vm).await?.filter(|watched_domain| !watched_domain.domain.process.is_gone());
        let watched_domain = watched_domain.ok_or(HvError::Absent)?;
        watched_domain.stop_asking();
        Ok(watched_domain)
    }

    /// Resumes the CPUs. Starts a machine that has never run from its reset.
    async fn run_now(&self, vm: VmId) -> Result<(), HvError> {
        let watched_domain = self.live(vm).await?;
        let domain = &watched_domain.domain;
        match domain.state().await? {
            RunState::Running => return Ok(()),
            RunState::Ended(exit) => {
                let why = format!("the guest has ended ({exit:?}); the machine needs a new domain");
                return Err(HvError::Refused { what: "resuming the machine".into(), why });
            }
            RunState::Created => start_anew(domain).await?,
            RunState::Paused | RunState::Unresponsive => {}
        }
        domain.execute("cont", Value::Null).await.map(drop)
    }

    async fn pause_now(&self, vm: VmId) -> Result<(), HvError> {
        let watched_domain = self.live(vm).await?;
        match watched_domain.domain.state().await? {
            RunState::Running => watched_domain.domain.execute("stop", Value::Null).await.map(drop),
            _ => Ok(()),
        }
    }

    async fn ask_now(&self, vm: VmId, what: GuestRequest) -> Result<(), HvError> {
        let watched_domain = self.live(vm).await?;
        guest_request::once(&watched_domain.domain, what).await?;
        let asking = tokio::spawn(guest_request::until_ended(Arc::clone(&watched_domain.domain)));
        *lock(&watched_domain.asking) = Some(AbortOnDrop(asking));
        Ok(())
    }

    /// Removes the leftovers of an exited process.
    fn forget_now(&self, vm: VmId) -> Result<(), HvError> {
        let dir = RunDir::of(&self.settings.run, vm);
        if dir.in_use().map_err(|source| os("looking at", dir.path(), source))? {
            let why = "its QEMU still runs; kill it first".into();
            return Err(HvError::Refused { what: "removing a domain".into(), why });
        }
        self.domains.forget(vm);
        self.leave_group(vm);
        dir.remove().map_err(|source| os("removing", dir.path(), source))
    }
}

/// Resets a machine that has never run. From then on, any other reset ends the guest.
async fn start_anew(domain: &Domain) -> Result<(), HvError> {
    let at_reset =
        async |action: &str| domain.execute("set-action", json!({ "reboot": action })).await;
    // An earlier daemon may have stopped in the middle of this.
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

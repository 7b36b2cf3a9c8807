//! Registry of the existing domains, each with a task that watches it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use model::id::VmId;
use model::vm::exits::DomainExit;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::time::sleep;

use super::domain::Domain;
use super::rundir::RunDir;
use super::{AbortOnDrop, WatchedDomain, discovery, group, lock, watch};
use crate::cgroup::SliceTree;
use crate::hv::{DomainEvent, HvError};

/// First pause before a failed adoption is retried. Each further pause doubles.
const AGAIN_FIRST: Duration = Duration::from_millis(200);
/// Longest of these pauses.
const AGAIN_MOST: Duration = Duration::from_secs(30);

/// Registry of all known domains.
#[derive(Debug)]
pub(super) struct Domains {
    run: PathBuf,
    /// Control groups of the guests.
    tree: Option<SliceTree>,
    held: Mutex<HashMap<VmId, Arc<WatchedDomain>>>,
    /// Serializes adoptions.
    adopting: AsyncMutex<()>,
    /// Retries for machines that could not be adopted.
    again: Mutex<HashMap<VmId, AbortOnDrop>>,
    happened: mpsc::Sender<DomainEvent>,
}

impl Domains {
    /// Creates a registry of the domains whose directories are in `run`. Their events go to
    /// `happened`.
    pub(super) fn new(
        run: PathBuf,
        tree: Option<SliceTree>,
        happened: mpsc::Sender<DomainEvent>,
    ) -> Arc<Self> {
        Arc::new(Self {
            run,
            tree,
            held: Mutex::default(),
            adopting: AsyncMutex::default(),
            again: Mutex::default(),
            happened,
        })
    }

    /// Registers a created domain and watches it.
    pub(super) fn register(&self, domain: Domain) -> Arc<WatchedDomain> {
        self.watch_domain(domain, true)
    }

    fn watch_domain(&self, domain: Domain, new: bool) -> Arc<WatchedDomain> {
        let (vm, domain) = (domain.vm, Arc::new(domain));
        let watching = watch::watch(Arc::clone(&domain), new, self.happened.clone());
        let _watching = AbortOnDrop(tokio::spawn(watching));
        let _collecting = AbortOnDrop(tokio::spawn(collect_output(Arc::clone(&domain))));
        let asking = Mutex::default();
        let watched_domain = Arc::new(WatchedDomain { domain, asking, _watching, _collecting });
        lock(&self.held).insert(vm, Arc::clone(&watched_domain));
        watched_domain
    }

    /// Returns the domain of a machine, if it is registered.
    pub(super) fn known(&self, vm: VmId) -> Option<Arc<WatchedDomain>> {
        lock(&self.held).get(&vm).cloned()
    }

    /// Removes a domain whose process is gone.
    pub(super) fn forget(&self, vm: VmId) {
        lock(&self.held).remove(&vm);
    }

    /// Returns the domain of a machine whose process exists, or existed at the last check.
    ///
    /// If the process cannot be adopted, a task retries later. Otherwise no task would notice the
    /// end of the guest.
    pub(super) async fn of(
        self: &Arc<Self>,
        vm: VmId,
    ) -> Result<Option<Arc<WatchedDomain>>, HvError> {
        if let Some(watched_domain) = self.known(vm) {
            return Ok(Some(watched_domain));
        }
        let _adopting = self.adopting.lock().await;
        if let Some(watched_domain) = self.known(vm) {
            return Ok(Some(watched_domain));
        }
        match discovery::adopt(&self.run, vm).await {
            Ok(found) => Ok(found.map(|domain| {
                group::place(self.tree.as_ref(), &domain);
                self.watch_domain(domain, false)
            })),
            Err(error) => {
                self.retry_adoption(vm);
                Err(error)
            }
        }
    }

    fn retry_adoption(self: &Arc<Self>, vm: VmId) {
        let mut again = lock(&self.again);
        if again.get(&vm).is_none_or(|abort_on_drop| abort_on_drop.0.is_finished()) {
            again.insert(vm, AbortOnDrop(tokio::spawn(until_seen(Arc::downgrade(self), vm))));
        }
    }

    /// Reports that a machine's process has ended before it could be adopted.
    async fn ended_unseen(&self, vm: VmId) {
        // Without a record there was no guest, or its remains are already removed.
        let Some(record) = RunDir::of(&self.run, vm).kept() else { return };
        let (domid, at) = (record.domid(), SystemTime::now());
        let ended = DomainEvent::Ended { vm, domid, exit: DomainExit::Killed, at };
        // When the daemon exits, the receiver is gone.
        let _no_receiver = self.happened.send(ended).await;
    }
}

/// Moves the output of a domain's process to a file. The process never waits for that.
async fn collect_output(domain: Arc<Domain>) {
    if let Err(error) = domain.dir.output().collect().await {
        tracing::warn!(vm = %domain.vm, %error, "cannot collect the messages of QEMU");
    }
}

/// Retries an adoption with growing pauses until it succeeds. No event announces when it can.
async fn until_seen(domains: Weak<Domains>, vm: VmId) {
    let mut pause = AGAIN_FIRST;
    loop {
        sleep(pause).await;
        let Some(domains) = domains.upgrade() else { return };
        match domains.of(vm).await {
            Ok(Some(_)) => return tracing::info!(%vm, "a machine can be queried again"),
            Ok(None) => return domains.ended_unseen(vm).await,
            Err(error) => tracing::debug!(%vm, %error, "a machine still cannot be queried"),
        }
        pause = pause.saturating_mul(2).min(AGAIN_MOST);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use model::id::{Domid, Uuid};
    use model::plan::RunState;
    use tokio::time::timeout;

    use super::*;
    use crate::hv::Hypervisor;
    use crate::hv::qemu::rundir::DomainRecord;
    use crate::hv::qemu::{QemuHypervisor, Settings};

    const LONG: Duration = Duration::from_secs(30);

    /// Creates a machine whose process has not written its id.
    fn dark() -> (tempfile::TempDir, QemuHypervisor, RunDir, VmId) {
        let run = tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp").unwrap();
        let vm = VmId(Uuid::from_random([1; 16]));
        let dir = RunDir::of(run.path(), vm);
        dir.make().unwrap();
        dir.register(&DomainRecord::new(Domid(7), 1)).unwrap();
        let qemu = QemuHypervisor::new(Settings::usual("/nonexistent".into(), run.path().into()));
        (run, qemu, dir, vm)
    }

    async fn expect_killed(qemu: &QemuHypervisor, of: VmId) {
        let mut events = qemu.events().unwrap();
        match timeout(LONG, events.recv()).await.unwrap().unwrap() {
            DomainEvent::Ended { vm, domid: Domid(7), exit: DomainExit::Killed, .. }
                if vm == of => {}
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn one_that_ends_before_it_can_be_looked_at_is_told() {
        let (_run, qemu, dir, vm) = dark();
        let held = dir.lock().unwrap();
        assert_eq!(qemu.list().await.unwrap()[0].run, Some(RunState::Unresponsive));
        drop(held);
        expect_killed(&qemu, vm).await;
        // There is no process to watch.
        assert!(qemu.domains.known(vm).is_none());
    }

    #[tokio::test]
    async fn one_that_can_be_looked_at_later_is_watched_though_nobody_asks() {
        let (_run, qemu, dir, vm) = dark();
        let mut command = Command::new("sleep");
        let mut child = command.arg("1000").stderr(dir.lock().unwrap()).spawn().unwrap();
        drop(command);
        assert_eq!(qemu.list().await.unwrap()[0].run, Some(RunState::Unresponsive));
        assert!(qemu.domains.known(vm).is_none());
        std::fs::write(dir.pid_file(), child.id().to_string()).unwrap();
        let seen = async {
            while qemu.domains.known(vm).is_none() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, seen).await.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        expect_killed(&qemu, vm).await;
    }
}

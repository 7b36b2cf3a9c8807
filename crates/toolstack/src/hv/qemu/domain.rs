//! One domain: its process, its control connection, and what became of its guest.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use model::id::VmId;
use model::plan::RunState;
use model::vm::exits::DomainExit;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio::time::timeout;

use super::device_ids::{AGENT, Device};
use super::process::Process;
use super::rundir::{DomainRecord, RunDir};
use crate::hv::{DomainEvent, HvError};
use crate::qemu::QemuError;
use crate::qemu::qmp::{COMMAND_DEADLINE, Qmp};

/// Longest wait for the connection to a socket that QEMU listens at.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for the end of a process that has closed its connection.
pub(super) const END_DEADLINE: Duration = Duration::from_secs(1);
/// A QEMU that takes longer than this to say what it does is silent.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(5);

/// The control connection. QEMU talks to one at a time: the watcher makes it, all others wait.
#[derive(Debug)]
pub(super) enum QmpLink {
    /// QEMU has not greeted yet.
    Coming,
    /// Commands are taken.
    Up(Arc<Qmp>),
    /// It cannot be made; tried again after a while.
    Refused(String),
}

/// A domain whose process was there when this was made.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) vm: VmId,
    pub(super) record: DomainRecord,
    pub(super) dir: RunDir,
    pub(super) process: Process,
    link: watch::Sender<QmpLink>,
    ended: watch::Sender<Option<DomainExit>>,
    /// Its process is being ended by us.
    expected: AtomicBool,
    /// Devices for whose leave somebody waits.
    awaited: Mutex<BTreeSet<Device>>,
    /// Whoever talks to the agent.
    pub(super) agent: AsyncMutex<()>,
}

impl Domain {
    /// Takes hold of a domain whose process has this id, which its caller has made sure of.
    pub(super) fn from_pid(
        vm: VmId,
        record: DomainRecord,
        dir: RunDir,
        pid: u32,
    ) -> io::Result<Self> {
        Ok(Self {
            vm,
            record,
            dir,
            process: Process::open(pid)?,
            link: watch::Sender::new(QmpLink::Coming),
            ended: watch::Sender::new(None),
            expected: AtomicBool::new(false),
            awaited: Mutex::default(),
            agent: AsyncMutex::default(),
        })
    }

    /// The control connection, as soon as QEMU answers there.
    pub(super) async fn qmp(&self) -> Result<Arc<Qmp>, HvError> {
        self.qmp_within(SILENT_AFTER).await
    }

    pub(super) async fn qmp_within(&self, deadline: Duration) -> Result<Arc<Qmp>, HvError> {
        let mut links = self.link.subscribe();
        let decided = links.wait_for(|link| match link {
            QmpLink::Coming => false,
            QmpLink::Up(qmp) => !qmp.is_closed(),
            QmpLink::Refused(_) => true,
        });
        let what = || "QEMU's control connection".to_owned();
        let link = tokio::select! {
            biased;
            decided = timeout(deadline, decided) => decided,
            () = self.process.gone() => return Err(HvError::Absent),
        };
        match link.map_err(|_| HvError::Late { what: what(), after: deadline })?.as_deref() {
            Ok(QmpLink::Up(qmp)) => Ok(Arc::clone(qmp)),
            Ok(QmpLink::Refused(why)) if !self.process.is_gone() => {
                Err(HvError::Refused { what: what(), why: why.clone() })
            }
            // The sender lives as long as we do.
            Ok(QmpLink::Refused(_) | QmpLink::Coming) | Err(_) => Err(HvError::Absent),
        }
    }

    /// Its process has ended, or does: it closes its connection a moment before.
    pub(super) async fn wait_process_exit(&self) -> bool {
        let closed = !matches!(&*self.link.borrow(), QmpLink::Up(qmp) if !qmp.is_closed());
        let gone = async || timeout(END_DEADLINE, self.process.gone()).await.is_ok();
        self.process.is_gone() || closed && gone().await
    }

    /// What became of the connection; said by the watcher alone.
    pub(super) fn linked(&self, link: QmpLink) {
        self.link.send_replace(link);
    }

    /// Executes a command.
    pub(super) async fn execute(&self, command: &str, arguments: Value) -> Result<Value, HvError> {
        let qmp = self.qmp().await?;
        Ok(qmp.execute(command, arguments, COMMAND_DEADLINE).await?)
    }

    /// What its process does. An end that was seen stays one.
    pub(super) async fn state(&self) -> Result<RunState, HvError> {
        if let Some(exit) = self.seen_end() {
            return Ok(RunState::Ended(exit));
        }
        self.state_by(&*self.qmp().await?, SILENT_AFTER).await
    }

    /// The same over this connection, from a QEMU that may take this long.
    pub(super) async fn state_by(
        &self,
        qmp: &Qmp,
        deadline: Duration,
    ) -> Result<RunState, HvError> {
        if let Some(exit) = self.seen_end() {
            return Ok(RunState::Ended(exit));
        }
        let status = qmp.execute("query-status", Value::Null, deadline).await?;
        let status = status.get("status").and_then(Value::as_str).unwrap_or_default();
        Ok(run_state(status, || self.dir.has_reset()))
    }

    /// How its guest ended, now or later.
    pub(super) async fn wait_end(&self) -> DomainExit {
        let mut ended = self.ended.subscribe();
        // The sender lives as long as we do.
        let exit = ended.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
        exit.unwrap_or(DomainExit::Killed)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.seen_end().is_some()
    }

    fn seen_end(&self) -> Option<DomainExit> {
        *self.ended.borrow()
    }

    /// Its guest ended, or its process did. The first end counts.
    pub(super) async fn end(&self, exit: DomainExit, out: &mpsc::Sender<DomainEvent>) {
        let first = self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(exit);
            first
        });
        if !first || self.expected.load(Ordering::Relaxed) {
            return;
        }
        let (vm, domid, at) = (self.vm, self.record.domid(), SystemTime::now());
        // Nobody listens any more when the daemon ends.
        let _unheard = out.send(DomainEvent::Ended { vm, domid, exit, at }).await;
    }

    /// Its end from now on is our doing, and no news.
    pub(super) fn expect_end(&self) {
        self.expected.store(true, Ordering::Relaxed);
    }

    /// Somebody waits for the leave of a device until this is dropped.
    pub(super) fn awaiting(&self, device: Device) -> RemovalWaiter<'_> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).insert(device);
        RemovalWaiter { domain: self, device }
    }

    pub(super) fn is_awaited(&self, device: Device) -> bool {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).contains(&device)
    }

    /// Every device that the guest has, of those that are plugged.
    pub(super) async fn devices(&self) -> Result<Vec<Device>, HvError> {
        Ok(Self::devices_by(&*self.qmp().await?, COMMAND_DEADLINE).await?)
    }

    /// The same over this connection, from a QEMU that may take this long.
    pub(super) async fn devices_by(
        qmp: &Qmp,
        deadline: Duration,
    ) -> Result<Vec<Device>, QemuError> {
        let path = json!({ "path": "/machine/peripheral" });
        let list = qmp.execute("qom-list", path, deadline).await?;
        let names =
            list.as_array().into_iter().flatten().filter_map(|one| one.get("name")?.as_str());
        Ok(names.filter_map(Device::parse).collect())
    }

    /// The guest's agent has opened its port.
    pub(super) async fn agent_listens(&self) -> Result<bool, HvError> {
        Self::agent_listens_by(&*self.qmp().await?, COMMAND_DEADLINE).await
    }

    /// The same over this connection, from a QEMU that may take this long.
    pub(super) async fn agent_listens_by(qmp: &Qmp, deadline: Duration) -> Result<bool, HvError> {
        let list = qmp.execute("query-chardev", Value::Null, deadline).await?;
        let port = list.as_array().into_iter().flatten();
        let mut port = port.filter(|one| one.get("label").and_then(Value::as_str) == Some(AGENT));
        Ok(port.any(|one| one.get("frontend-open") == Some(&Value::Bool(true))))
    }
}

/// Somebody waits for the leave of a device.
#[derive(Debug)]
pub(super) struct RemovalWaiter<'a> {
    domain: &'a Domain,
    device: Device,
}

impl Drop for RemovalWaiter<'_> {
    fn drop(&mut self) {
        let mut awaited = self.domain.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.remove(&self.device);
    }
}

/// Connects to a socket at which QEMU listens.
pub(super) async fn connect(socket: std::path::PathBuf) -> Result<UnixStream, HvError> {
    let what = || format!("connecting to {}", socket.display());
    match timeout(CONNECT_DEADLINE, UnixStream::connect(&socket)).await {
        Ok(stream) => stream.map_err(|source| HvError::Os { what: what(), source }),
        Err(_) => Err(HvError::Late { what: what(), after: CONNECT_DEADLINE }),
    }
}

/// What a state of QEMU's means for a machine. `is_reset`: its guest has ended because it reset itself.
fn run_state(status: &str, is_reset: impl FnOnce() -> bool) -> RunState {
    match status {
        // A guest that sleeps wakes by itself.
        "running" | "suspended" => RunState::Running,
        "shutdown" if is_reset() => RunState::Ended(DomainExit::Rebooted),
        "shutdown" => RunState::Ended(DomainExit::PoweredOff),
        // The second: the CPU did something that the accelerator cannot follow.
        "guest-panicked" | "internal-error" => RunState::Ended(DomainExit::Panicked),
        "prelaunch" => RunState::Fresh,
        _ => RunState::Paused,
    }
}

impl From<QemuError> for HvError {
    fn from(error: QemuError) -> Self {
        match error {
            QemuError::Late { what, deadline } => Self::Late { what, after: deadline },
            QemuError::Refused { what, reason } => Self::Refused { what, why: reason },
            other => {
                let source = std::error::Error::source(&other).map(|source| format!(": {source}"));
                let why = format!("{other}{}", source.unwrap_or_default());
                Self::Refused { what: "QEMU".into(), why }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_qemu_are_states_of_a_machine() {
        let table = [
            ("running", RunState::Running),
            ("prelaunch", RunState::Fresh),
            ("paused", RunState::Paused),
            ("io-error", RunState::Paused),
            ("shutdown", RunState::Ended(DomainExit::PoweredOff)),
            ("guest-panicked", RunState::Ended(DomainExit::Panicked)),
            ("internal-error", RunState::Ended(DomainExit::Panicked)),
        ];
        for (status, run) in table {
            assert_eq!(run_state(status, || false), run, "{status}");
        }
        assert_eq!(run_state("shutdown", || true), RunState::Ended(DomainExit::Rebooted));
        assert_eq!(run_state("running", || true), RunState::Running);
    }
}

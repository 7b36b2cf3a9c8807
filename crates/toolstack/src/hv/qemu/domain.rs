//! Domain: its process, its control connection, and the end of its guest.

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

use super::agent::AgentSession;
use super::device_ids::{AGENT, Device};
use super::process::Process;
use super::rundir::{DomainRecord, RunDir};
use crate::hv::{DomainEvent, HvError};
use crate::qemu::QemuError;
use crate::qemu::qmp::{COMMAND_DEADLINE, Qmp};

/// Longest wait for a connection to a socket at which QEMU listens.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for the exit of a process that has closed its connection.
pub(super) const END_DEADLINE: Duration = Duration::from_secs(1);
/// Time after which a QEMU that does not report its state counts as silent.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(5);

/// State of the control connection. QEMU serves one connection at a time. Only the watcher creates
/// it, and all other tasks wait for it.
#[derive(Debug)]
pub(super) enum QmpLink {
    /// QEMU has not greeted yet.
    Coming,
    /// The connection accepts commands.
    Up(Arc<Qmp>),
    /// The connection failed. The watcher retries after a pause.
    Refused(String),
}

/// Domain whose process existed when this value was created.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) vm: VmId,
    pub(super) record: DomainRecord,
    pub(super) dir: RunDir,
    pub(super) process: Process,
    link: watch::Sender<QmpLink>,
    ended: watch::Sender<Option<DomainExit>>,
    /// True if the daemon is ending the process.
    expected: AtomicBool,
    /// Devices whose removal a call waits for.
    awaited: Mutex<BTreeSet<Device>>,
    /// Lock of the agent, one session at a time, with the connection that the last one left open.
    pub(super) agent: AsyncMutex<Option<AgentSession>>,
}

impl Domain {
    /// Creates a domain for the process with this id. The caller has verified that the id is right.
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

    /// Returns the control connection as soon as QEMU answers there.
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
            // The sender lives as long as `self`.
            Ok(QmpLink::Refused(_) | QmpLink::Coming) | Err(_) => Err(HvError::Absent),
        }
    }

    /// Returns whether the process has exited. A closing process is waited for: it closes its
    /// connection just before it exits.
    pub(super) async fn wait_process_exit(&self) -> bool {
        let closed = !matches!(&*self.link.borrow(), QmpLink::Up(qmp) if !qmp.is_closed());
        let gone = async || timeout(END_DEADLINE, self.process.gone()).await.is_ok();
        self.process.is_gone() || closed && gone().await
    }

    /// Sets the state of the connection. Only the watcher calls this.
    pub(super) fn linked(&self, link: QmpLink) {
        self.link.send_replace(link);
    }

    /// Executes a QMP command.
    pub(super) async fn execute(&self, command: &str, arguments: Value) -> Result<Value, HvError> {
        let qmp = self.qmp().await?;
        Ok(qmp.execute(command, arguments, COMMAND_DEADLINE).await?)
    }

    /// Returns the run state. An end that was seen stays.
    pub(super) async fn state(&self) -> Result<RunState, HvError> {
        if let Some(exit) = self.seen_end() {
            return Ok(RunState::Ended(exit));
        }
        self.state_by(&*self.qmp().await?, SILENT_AFTER).await
    }

    /// Returns the run state over this connection, within `deadline`.
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

    /// Waits until the guest has ended, and returns the reason.
    pub(super) async fn wait_end(&self) -> DomainExit {
        let mut ended = self.ended.subscribe();
        // The sender lives as long as `self`.
        let exit = ended.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
        exit.unwrap_or(DomainExit::Killed)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.seen_end().is_some()
    }

    fn seen_end(&self) -> Option<DomainExit> {
        *self.ended.borrow()
    }

    /// Records and reports the end of the guest or its process. Only the first end counts.
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
        // When the daemon exits, the receiver is gone.
        let _no_receiver = out.send(DomainEvent::Ended { vm, domid, exit, at }).await;
    }

    /// Marks the end of the process as requested, so that it is not reported.
    pub(super) fn expect_end(&self) {
        self.expected.store(true, Ordering::Relaxed);
    }

    /// Registers a call that waits for the removal of a device, until the value is dropped.
    pub(super) fn awaiting(&self, device: Device) -> RemovalWaiter<'_> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).insert(device);
        RemovalWaiter { domain: self, device }
    }

    pub(super) fn is_awaited(&self, device: Device) -> bool {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).contains(&device)
    }

    /// Returns the guest's plugged devices.
    pub(super) async fn devices(&self) -> Result<Vec<Device>, HvError> {
        Ok(Self::devices_by(&*self.qmp().await?, COMMAND_DEADLINE).await?)
    }

    /// Returns the guest's plugged devices over this connection, within `deadline`.
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

    /// Returns whether the guest's agent has opened its port.
    pub(super) async fn agent_listens(&self) -> Result<bool, HvError> {
        Self::agent_listens_by(&*self.qmp().await?, COMMAND_DEADLINE).await
    }

    /// Returns whether the agent has opened its port, over this connection and within `deadline`.
    pub(super) async fn agent_listens_by(qmp: &Qmp, deadline: Duration) -> Result<bool, HvError> {
        let list = qmp.execute("query-chardev", Value::Null, deadline).await?;
        let port = list.as_array().into_iter().flatten();
        let mut port = port.filter(|one| one.get("label").and_then(Value::as_str) == Some(AGENT));
        Ok(port.any(|one| one.get("frontend-open") == Some(&Value::Bool(true))))
    }
}

/// Registration of a call that waits for the removal of a device.
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

/// Translates QEMU's run state. `is_reset` returns whether the guest has ended by a reset.
fn run_state(status: &str, is_reset: impl FnOnce() -> bool) -> RunState {
    match status {
        // A suspended guest wakes up by itself.
        "running" | "suspended" => RunState::Running,
        "shutdown" if is_reset() => RunState::Ended(DomainExit::Rebooted),
        "shutdown" => RunState::Ended(DomainExit::PoweredOff),
        // `internal-error`: the accelerator cannot emulate what the CPU did.
        "guest-panicked" | "internal-error" => RunState::Ended(DomainExit::Panicked),
        "prelaunch" => RunState::Created,
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
            ("prelaunch", RunState::Created),
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

//! Time until a client receives the end of a VM, while other guests compute.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use testkit::ringwayd::{Ringwayd, Shell};
use xenapi::client::Record;

use super::host::{Host, runs};

/// Longest wait for the report of an end, and for a guest to follow a command.
const DEADLINE: Duration = Duration::from_secs(60);
/// Classes whose events the client receives.
const CLASSES: &[&str] = &["vm", "message"];

/// Way in which a VM ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its QEMU is killed.
    Killed,
    /// The guest's kernel panics.
    Panic,
    /// The guest powers off.
    PowerOff,
    /// The guest reboots, which ends this VM by its configuration.
    Reboot,
}

/// All ways to end, in turn.
pub(super) const ENDS: [End; 4] = [End::Killed, End::Panic, End::PowerOff, End::Reboot];

/// Time until a client receives the report of an end.
#[derive(Debug, Clone, Copy)]
pub(super) struct NotifyLatency {
    pub(super) end: End,
    /// Time until the record says halted, in milliseconds.
    pub(super) halted_ms: f64,
    /// Time until the message with the reason, in milliseconds.
    pub(super) message_ms: f64,
}

impl End {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Panic => "panic",
            Self::PowerOff => "poweroff",
            Self::Reboot => "reboot",
        }
    }

    /// Returns the name of the message.
    fn message(self) -> &'static str {
        match self {
            Self::Killed | Self::Panic => "VM_CRASHED",
            Self::PowerOff => "VM_SHUTDOWN",
            Self::Reboot => "VM_REBOOTED",
        }
    }

    /// Triggers the end and returns its time. For a kill, this is the time before the kill.
    /// Otherwise it is when the last line of the guest's kernel arrives. Earlier work is the
    /// guest's own and takes long beside busy guests.
    fn begin(self, daemon: &Ringwayd, uuid: &str, shell: Shell) -> Result<Instant> {
        match self {
            Self::Killed => return kill_emulator(daemon, uuid),
            Self::Panic => {
                let words = "Kernel panic - not syncing";
                shell.last_by("echo c >/proc/sysrq-trigger", words, DEADLINE)?;
            }
            Self::PowerOff => shell.last_by("poweroff", "reboot: Power down", DEADLINE)?,
            Self::Reboot => shell.last_by("reboot", "reboot: Restarting system", DEADLINE)?,
        }
        Ok(Instant::now())
    }
}

fn kill_emulator(daemon: &Ringwayd, uuid: &str) -> Result<Instant> {
    let started = daemon.started();
    let emulator = started.iter().find(|(_, words)| words.contains(uuid) && runs(words));
    let (pid, _) = emulator.context("a machine has no emulator")?;
    let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw).context("no process")?;
    let from = Instant::now();
    kill_process(pid, Signal::KILL).context("cannot kill an emulator")?;
    Ok(from)
}

/// Ends up to `most` VMs, one after the other, but never the last one.
///
/// # Errors
/// A guest does not follow a command, or the client receives no report of an end.
pub(super) fn ends(host: &Host, shells: Vec<Shell>, most: usize) -> Result<Vec<NotifyLatency>> {
    let mut client = host.daemon.client()?;
    let mut token = client.events(CLASSES, "", Duration::ZERO)?.token;
    let mut all = Vec::new();
    let others = host.machines.len().saturating_sub(1);
    let machines = host.machines.iter().zip(shells).zip(ENDS.into_iter().cycle());
    for ((uuid, shell), end) in machines.take(most.min(others)) {
        let from = end.begin(&host.daemon, uuid, shell)?;
        let (mut halted, mut message) = (None, None);
        while halted.is_none() || message.is_none() {
            ensure!(from.elapsed() < DEADLINE, "no event reports the end of {uuid} ({end:?})");
            let batch = client.events(CLASSES, &token, DEADLINE)?;
            token = batch.token;
            let now_ms = from.elapsed().as_secs_f64() * 1e3;
            let reports = |class: &str, of: &str, field: &str, value: &str| {
                batch.events.iter().filter(|event| event.class == class).any(|event| {
                    let is = |one: &Record| one.text(of) == uuid && one.text(field) == value;
                    event.snapshot.as_ref().is_some_and(is)
                })
            };
            if reports("vm", "uuid", "power_state", "Halted") {
                halted.get_or_insert(now_ms);
            }
            if reports("message", "obj_uuid", "name", end.message()) {
                message.get_or_insert(now_ms);
            }
        }
        let (Some(halted_ms), Some(message_ms)) = (halted, message) else { continue };
        all.push(NotifyLatency { end, halted_ms, message_ms });
    }
    Ok(all)
}

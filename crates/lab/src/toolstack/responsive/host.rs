//! A daemon with guests that want all CPUs.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;
use testkit::ringwayd::Ringwayd;
use xenapi::client::Record;

/// What each guest does.
const COMPUTE: &str = "for n in $(seq $(nproc)); do (while :; do :; done) & done";
/// Longest wait for all guests' shells: they boot beside each other, without KVM on few CPUs.
const BOOT_DEADLINE: Duration = Duration::from_secs(300);
/// Longest wait for the news that a machine has ended.
const END_DEADLINE: Duration = Duration::from_secs(60);
/// Whose changes are waited for.
const VM: &[&str] = &["vm"];

/// A daemon with its machines. All of them end with it.
pub(super) struct Host {
    pub(super) daemon: Ringwayd,
    machines: Vec<String>,
}

impl Host {
    pub(super) fn start(
        config: &NamedTempFile,
        (count, each): (usize, usize),
        slices: bool,
    ) -> Result<Self> {
        let mode = if slices { "required" } else { "off" };
        let config = config.path().display().to_string();
        let daemon = Ringwayd::start(&["--config", &config, "--slices", mode])?;
        let made = |number| {
            let name = format!("new-name-label=m{number}");
            let uuid = daemon.xe_prints(&["vm-install", "template=Ringway test guest", &name])?;
            let of = format!("uuid={uuid}");
            // One that is killed stays so.
            daemon.xe_prints(&["vm-param-set", &of, "actions-after-crash=destroy"])?;
            // The most comes first: there are never more at the start than at most.
            for (key, value) in [("VCPUs-max", each), ("VCPUs-at-startup", each)] {
                daemon.xe_prints(&["vm-param-set", &of, &format!("{key}={value}")])?;
            }
            Ok(uuid)
        };
        let machines = (0..count).map(made).collect::<Result<_>>()?;
        Ok(Self { daemon, machines })
    }

    /// Starts all guests; returns when they compute.
    pub(super) fn make_busy(&self) -> Result<()> {
        for uuid in &self.machines {
            self.daemon.xe_prints(&["vm-start", &format!("uuid={uuid}")])?;
        }
        let shells = self.machines.iter().map(|uuid| Ok(self.daemon.shell(uuid)?));
        let mut shells = shells.collect::<Result<Vec<_>>>()?;
        for shell in &mut shells {
            shell.ready(BOOT_DEADLINE)?;
        }
        for shell in &mut shells {
            shell.run(COMPUTE, BOOT_DEADLINE)?;
        }
        Ok(())
    }

    /// Kills the emulators of so many machines, one after the other, and not that of the last one: how
    /// long it took each time until a client was told that the machine is halted, in milliseconds.
    pub(super) fn ends(&self, most: usize) -> Result<Vec<f64>> {
        let mut client = self.daemon.client()?;
        let mut token = client.events(VM, "", Duration::ZERO)?.token;
        let mut took = Vec::new();
        let others = self.machines.len().saturating_sub(1);
        for uuid in self.machines.iter().take(most.min(others)) {
            let started = self.daemon.started();
            let emulator = started.iter().find(|(_, words)| words.contains(&**uuid) && runs(words));
            let (pid, _) = emulator.context("a machine has no emulator")?;
            let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw).context("no process")?;
            let from = Instant::now();
            kill_process(pid, Signal::KILL).context("cannot kill an emulator")?;
            loop {
                ensure!(from.elapsed() < END_DEADLINE, "nobody is told of the end of {uuid}");
                let batch = client.events(VM, &token, END_DEADLINE)?;
                token = batch.token;
                let mut records = batch.events.iter().filter_map(|event| event.snapshot.as_ref());
                let halted = |vm: &Record| vm.text("power_state") == "Halted";
                if records.any(|vm| vm.text("uuid") == uuid && halted(vm)) {
                    break;
                }
            }
            took.push(from.elapsed().as_secs_f64() * 1e3);
        }
        Ok(took)
    }

    /// CPU time of all guests so far, in seconds.
    pub(super) fn guests_s(&self) -> f64 {
        let started = self.daemon.started().into_iter();
        let guests = started.filter(|(_, words)| runs(words));
        guests.filter_map(|(pid, _)| used_s(pid)).sum()
    }
}

/// Whether this is the command line of a guest's emulator.
fn runs(words: &str) -> bool {
    words.split(' ').any(|word| word == "-kernel")
}

/// CPU time of a process so far, in seconds.
fn used_s(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // What is before the last bracket may have blanks in it (proc_pid_stat(5)).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_process_is_read() {
        assert!(used_s(std::process::id()).is_some());
        assert_eq!(used_s(u32::MAX), None);
    }
}

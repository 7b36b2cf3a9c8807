//! Daemon with guests that demand all CPUs.

use std::time::Duration;

use anyhow::Result;
use tempfile::NamedTempFile;
use testkit::ringwayd::{Ringwayd, Shell};

use crate::cpu::process_time_s;

/// Command that each guest runs.
const COMPUTE: &str = "for n in $(seq $(nproc)); do (while :; do :; done) & done";
/// Longest wait for the shells of all guests. They boot concurrently, without KVM, on few CPUs.
const BOOT_DEADLINE: Duration = Duration::from_secs(300);

/// Daemon with its VMs. Dropping it ends all of them.
pub(super) struct Host {
    pub(super) daemon: Ringwayd,
    pub(super) machines: Vec<String>,
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
            // A VM that has ended stays halted.
            for after in ["shutdown", "reboot", "crash"] {
                let stays = format!("actions-after-{after}=destroy");
                daemon.xe_prints(&["vm-param-set", &of, &stays])?;
            }
            // The maximum comes first, because the value at startup must not exceed it.
            for (key, value) in [("VCPUs-max", each), ("VCPUs-at-startup", each)] {
                daemon.xe_prints(&["vm-param-set", &of, &format!("{key}={value}")])?;
            }
            Ok(uuid)
        };
        let machines = (0..count).map(made).collect::<Result<_>>()?;
        Ok(Self { daemon, machines })
    }

    /// Starts all guests and waits until they compute. Returns a shell of each, in the order of the
    /// VMs.
    pub(super) fn make_busy(&self) -> Result<Vec<Shell>> {
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
        Ok(shells)
    }

    /// Returns the CPU time of all guests so far, in seconds.
    pub(super) fn guests_s(&self) -> f64 {
        let started = self.daemon.started().into_iter();
        let guests = started.filter(|(_, words)| runs(words));
        guests.filter_map(|(pid, _)| process_time_s(pid).ok()).sum()
    }
}

/// Returns whether this is the command line of a guest's QEMU.
pub(super) fn runs(words: &str) -> bool {
    words.split(' ').any(|word| word == "-kernel")
}

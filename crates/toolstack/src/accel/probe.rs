//! Trial boot: one short boot under an accelerator.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use model::machine::Accel;
use tokio::io::AsyncReadExt;

use crate::format::format_duration;
use crate::qemu::{Engine, Machine, QemuError, QemuSpec};

/// Longest trial boot. Under a working KVM it takes about one second.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(8);
/// Memory of the trial machine in bytes: enough for a distribution's kernel without an initrd.
const MEMORY_BYTES: u64 = 192 << 20;
/// Longest console output that the trial reads, in bytes.
const CONSOLE_BYTES: usize = 1 << 20;
/// First text that every Linux kernel prints.
const STARTED: &str = "Linux version";
/// Texts that a kernel prints at the end of its own start. It finds no root file system, or it
/// starts the first program of a built-in one.
const THROUGH: [&str; 3] = ["Kernel panic", "as init process", "Unable to mount root"];

/// Result of a trial boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The kernel completed its start.
    Works,
    /// The kernel did not complete its start. The text is the reason, as half a sentence.
    Fails(String),
    /// The trial itself failed, so the result is unknown.
    Unknown(String),
}

/// Boots `kernel` under `accel` until it panics for want of a root file system. `slot` contains the
/// machine meanwhile, and is empty at the end.
pub async fn probe(
    launcher: &[OsString],
    qemu: &Path,
    kernel: &Path,
    accel: Accel,
    deadline: Duration,
    slot: &mut Option<Machine>,
) -> ProbeOutcome {
    let spec = QemuSpec {
        engine: Engine::of(accel, qemu).await,
        memory_bytes: MEMORY_BYTES,
        vcpus: 1,
        kernel: kernel.into(),
        initrd: None,
        append: "console=ttyS0 earlyprintk=ttyS0 panic=-1 no_timer_check".into(),
        disks: Vec::new(),
    };
    let machine = match Machine::spawn(launcher, qemu, &spec, false) {
        Ok(machine) => slot.insert(machine),
        Err(error) => return ProbeOutcome::Unknown(error.to_string()),
    };
    let mut seen = String::new();
    let watched = tokio::time::timeout(deadline, watch(machine, &mut seen)).await;
    // The machine is not needed any more, and its exit is the one requested here.
    let _ended = machine.quit().await;
    *slot = None;
    match watched {
        Ok(Ok(())) => judge(&seen, None),
        Ok(Err(error)) => judge(&seen, Some(error)),
        Err(_) => judge(&seen, Some(QemuError::Late { what: "a trial boot".into(), deadline })),
    }
}

/// Appends the console output to `seen` until the kernel has completed its start, or the machine
/// exits.
async fn watch(machine: &mut Machine, seen: &mut String) -> Result<(), QemuError> {
    let mut console = machine.take_console().ok_or(QemuError::Closed)?;
    machine.ready().await?;
    let mut chunk = [0; 4096];
    while seen.len() < CONSOLE_BYTES && !through(seen) {
        match console.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(n) => {
                let bytes = chunk.get(..n).unwrap_or_default();
                seen.push_str(&String::from_utf8_lossy(bytes));
            }
        }
    }
    if through(seen) {
        return Ok(());
    }
    machine.wait().await.map(drop)
}

fn through(seen: &str) -> bool {
    let started = seen.find(STARTED).and_then(|at| seen.get(at..));
    started.is_some_and(|seen| THROUGH.iter().any(|line| seen.contains(line)))
}

/// Derives the result from the console output and the error that ended the trial.
fn judge(seen: &str, error: Option<QemuError>) -> ProbeOutcome {
    if through(seen) {
        return ProbeOutcome::Works;
    }
    let late = match &error {
        Some(QemuError::Late { deadline, .. }) => format_duration(*deadline),
        // QEMU started no guest. The cause is KVM, a bad kernel file or a missing option. Only the
        // first says something about KVM.
        Some(QemuError::Died { tail, .. }) if tail.to_lowercase().contains("kvm") => {
            let line = tail.lines().find(|line| line.to_lowercase().contains("kvm"));
            return ProbeOutcome::Fails(line.unwrap_or_default().trim().into());
        }
        Some(error) => return ProbeOutcome::Unknown(error.to_string()),
        None if seen.contains(STARTED) => {
            return ProbeOutcome::Fails("the kernel reset early".into());
        }
        None => return ProbeOutcome::Fails("the guest reset before any kernel output".into()),
    };
    if seen.contains(STARTED) {
        ProbeOutcome::Fails(format!("the kernel started but did not finish booting within {late}"))
    } else {
        ProbeOutcome::Fails(format!("the kernel printed nothing within {late}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitStatus;

    fn late() -> Option<QemuError> {
        Some(QemuError::Late { what: "x".into(), deadline: PROBE_DEADLINE })
    }

    #[test]
    fn a_kernel_that_ends_for_want_of_a_root_has_worked() {
        let seen = "[0.0] Linux version 6.1\n[1.0] Kernel panic - not syncing: VFS";
        assert_eq!(judge(seen, None), ProbeOutcome::Works);
        // The panic came before the deadline was noticed.
        assert_eq!(judge(seen, late()), ProbeOutcome::Works);
    }

    #[test]
    fn silence_and_a_stop_half_way_are_failures() {
        let silent = judge("SeaBIOS\nBooting from ROM...", late());
        assert!(matches!(&silent, ProbeOutcome::Fails(why) if why.contains("printed nothing")));
        let half = judge("Linux version 6.1\n", late());
        assert!(matches!(&half, ProbeOutcome::Fails(why) if why.contains("did not finish")));
        assert!(matches!(judge("Linux version 6.1\n", None), ProbeOutcome::Fails(_)));
    }

    #[test]
    fn a_qemu_that_never_started_says_nothing_of_kvm_unless_it_names_it() {
        let died =
            |tail: &str| Some(QemuError::Died { status: ExitStatus::default(), tail: tail.into() });
        let kernel = judge("", died("qemu: could not load kernel 'x'"));
        assert!(matches!(kernel, ProbeOutcome::Unknown(_)), "{kernel:?}");
        let kvm = judge("", died("qemu: failed to initialize kvm: Permission denied"));
        assert!(matches!(kvm, ProbeOutcome::Fails(_)), "{kvm:?}");
    }
}

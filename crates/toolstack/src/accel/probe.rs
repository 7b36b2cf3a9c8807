//! One short boot under an accelerator.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use model::machine::Accel;
use tokio::io::AsyncReadExt;

use crate::qemu::{Engine, Machine, QemuError, QemuSpec};
use crate::ringway_io::format_duration;

/// Longest trial boot. Under a working KVM it takes about one second.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(8);
/// Memory of the trial machine in bytes: enough for a distribution's kernel without an initrd.
const MEMORY_BYTES: u64 = 192 << 20;
/// Most console output that is looked at, in bytes.
const CONSOLE_BYTES: usize = 1 << 20;
/// What every Linux prints first.
const STARTED: &str = "Linux version";
/// What it prints when its own start is through: it looks for a root file system in vain, or
/// has one built in and starts its first program.
const THROUGH: [&str; 3] = ["Kernel panic", "as init process", "Unable to mount root"];

/// What a trial boot showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The kernel ran through its start.
    Works,
    /// It did not; the reason as half a sentence.
    Fails(String),
    /// The trial itself went wrong: nothing is known.
    Unknown(String),
}

/// Boots `kernel` under `accel` until it gives up for want of a root file system. The machine is
/// in `slot` meanwhile, and gone from there at the end.
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
    // Whatever it did, it is of no more use; its end was ours to ask.
    let _ended = machine.quit().await;
    *slot = None;
    match watched {
        Ok(Ok(())) => judge(&seen, None),
        Ok(Err(error)) => judge(&seen, Some(error)),
        Err(_) => judge(&seen, Some(QemuError::Late { what: "a trial boot".into(), deadline })),
    }
}

/// Follows the console into `seen` until the kernel is through, or the machine ends.
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

/// The verdict from what the console showed and how the watching ended.
fn judge(seen: &str, error: Option<QemuError>) -> ProbeOutcome {
    if through(seen) {
        return ProbeOutcome::Works;
    }
    let late = match &error {
        Some(QemuError::Late { deadline, .. }) => format_duration(*deadline),
        // QEMU did not start a guest at all: a bad kernel file, an option that it lacks; or it
        // could not use KVM. Only the last says something of KVM.
        Some(QemuError::Died { tail, .. }) if tail.to_lowercase().contains("kvm") => {
            let line = tail.lines().find(|line| line.to_lowercase().contains("kvm"));
            return ProbeOutcome::Fails(line.unwrap_or_default().trim().into());
        }
        Some(error) => return ProbeOutcome::Unknown(error.to_string()),
        None if seen.contains(STARTED) => {
            return ProbeOutcome::Fails("the kernel reset early".into());
        }
        None => return ProbeOutcome::Fails("the guest reset before its kernel said a word".into()),
    };
    if seen.contains(STARTED) {
        ProbeOutcome::Fails(format!("the kernel started and was not through after {late}"))
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
        assert!(matches!(&half, ProbeOutcome::Fails(why) if why.contains("not through")));
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

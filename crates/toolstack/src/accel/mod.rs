//! Choice of the accelerator: KVM only if a guest has really started under it.
//!
//! On some machines /dev/kvm opens, but every ordinary kernel hangs. So `auto` boots the given
//! kernel once, without a root file system, and waits for the panic about that. By then the kernel
//! has run through its whole start.
//!
//! A file stores the result. It is valid until the host reboots or QEMU changes.

mod probe;
mod probe_cache;

pub use probe::{PROBE_DEADLINE, ProbeOutcome, probe};
pub use probe_cache::ProbeCache;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use model::machine::{Accel, AccelChoice};

use crate::qemu::{Machine, QemuError};

/// Accelerator of a machine, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The accelerator.
    pub accel: Accel,
    /// Reason, as half a sentence.
    pub why: String,
}

impl Decision {
    fn new(accel: Accel, why: impl Into<String>) -> Self {
        Self { accel, why: why.into() }
    }
}

/// Inputs of a probe.
#[derive(Debug)]
pub struct Prober<'a> {
    /// Path of QEMU.
    pub qemu: &'a Path,
    /// Arguments before QEMU's command (see [`Machine::spawn`]).
    pub launcher: &'a [OsString],
    /// Kernel for the trial boot.
    pub kernel: &'a Path,
    /// Device file: /dev/kvm except in tests.
    pub device: PathBuf,
    /// Store of earlier results.
    pub probe_cache: &'a ProbeCache,
}

impl Prober<'_> {
    /// Chooses the accelerator. `slot` contains the trial machine while it runs, so a caller that
    /// drops this future can still wait for the machine's exit.
    ///
    /// # Errors
    /// QEMU does not report its version.
    pub async fn decide(
        &self,
        choice: AccelChoice,
        slot: &mut Option<Machine>,
    ) -> Result<Decision, QemuError> {
        if let AccelChoice::Fixed(accel) = choice {
            return Ok(Decision::new(accel, "as asked"));
        }
        if let Some(known) = decide_without_boot(&self.device, self.qemu, self.probe_cache).await? {
            return Ok(known);
        }
        let (version, _) = crate::qemu::version(self.qemu).await?;
        let verdict =
            probe(self.launcher, self.qemu, self.kernel, Accel::Kvm, PROBE_DEADLINE, slot).await;
        Ok(match verdict {
            ProbeOutcome::Works => {
                self.probe_cache.keep(&version, true);
                Decision::new(Accel::Kvm, "a trial boot succeeded")
            }
            ProbeOutcome::Fails(why) => {
                self.probe_cache.keep(&version, false);
                Decision::new(Accel::Tcg, format!("a trial boot under KVM failed: {why}"))
            }
            // The trial says nothing about KVM. The real start will report the error.
            ProbeOutcome::Unknown(why) => {
                Decision::new(Accel::Tcg, format!("KVM could not be tried: {why}"))
            }
        })
    }
}

/// Chooses the accelerator from the device and an earlier trial boot with this QEMU. `None` if KVM
/// has to be tried.
///
/// # Errors
/// QEMU does not report its version.
pub async fn decide_without_boot(
    device: &Path,
    qemu: &Path,
    probe_cache: &ProbeCache,
) -> Result<Option<Decision>, QemuError> {
    if let Err(why) = openable(device) {
        return Ok(Some(Decision::new(Accel::Tcg, why)));
    }
    let (version, _) = crate::qemu::version(qemu).await?;
    Ok(probe_cache.recall(&version).map(|works| match works {
        true => Decision::new(Accel::Kvm, "a trial boot since the host started succeeded"),
        false => Decision::new(
            Accel::Tcg,
            format!(
                "a trial boot under KVM since the host started failed; remove {} to try again",
                probe_cache.path().display()
            ),
        ),
    }))
}

/// Checks that the device can be opened for reading and writing.
///
/// # Errors
/// The reason, as half a sentence.
pub fn openable(device: &Path) -> Result<(), String> {
    match std::fs::File::options().read(true).write(true).open(device) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("this host has no {}", device.display()))
        }
        Err(error) => Err(format!("{} cannot be opened: {error}", device.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prober<'a>(probe_cache: &'a ProbeCache, qemu: &'a Path, device: &str) -> Prober<'a> {
        Prober {
            qemu,
            launcher: &[],
            kernel: Path::new("/nonexistent/kernel"),
            device: device.into(),
            probe_cache,
        }
    }

    #[tokio::test]
    async fn what_is_asked_for_is_taken_without_a_look() {
        let dir = tempfile::tempdir().unwrap();
        let probe_cache = ProbeCache::at(dir.path(), "boot-1");
        let prober = prober(&probe_cache, Path::new("/nonexistent/qemu"), "/nonexistent/kvm");
        let choice = AccelChoice::Fixed(Accel::Kvm);
        let decision = prober.decide(choice, &mut None).await.unwrap();
        assert_eq!(decision.accel, Accel::Kvm);
    }

    #[tokio::test]
    async fn without_the_device_it_is_tcg_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let probe_cache = ProbeCache::at(dir.path(), "boot-1");
        let prober = prober(&probe_cache, Path::new("/nonexistent/qemu"), "/nonexistent/kvm");
        let decision = prober.decide(AccelChoice::Auto, &mut None).await.unwrap();
        assert_eq!(decision.accel, Accel::Tcg);
        assert_eq!(decision.why, "this host has no /nonexistent/kvm");
    }
}

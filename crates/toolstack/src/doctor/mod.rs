//! Host checks: requirements of Ringway, results and remedies.
//!
//! Each check first collects facts, the only part that accesses the host. A pure function then
//! judges them, so that every result has a test.

mod idle;
mod limits;
mod programs;
mod sizing;
mod slices;
mod storage;

use std::path::PathBuf;

use serde::Serialize;

use crate::accel::{self, ProbeCache, Prober};
use crate::qemu::Machine;
use model::machine::{Accel, AccelChoice};
use std::ffi::OsString;
use std::path::Path;

pub use sizing::sizes;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The requirement is met.
    Ok,
    /// Ringway works, with a limitation.
    Warning,
    /// Ringway does not work.
    Failure,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Severity.
    pub level: Level,
    /// Result in words.
    pub found: String,
    /// Remedy; `None` if the level is [`Level::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), advice: None }
    }

    fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let (found, advice) = (found.into(), Some(advice.into()));
        Self { check, level: Level::Warning, found, advice }
    }

    fn failure(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let (found, advice) = (found.into(), Some(advice.into()));
        Self { check, level: Level::Failure, found, advice }
    }
}

/// Programs and paths to examine.
#[derive(Debug)]
pub struct Subject {
    /// QEMU, if it was found.
    pub qemu: Option<PathBuf>,
    /// `ringway-io`, if it was found.
    pub ringway_io: Option<PathBuf>,
    /// Device file of KVM.
    pub kvm: PathBuf,
    /// Kernel for the trial boot. Without one, the check only reports an earlier result.
    pub kernel: Option<PathBuf>,
    /// Store of earlier trial boot results.
    pub probe_cache: ProbeCache,
    /// Arguments before QEMU's command (see [`Machine::spawn`]).
    pub launcher: Vec<OsString>,
    /// File, block device or directory of images.
    pub path: PathBuf,
}

/// Runs all checks, in a fixed order.
pub async fn examine(subject: &Subject) -> Vec<Finding> {
    let mut findings = vec![limits::kernel()];
    findings.extend(programs::datapath(subject.ringway_io.as_deref()).await);
    findings.extend(programs::qemu(subject.qemu.as_deref()).await);
    findings.push(kvm(subject).await);
    findings.push(limits::memfd());
    findings.push(limits::open_files());
    findings.push(limits::locked_memory());
    findings.push(limits::memory());
    findings.extend(sizing::sizing());
    findings.push(idle::idle_cpus(Path::new("/")));
    findings.push(slices::cgroups(Path::new("/")));
    findings.push(slices::slices(Path::new("/")));
    findings.push(programs::tools());
    findings.push(storage::direct_io(&subject.path));
    findings.push(storage::completion(&subject.path, Path::new("/")));
    findings
}

/// Returns the worst level of all findings.
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

/// Checks that KVM works, by the same trial boot as `ringway run`.
async fn kvm(subject: &Subject) -> Finding {
    const CHECK: &str = "KVM";
    const SLOW: &str = "guests run on QEMU's translator: correct, and many times slower";
    if let Err(why) = accel::openable(&subject.kvm) {
        let advice = format!(
            "{SLOW}; enable virtualisation in the firmware or nesting in the hypervisor, load \
             kvm_intel or kvm_amd, and join the group kvm"
        );
        return Finding::warning(CHECK, why, advice);
    }
    let (Some(qemu), Some(kernel)) = (&subject.qemu, &subject.kernel) else {
        let found = format!("{} opens; no trial boot was made", subject.kvm.display());
        let advice = "give --kernel FILE, or build the test guest with `make guest`";
        return Finding::warning(CHECK, found, advice);
    };
    let prober = Prober {
        qemu,
        launcher: &subject.launcher,
        kernel,
        device: subject.kvm.clone(),
        probe_cache: &subject.probe_cache,
    };
    let mut slot: Option<Machine> = None;
    match prober.decide(AccelChoice::Auto, &mut slot).await {
        Ok(decision) if decision.accel == Accel::Kvm => Finding::ok(CHECK, decision.why),
        Ok(decision) => Finding::warning(CHECK, decision.why, SLOW),
        Err(error) => Finding::warning(CHECK, error.to_string(), SLOW),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides() {
        let ok = Finding::ok("a", "x");
        let warning = Finding::warning("b", "x", "y");
        let failure = Finding::failure("c", "x", "y");
        assert_eq!(worst(&[]), Level::Ok);
        assert_eq!(worst(&[warning.clone(), ok.clone()]), Level::Warning);
        assert_eq!(worst(&[ok, failure, warning]), Level::Failure);
    }

    #[tokio::test]
    async fn a_bare_host_fails_and_each_finding_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let subject = Subject {
            qemu: None,
            ringway_io: None,
            kvm: "/nonexistent/kvm".into(),
            kernel: None,
            probe_cache: ProbeCache::at(dir.path(), "boot"),
            launcher: Vec::new(),
            path: "/nonexistent".into(),
        };
        let findings = examine(&subject).await;
        assert_eq!(worst(&findings), Level::Failure);
        for finding in &findings {
            assert_eq!(finding.advice.is_none(), finding.level == Level::Ok, "{finding:?}");
        }
    }
}

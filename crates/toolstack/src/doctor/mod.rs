//! Examines the host: what Ringway needs, what it found, what to do about it.
//!
//! Each check first collects facts (the only part that touches the host) and then judges them in
//! a pure function, so that every verdict has a test.

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

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Ringway works, with less of something.
    Warning,
    /// Ringway does not work.
    Failure,
}

/// One result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How serious it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it; absent when all is well.
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

/// What to examine.
#[derive(Debug)]
pub struct Subject {
    /// The emulator, if it was found.
    pub qemu: Option<PathBuf>,
    /// The datapath program, if it was found.
    pub ringway_io: Option<PathBuf>,
    /// Device file of KVM.
    pub kvm: PathBuf,
    /// A kernel for the trial boot; without one only an earlier answer is told.
    pub kernel: Option<PathBuf>,
    /// Where the answers of trial boots are kept.
    pub probe_cache: ProbeCache,
    /// Words before QEMU's command (see [`Machine::detached_process`]).
    pub launcher: Vec<OsString>,
    /// A file, block device or directory where images are.
    pub path: PathBuf,
}

/// Examines everything; the order is fixed.
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

/// The worst level of all findings.
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

/// Whether KVM can be used, by the same trial that `ringway run` makes.
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

//! A control group with a CPU quota.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::requirements::HostRequirement;
use crate::storage::Guard;

/// Where the CPU controller may be: of version 1, alone or with its neighbour, and of version 2.
const ROOTS: [(&str, &str); 3] = [
    ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"),
    ("/sys/fs/cgroup/cpu,cpuacct", "cpu.cfs_quota_us"),
    ("/sys/fs/cgroup", "cpu.max"),
];
const PERIOD_US: u64 = 100_000;
/// Makes the group and proves that it can have a quota (`$2`), waits, puts its processes back where
/// groups of this kind begin, and removes it.
const GUARD: &str = r#"
mkdir "$1" || exit 1
[ -w "$1/$2" ] || { rmdir "$1"; echo "$1 has no $2" >&2; exit 1; }
trap '' INT TERM
echo made
read -r _ || true
while read -r pid; do echo "$pid" >"$1/../cgroup.procs"; done <"$1/cgroup.procs"
rmdir "$1"
"#;

/// A control group of a test's own, which is gone when this is dropped. Drop it before the processes
/// in it: one that is about to end keeps it.
#[derive(Debug)]
pub struct Quota {
    _guard: Guard,
    group: PathBuf,
    file: &'static str,
    _dir: TempDir,
}

impl Quota {
    /// A group without a quota. `None`: nobody can make one here, which was tried, and
    /// `RINGWAY_NO_CGROUPS=1` says that this is known.
    ///
    /// # Errors
    /// No temporary directory, or no group.
    pub fn new() -> Result<Option<Self>> {
        let dir = tempfile::tempdir().map_err(|e| Error::io("cannot make a directory", e))?;
        // As unique as the directory.
        let name = dir.path().file_name().unwrap_or_default().to_string_lossy();
        let name = format!("ringway-{}", name.trim_start_matches('.'));
        let mut why = "no CPU controller is mounted in /sys/fs/cgroup".to_owned();
        for (root, file) in ROOTS {
            if !Path::new(root).join("cgroup.procs").exists() {
                continue;
            }
            let group = Path::new(root).join(&name);
            let words = [group.as_os_str(), file.as_ref()];
            match Guard::start(GUARD, &words, "cannot make a control group with a CPU quota") {
                Ok((guard, _)) => {
                    return Ok(Some(Self { _guard: guard, group, file, _dir: dir }));
                }
                Err(error) => why = error.to_string(),
            }
        }
        HostRequirement::Groups.leave_out(&why).map(|()| None)
    }

    /// Puts a process there, with all its threads and those that they start.
    ///
    /// # Errors
    /// There is no such process.
    pub fn enclose(&self, process: u32) -> Result<()> {
        std::fs::write(self.group.join("cgroup.procs"), process.to_string())
            .map_err(|error| Error::io(format!("cannot enclose process {process}"), error))
    }

    /// All of them together may use so much of a CPU, in percent; `None`: as much as they like.
    ///
    /// # Errors
    /// The kernel does not take it.
    pub fn set(&self, percent: Option<u64>) -> Result<()> {
        let quota = percent.map(|percent| percent * PERIOD_US / 100);
        let text = match (self.file, quota) {
            ("cpu.max", None) => "max".into(),
            (_, None) => "-1".into(),
            ("cpu.max", Some(quota)) => format!("{quota} {PERIOD_US}"),
            // The period is that of PERIOD_US unless somebody changes it.
            (_, Some(quota)) => quota.to_string(),
        };
        std::fs::write(self.group.join(self.file), text)
            .map_err(|error| Error::io(format!("cannot set a quota of {percent:?}%"), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_takes_processes_and_quotas_and_leaves_nothing() {
        let Some(quota) = Quota::new().unwrap() else { return };
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        quota.enclose(sleeper.id()).unwrap();
        quota.set(Some(50)).unwrap();
        quota.set(None).unwrap();
        let group = quota.group.clone();
        let inside = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        assert_eq!(inside.trim(), sleeper.id().to_string());
        drop(quota);
        assert!(!group.exists());
        assert!(sleeper.try_wait().unwrap().is_none(), "it goes on outside");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}

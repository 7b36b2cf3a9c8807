//! Control groups with a CPU quota.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::requirements::HostRequirement;
use crate::storage::Guard;

/// Possible roots of the CPU controller: version 1, alone or with cpuacct, and version 2.
const ROOTS: [(&str, &str); 3] = [
    ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"),
    ("/sys/fs/cgroup/cpu,cpuacct", "cpu.cfs_quota_us"),
    ("/sys/fs/cgroup", "cpu.max"),
];
const PERIOD_US: u64 = 100_000;
/// Script that creates the group and checks that it can have a quota (`$2`). It waits, moves the
/// processes back to the controller's root, and removes the group.
const GUARD: &str = r#"
mkdir "$1" || exit 1
[ -w "$1/$2" ] || { rmdir "$1"; echo "$1 has no $2" >&2; exit 1; }
trap '' INT TERM
echo made
read -r _ || true
while read -r pid; do echo "$pid" >"$1/../cgroup.procs"; done <"$1/cgroup.procs"
rmdir "$1"
"#;

/// A control group of a test's own, removed on drop. Drop it before the processes in it: a process
/// that is about to end keeps the group alive.
#[derive(Debug)]
pub struct Quota {
    _guard: Guard,
    group: PathBuf,
    file: &'static str,
    _dir: TempDir,
}

impl Quota {
    /// Creates a group without a quota. Returns `None` if this process cannot create one, and
    /// `RINGWAY_NO_CGROUPS=1` says that this is known.
    ///
    /// # Errors
    /// There is no temporary directory, or no group can be created.
    pub fn new() -> Result<Option<Self>> {
        let dir = tempfile::tempdir().map_err(|e| Error::io("cannot make a directory", e))?;
        // The name is as unique as the directory.
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

    /// Moves a process into the group, with all its threads and those that they start.
    ///
    /// # Errors
    /// There is no such process.
    pub fn enclose(&self, process: u32) -> Result<()> {
        std::fs::write(self.group.join("cgroup.procs"), process.to_string())
            .map_err(|error| Error::io(format!("cannot enclose process {process}"), error))
    }

    /// Limits the group to `percent` of a CPU in total. `None`: no limit.
    ///
    /// # Errors
    /// The kernel refuses the value.
    pub fn set(&self, percent: Option<u64>) -> Result<()> {
        let quota = percent.map(|percent| percent * PERIOD_US / 100);
        let text = match (self.file, quota) {
            ("cpu.max", None) => "max".into(),
            (_, None) => "-1".into(),
            ("cpu.max", Some(quota)) => format!("{quota} {PERIOD_US}"),
            // The period stays PERIOD_US, the kernel's default.
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

//! Check whether this host allows control groups, independent of the daemon's own code.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::Builder;

/// Tries to create a group with a CPU share at each root. Returns whether one works.
pub(super) fn can_be_made() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    roots(&mounts).iter().any(|(root, share)| is_made(root, share))
}

/// Returns the mounted roots with the CPU controller, and the name of the share file of a group.
fn roots(mounts: &str) -> Vec<(PathBuf, &'static str)> {
    let of = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
        match kind {
            "cgroup" if options.split(',').any(|one| one == "cpu") => {
                Some((at.into(), "cpu.shares"))
            }
            "cgroup2" => Some((at.into(), "cpu.weight")),
            _ => None,
        }
    };
    mounts.lines().filter_map(of).collect()
}

fn is_made(root: &Path, share: &str) -> bool {
    let Ok(group) = Builder::new().prefix("rw-").tempdir_in(root) else { return false };
    let has_share = group.path().join(share).exists();
    // A group is removed as a whole; its files cannot be removed.
    fs::remove_dir(group.keep()).is_ok() && has_share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_those_with_the_cpu_controller() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpuacct,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let one = (PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"), "cpu.shares");
        let two = (PathBuf::from("/sys/fs/cgroup/unified"), "cpu.weight");
        assert_eq!(roots(mounts), [one, two]);
    }
}

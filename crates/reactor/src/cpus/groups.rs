//! Directories of the control groups of this process.
//!
//! `/proc/self/cgroup` names the groups within their hierarchies. `/proc/self/mountinfo` says which
//! part of a hierarchy is mounted where (cgroups(7), proc_pid_mountinfo(5)). Both versions of
//! control groups may be mounted at once. The CPU controller belongs to one of them, and only that
//! one has the controller's files.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Most nested groups that are read: the kernel sets no limit.
const LEVELS_MAX: usize = 64;

/// Version of control groups. Each version has its own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    One,
    Two,
}

/// Control group that contains this process, directly or as an ancestor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) version: Version,
    pub(super) folder: PathBuf,
}

/// Groups that may limit this process's CPU time. Empty where control groups are not mounted.
#[derive(Debug, Default)]
pub(super) struct Groups {
    named: Vec<u8>,
    found: Vec<Group>,
}

impl Groups {
    /// Returns the groups of this process now. The mounts are read only after the process changed
    /// groups, since a host may have thousands of mounts.
    pub(super) fn now(&mut self) -> &[Group] {
        let read = |path| std::fs::read(path).unwrap_or_default();
        let named = read("/proc/self/cgroup");
        if named != self.named {
            let mounts = read("/proc/self/mountinfo");
            self.found = find(&String::from_utf8_lossy(&named), &String::from_utf8_lossy(&mounts));
            self.named = named;
        }
        &self.found
    }
}

fn find(named: &str, mounts: &str) -> Vec<Group> {
    let mounts: Vec<_> = mounts.lines().filter_map(mount).collect();
    let found = named.lines().filter_map(name).flat_map(|(version, path)| {
        let within = mounts.iter().filter(|mount| mount.version == version);
        let mut seen = within.filter_map(|mount| {
            let below = path.strip_prefix(&mount.root).ok()?;
            Some(levels(&mount.point, below))
        });
        let folders = seen.next().unwrap_or_default();
        folders.into_iter().map(move |folder| Group { version, folder })
    });
    found.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the directory of the uppermost visible group and of each group below it, down to the
/// process's own group.
fn levels(point: &Path, below: &Path) -> Vec<PathBuf> {
    let mut folder = point.to_owned();
    let below = below.components().map(|part| {
        folder.push(part);
        folder.clone()
    });
    std::iter::once(point.to_owned()).chain(below).take(LEVELS_MAX).collect()
}

/// Mounted part of a hierarchy that can have the CPU controller.
struct Mount {
    version: Version,
    root: PathBuf,
    point: PathBuf,
}

fn mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let version = match kind.next()? {
        "cgroup" => Version::One,
        "cgroup2" => Version::Two,
        _ => return None,
    };
    let controllers = kind.nth(1)?;
    if version == Version::One && !controllers.split(',').any(|one| one == "cpu") {
        return None;
    }
    let mut place = place.split(' ').skip(3).map(unescape);
    Some(Mount { version, root: place.next()?.into(), point: place.next()?.into() })
}

/// Parses the name of a group in its hierarchy.
fn name(line: &str) -> Option<(Version, PathBuf)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers) = (parts.next()?, parts.next()?);
    let version = match controllers {
        "" => Version::Two,
        some if some.split(',').any(|one| one == "cpu") => Version::One,
        _ => return None,
    };
    let path = PathBuf::from(parts.next()?);
    // A path with `..` lies outside of the part that this process may see (cgroup_namespaces(7)).
    let plain = path.components().all(|part| part != Component::ParentDir);
    (path.is_absolute() && plain).then_some((version, path))
}

/// Decodes a path of mountinfo: blanks and similar bytes are written as `\` and three octal digits.
fn unescape(escaped: &str) -> String {
    let mut parts = escaped.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let byte = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (byte.filter(u8::is_ascii), part.get(3..)) {
            (Some(byte), Some(rest)) => {
                path.push(char::from(byte));
                path.push_str(rest);
            }
            _ => {
                path.push('\\');
                path.push_str(part);
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(named: &str, mounts: &str) -> Vec<String> {
        let found = find(named, mounts);
        let describe = |one: Group| format!("{:?} {}", one.version, one.folder.display());
        found.into_iter().map(describe).collect()
    }

    const HYBRID: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_group_and_its_ancestors_are_found_in_both_versions() {
        assert_eq!(
            found("4:memory:/m\n1:cpu:/a/b\n0::/c\n", HYBRID),
            [
                "One /sys/fs/cgroup/cpu",
                "One /sys/fs/cgroup/cpu/a",
                "One /sys/fs/cgroup/cpu/a/b",
                "Two /sys/fs/cgroup/unified",
                "Two /sys/fs/cgroup/unified/c",
            ]
        );
        let systemd = "24 1 0:5 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let named = "0::/system.slice/ringway.service\n";
        assert_eq!(found(named, systemd).len(), 3);
        let both = "5 1 0:5 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        assert_eq!(found("3:cpu,cpuacct:/", both), ["One /sys/fs/cgroup/cpu,cpuacct"]);
    }

    #[test]
    fn of_a_container_that_part_counts_which_it_sees() {
        let mounts = "5 1 0:5 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
        assert_eq!(
            found("1:cpu:/docker/abc/x", mounts),
            ["One /sys/fs/cgroup/cpu", "One /sys/fs/cgroup/cpu/x"]
        );
        // The mounted part belongs to another group.
        assert!(found("1:cpu:/docker/abcd", mounts).is_empty());
        assert!(found("1:cpu:/", mounts).is_empty());
        assert!(found("1:cpu:/../other", HYBRID).is_empty());
    }

    #[test]
    fn names_may_be_anything_and_what_is_not_understood_is_left_out() {
        let mounts = r"5 1 0:5 / /odd\040place\134x rw - cgroup2 none rw";
        assert_eq!(found("0::/a:b c", mounts), [r"Two /odd place\x", r"Two /odd place\x/a:b c"]);
        for odd in ["", "\n\n", "0", "0:", "::", "0::", "0::relative", "x:cpu", "1:cpux:/a"] {
            assert!(found(odd, HYBRID).is_empty(), "{odd:?}");
        }
        for odd in
            ["", " - ", "- cgroup2", " - cgroup2 x rw", "1 2 3 / - cgroup2 x rw", "a - cgroup"]
        {
            assert!(found("0::/a\n1:cpu:/a", odd).is_empty(), "{odd:?}");
        }
        for odd in [r"\", r"\4", r"\999", r"\377é", r"a\04é"] {
            assert_eq!(unescape(odd), odd);
        }
        let deep = format!("0::{}", "/x".repeat(5_000));
        assert!(found(&deep, HYBRID).len() <= LEVELS_MAX);
    }

    #[test]
    fn this_machine_can_be_asked() {
        let mut groups = Groups::default();
        let found = groups.now().to_owned();
        assert!(found.iter().all(|group| group.folder.is_absolute()));
        assert_eq!(groups.now(), found);
    }
}

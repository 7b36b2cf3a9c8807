//! Checks that the control path has a CPU share apart from busy guests.

use std::path::Path;

use super::Finding;
use crate::cgroup::{CgroupError, INSTANCE, SliceTree, Weights, controller};

/// Checks which version of control groups has the CPU controller. `root` is `/` except in tests.
pub(super) fn cgroups(root: &Path) -> Finding {
    const CHECK: &str = "cgroups";
    match controller(root) {
        Some((version, _)) => {
            Finding::ok(CHECK, format!("version {}, with the cpu controller", version.number()))
        }
        None => Finding::warning(
            CHECK,
            "no cpu controller is mounted",
            "the control path cannot be kept apart from busy guests; mount cgroup2 at \
             /sys/fs/cgroup",
        ),
    }
}

/// Checks that the slices of this host's daemon exist, and reports their weights.
pub(super) fn slices(root: &Path) -> Finding {
    match SliceTree::find(root, INSTANCE) {
        Ok(tree) => judge(Ok((tree.to_string(), tree.weights()))),
        Err(error) => judge(Err(error)),
    }
}

fn judge(found: Result<(String, Option<Weights>), CgroupError>) -> Finding {
    const CHECK: &str = "control slice";
    const NONE: &str = "none: busy guests slow the control path";
    match found {
        Ok((tree, Some(Weights { control, datapath, guests }))) => Finding::ok(
            CHECK,
            format!("{tree}; control {control}, datapath {datapath}, guests {guests}"),
        ),
        Ok((tree, None)) => Finding::ok(CHECK, format!("{tree}: made when ringwayd starts")),
        Err(CgroupError::NoController) => {
            Finding::warning(CHECK, NONE, "mount the cpu controller, then start ringwayd again")
        }
        Err(error) => Finding::warning(CHECK, NONE, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn both_cgroup_versions_are_found() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(cgroups(root.path()).level, Level::Warning);
        assert_eq!(slices(root.path()).level, Level::Warning);
        let dir = root.path().join("sys/fs/cgroup");
        std::fs::create_dir_all(dir.join("cpu")).unwrap();
        std::fs::write(dir.join("cpu/cpu.shares"), "1024").unwrap();
        assert!(cgroups(root.path()).found.contains("version 1"));
        std::fs::write(dir.join("cgroup.controllers"), "io memory").unwrap();
        assert!(cgroups(root.path()).found.contains("version 1"));
        assert!(slices(root.path()).found.contains("made when ringwayd starts"));
        std::fs::write(dir.join("cgroup.controllers"), "cpuset cpu io").unwrap();
        assert!(cgroups(root.path()).found.contains("version 2"));
    }

    #[test]
    fn slices_are_told_with_their_weights() {
        let finding = judge(Ok(("version 2: /g".into(), Some(Weights::default()))));
        assert_eq!(finding.found, "version 2: /g; control 1000, datapath 200, guests 100");
        let managed = judge(Err(CgroupError::Managed { name: INSTANCE.into() }));
        assert_eq!(managed.level, Level::Warning);
        assert!(managed.advice.unwrap().contains("packaging/systemd"));
    }
}

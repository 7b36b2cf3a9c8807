//! Control groups version 2: one hierarchy, in which each group delegates controllers to its
//! children.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::CgroupError;
use super::op::{CgroupOp, is, os, write};

/// Directories where the hierarchy may be mounted. The second is used beside version 1.
const BASES: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];
/// File of a group that lists its available controllers.
const HAS: &str = "cgroup.controllers";
/// File of a group that lists the controllers that its children have.
const HANDS_DOWN: &str = "cgroup.subtree_control";
const CONTROLLER: &str = "cpu";
/// File of a group's weight.
const WEIGHT: &str = "cpu.weight";

/// Returns the root of the hierarchy, if it is mounted with the CPU controller.
pub(super) fn base(root: &Path) -> Option<PathBuf> {
    let bases = BASES.map(|base| root.join(base));
    bases.into_iter().find(|base| {
        std::fs::read_to_string(base.join(HAS)).is_ok_and(|controllers| names(&controllers))
    })
}

pub(super) fn weight(folder: &Path, weight: u32) -> CgroupOp {
    CgroupOp::Write(folder.join(WEIGHT), weight.to_string())
}

/// Reads the weight of a group.
pub(super) fn read(folder: &Path) -> Option<u32> {
    std::fs::read_to_string(folder.join(WEIGHT)).ok()?.trim().parse().ok()
}

/// Delegates the controller unless it already is: this process may lack the permission to write the
/// file.
pub(super) fn hand_down(folder: &Path) -> Result<(), CgroupError> {
    let file = folder.join(HANDS_DOWN);
    let there = std::fs::read_to_string(&file).map_err(|source| os("read", &file, source))?;
    if names(&there) {
        return Ok(());
    }
    match write(&file, &format!("+{CONTROLLER}")) {
        Err(CgroupError::Os { source, .. }) if is(&source, Errno::BUSY) => {
            Err(CgroupError::Occupied { group: folder.to_owned() })
        }
        outcome => outcome,
    }
}

/// Returns the group of a process in the hierarchy, from its `cgroup` file in `/proc`.
pub(super) fn path(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

fn names(controllers: &str) -> bool {
    controllers.split_whitespace().any(|one| one == CONTROLLER)
}

//! Version 2: one hierarchy, whose groups hand each controller down to those in them.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::CgroupError;
use super::op::{CgroupOp, is, os, write};

/// Where it may be mounted; the second beside version 1.
const BASES: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];
/// File of a group that lists the controllers which it has.
const HAS: &str = "cgroup.controllers";
/// File of a group that lists those which groups in it have.
const HANDS_DOWN: &str = "cgroup.subtree_control";
const CONTROLLER: &str = "cpu";
/// File of a group's weight.
const WEIGHT: &str = "cpu.weight";

/// Root of the hierarchy, if it is mounted with the CPU controller.
pub(super) fn base(root: &Path) -> Option<PathBuf> {
    let bases = BASES.map(|base| root.join(base));
    bases.into_iter().find(|base| {
        std::fs::read_to_string(base.join(HAS)).is_ok_and(|controllers| names(&controllers))
    })
}

pub(super) fn weight(folder: &Path, weight: u32) -> CgroupOp {
    CgroupOp::Write(folder.join(WEIGHT), weight.to_string())
}

/// What a group's weight is.
pub(super) fn read(folder: &Path) -> Option<u32> {
    std::fs::read_to_string(folder.join(WEIGHT)).ok()?.trim().parse().ok()
}

/// Hands the controller down, if it is not yet: where it is, this may be the right of others only.
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

/// Where a process is in the one hierarchy, by what its `cgroup` file in `/proc` says.
pub(super) fn path(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

fn names(controllers: &str) -> bool {
    controllers.split_whitespace().any(|one| one == CONTROLLER)
}

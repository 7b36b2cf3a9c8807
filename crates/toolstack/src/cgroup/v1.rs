//! Control groups version 1: the CPU controller has its own hierarchy, alone or with `cpuacct`.

use std::path::{Path, PathBuf};

use super::leaf::WEIGHT_USUAL;
use super::op::CgroupOp;

/// Directories where the hierarchy may be mounted.
const BASES: [&str; 2] = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"];
/// File of a group's weight, in shares.
const SHARES: &str = "cpu.shares";
/// Default shares of a group.
const SHARES_USUAL: u32 = 1024;
/// File of a group through which a single thread joins it.
pub(super) const THREADS: &str = "tasks";

/// Returns the root of the hierarchy, if it is mounted.
pub(super) fn base(root: &Path) -> Option<PathBuf> {
    let bases = BASES.map(|base| root.join(base));
    bases.into_iter().find(|base| base.join(SHARES).exists())
}

/// Sets the weight of a group. Weights are hundredths of the default, shares are 1024ths. The
/// product cannot overflow at the highest weight.
pub(super) fn weight(folder: &Path, weight: u32) -> CgroupOp {
    let shares = weight.saturating_mul(SHARES_USUAL) / WEIGHT_USUAL;
    CgroupOp::Write(folder.join(SHARES), shares.to_string())
}

/// Reads the weight of a group: the inverse of [`weight`].
pub(super) fn read(folder: &Path) -> Option<u32> {
    let shares = std::fs::read_to_string(folder.join(SHARES)).ok()?.trim().parse::<u32>().ok()?;
    Some(shares.saturating_mul(WEIGHT_USUAL).div_ceil(SHARES_USUAL))
}

/// Returns the group of a process in this hierarchy, from its `cgroup` file in `/proc`.
pub(super) fn path(text: &str) -> Option<&str> {
    let lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let mut ours = lines.filter(|(controllers, _)| controllers.split(',').any(|one| one == "cpu"));
    ours.next().map(|(_, path)| path)
}

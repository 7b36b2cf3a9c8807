//! Version 1: the CPU controller has a hierarchy of its own, alone or with `cpuacct`.

use std::path::{Path, PathBuf};

use super::leaf::WEIGHT_USUAL;
use super::op::CgroupOp;

/// Where it may be mounted.
const BASES: [&str; 2] = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"];
/// File of a group's weight, in shares.
const SHARES: &str = "cpu.shares";
/// Shares of a group that nobody gave any.
const SHARES_USUAL: u32 = 1024;
/// File of a group by which a thread alone joins it.
pub(super) const THREADS: &str = "tasks";

/// Root of the hierarchy, if it is mounted.
pub(super) fn base(root: &Path) -> Option<PathBuf> {
    let bases = BASES.map(|base| root.join(base));
    bases.into_iter().find(|base| base.join(SHARES).exists())
}

/// Weights are in hundredths of what is usual, shares in 1024ths. The product of the highest weight
/// is far from the width of the number.
pub(super) fn weight(folder: &Path, weight: u32) -> CgroupOp {
    let shares = weight.saturating_mul(SHARES_USUAL) / WEIGHT_USUAL;
    CgroupOp::Write(folder.join(SHARES), shares.to_string())
}

/// The opposite of [`weight`], for what a file of a group says.
pub(super) fn read(folder: &Path) -> Option<u32> {
    let shares = std::fs::read_to_string(folder.join(SHARES)).ok()?.trim().parse::<u32>().ok()?;
    Some(shares.saturating_mul(WEIGHT_USUAL).div_ceil(SHARES_USUAL))
}

/// Where a process is in this hierarchy, by what its `cgroup` file in `/proc` says.
pub(super) fn path(text: &str) -> Option<&str> {
    let lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let mut ours = lines.filter(|(controllers, _)| controllers.split(',').any(|one| one == "cpu"));
    ours.next().map(|(_, path)| path)
}

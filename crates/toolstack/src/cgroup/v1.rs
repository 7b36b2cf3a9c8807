//! Version 1: the CPU controller has a hierarchy of its own, alone or with `cpuacct`.

use std::path::{Path, PathBuf};

use super::Step;
use super::group::WEIGHT_USUAL;

/// Where it may be mounted.
const BASES: [&str; 2] = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"];
/// File of a group's weight, in shares.
const SHARES: &str = "cpu.shares";
/// Shares of a group that nobody gave any.
const SHARES_USUAL: u32 = 1024;

/// Root of the hierarchy, if it is mounted.
pub(super) fn base(root: &Path) -> Option<PathBuf> {
    let bases = BASES.map(|base| root.join(base));
    bases.into_iter().find(|base| base.join(SHARES).exists())
}

/// Weights are in hundredths of what is usual, shares in 1024ths. The product of the highest weight
/// is far from the width of the number.
pub(super) fn weight(folder: &Path, weight: u32) -> Step {
    let shares = weight.saturating_mul(SHARES_USUAL) / WEIGHT_USUAL;
    Step::Write(folder.join(SHARES), shares.to_string())
}

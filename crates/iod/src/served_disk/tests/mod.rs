//! Disks that are served while other work goes on.

mod quiesce;
pub(super) mod rebalance;

//! Disks that are served while other work goes on.

mod block_sizes;
mod quiesce;
pub(super) mod rebalance;

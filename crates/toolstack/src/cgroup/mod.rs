//! Control slice: CPU time for the control path, whatever the guests do.
//!
//! # Words
//! - **Slice**: one of three sibling groups that divide the CPUs by weight under contention. An
//!   idle slice takes nothing from the others.
//! - **Leaf**: a group in a slice, which processes join. No process is in a slice itself, as
//!   version 2 of control groups demands.
//! - **Join link**: the link through which clients of the daemon join the control slice
//!   ([`client_access`]).
//!
//! # Model
//! ```text
//! NAME-control   1000   daemon, clients
//! NAME-datapath   200   one leaf for each storage repository
//! NAME-guests     100   one leaf for each machine, with equal shares
//! ```
//! The slices are at the root of the hierarchy, not below a common group. A process outside
//! competes with each slice, and has the same weight as all guests together. Slice names begin with
//! the instance's name, so that two instances on one host do not collide.
//!
//! If systemd manages the groups, the slices are systemd slices. Leaves are in units that systemd
//! has delegated (`units`). Ringway writes nothing else there.
//!
//! `v1`, `v2` and `units` produce the changes as data, and `op` executes them. Every change may be
//! repeated: an existing group stays. Membership is read from the kernel, never remembered. After a
//! restart [`SliceTree::ensure_member`] corrects it.
//!
//! # Errors
//! [`CgroupError`]. Without a tree everything works, but without the CPU guarantee.

pub mod client_access;
mod error;
mod leaf;
mod op;
mod remove_leaf;
#[cfg(test)]
mod tests;
mod tree;
mod units;
mod v1;
mod v2;

use std::path::{Path, PathBuf};

pub use error::CgroupError;
pub use leaf::{Leaf, Weights};
pub use remove_leaf::leave;
pub use tree::{SliceTree, check_name};

/// Default name of the instance.
pub const INSTANCE: &str = "ringway";
/// File of a group that lists its processes and accepts new ones.
const PROCESSES: &str = "cgroup.procs";

/// Version of control groups that has this host's CPU controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1: one hierarchy for each controller.
    One,
    /// Version 2: one hierarchy for all controllers.
    Two,
}

impl Version {
    /// Returns the version as a number: 1 or 2.
    pub fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Finds the host's CPU controller. `root` is `/` except in tests.
pub fn controller(root: &Path) -> Option<(Version, PathBuf)> {
    let two = v2::base(root).map(|base| (Version::Two, base));
    two.or_else(|| v1::base(root).map(|base| (Version::One, base)))
}

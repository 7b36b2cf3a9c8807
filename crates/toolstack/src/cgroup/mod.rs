//! The control slice: CPU time for the control path, whatever guests do.
//!
//! # Words
//! - **Slice**: one of three sibling groups that divide the CPUs by weight when all are wanted.
//!   A slice that is idle takes nothing from the others.
//! - **Leaf**: a group in a slice, which processes join. No process is in a slice itself, as
//!   version 2 of control groups demands.
//! - **Door**: what lets clients of the daemon into the control slice ([`door`]).
//!
//! # Model
//! ```text
//! NAME-control   1000   daemon, clients
//! NAME-datapath   200   one leaf for each storage repository
//! NAME-guests     100   one leaf for each machine, with equal shares
//! ```
//! The slices lie at the root of the hierarchy and not below a group of ours: whoever is outside
//! competes with each of them, and has as much as all guests together. Their names begin with that
//! of the instance, so that two on one host do not meet.
//!
//! Where systemd manages the groups, the slices are its slices, and leaves are made in units that
//! it has delegated to us (`units`); nothing else there is ours to write.
//!
//! What is to be done is data, made by `v1`, `v2` and `units` and carried out by `step`. Everything
//! may be done again: what is there already stays. Who is where is looked at, never remembered: after
//! a restart [`SliceTree::ensure_member`] mends what is not as it should be.
//!
//! # Errors
//! [`CgroupError`]. Without a tree everything works, but for the promise that it makes.

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

/// Name of the instance that a host has if nothing else is said.
pub const INSTANCE: &str = "ringway";
/// File of a group that lists its processes, and takes new ones.
const PROCESSES: &str = "cgroup.procs";

/// Version of control groups that has the CPU controller on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy for all.
    Two,
}

impl Version {
    /// As it is called: 1 or 2.
    pub fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Where the CPU controller of the host is. `root` is `/` but in tests.
pub fn controller(root: &Path) -> Option<(Version, PathBuf)> {
    let two = v2::base(root).map(|base| (Version::Two, base));
    two.or_else(|| v1::base(root).map(|base| (Version::One, base)))
}

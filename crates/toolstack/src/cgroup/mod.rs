//! The control slice: CPU time for the control path, whatever guests do.
//!
//! # Words
//! - **Slice**: one of three sibling groups that divide the CPUs by weight when all are wanted.
//!   A slice that is idle takes nothing from the others.
//! - **Leaf**: a group in a slice, which processes join. No process is in a slice itself, as
//!   version 2 of control groups demands.
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
//! What is to be done is data, made by `v1` and `v2` and carried out here. Everything may be done
//! again: what is there already stays.
//!
//! # Errors
//! [`CgroupError`]. Without a tree everything works, but for the promise that it makes.

mod error;
mod group;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

pub use error::CgroupError;
use group::Slice;
pub use group::{Group, Weights};

/// Longest name of an instance.
const NAME_BYTES_MAX: usize = 32;
/// Where a running systemd shows itself (sd_booted(3)).
const SYSTEMD: &str = "run/systemd/system";
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

/// Where the CPU controller of the host is. `root` is `/` but in tests.
pub fn controller(root: &Path) -> Option<(Version, PathBuf)> {
    let two = v2::base(root).map(|base| (Version::Two, base));
    two.or_else(|| v1::base(root).map(|base| (Version::One, base)))
}

/// One thing to do to the hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Make a group.
    Make(PathBuf),
    /// Hand the CPU controller down to the groups in this one.
    HandDown(PathBuf),
    /// Write a file of a group.
    Write(PathBuf, String),
}

/// The slices of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    version: Version,
    base: PathBuf,
    name: String,
}

impl Tree {
    /// The tree of the instance `name`, whether it was made or not. `root` is `/` but in tests.
    ///
    /// # Errors
    /// The name is none, there is no CPU controller, or the groups of this host are systemd's.
    pub fn find(root: &Path, name: &str) -> Result<Self, CgroupError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
            let name = name.chars().take(2 * NAME_BYTES_MAX).collect();
            return Err(CgroupError::Name { name, most: NAME_BYTES_MAX });
        }
        let (version, base) = controller(root).ok_or(CgroupError::NoController)?;
        if root.join(SYSTEMD).is_dir() {
            return Err(CgroupError::Managed);
        }
        Ok(Self { version, base, name: name.to_owned() })
    }

    /// Makes the slices with their weights, and the leaves of the control slice.
    ///
    /// # Errors
    /// A weight is out of bounds, or the system refuses.
    pub fn make(&self, weights: Weights) -> Result<(), CgroupError> {
        weights.check()?;
        self.slices(weights).iter().try_for_each(carry_out)?;
        self.add(Group::Daemon)?;
        self.add(Group::Clients)
    }

    /// Gives the slices other weights, at once and for who is in them.
    ///
    /// # Errors
    /// A weight is out of bounds, or the tree was not made.
    pub fn set(&self, weights: Weights) -> Result<(), CgroupError> {
        weights.check()?;
        Slice::ALL.iter().try_for_each(|slice| carry_out(&self.weight(*slice, weights)))
    }

    /// Makes a leaf.
    ///
    /// # Errors
    /// The system refuses, or the tree was not made.
    pub fn add(&self, group: Group) -> Result<(), CgroupError> {
        carry_out(&Step::Make(self.path(group)))
    }

    /// Where a leaf is.
    pub fn path(&self, group: Group) -> PathBuf {
        self.folder(group.slice()).join(group.name())
    }

    /// The file of a leaf that takes ids of processes: for one that joins by itself, before it becomes
    /// what it shall be.
    pub fn processes(&self, group: Group) -> PathBuf {
        self.path(group).join(PROCESSES)
    }

    /// Puts a process with all its threads into a leaf; what they start will be there too.
    ///
    /// # Errors
    /// There is no such process or leaf, or the system refuses.
    pub fn join(&self, group: Group, pid: u32) -> Result<(), CgroupError> {
        match carry_out(&Step::Write(self.processes(group), pid.to_string())) {
            Err(CgroupError::Os { source, .. }) if is(&source, Errno::SRCH) => {
                Err(CgroupError::Gone { pid })
            }
            outcome => outcome,
        }
    }

    /// Every leaf that is there, whoever made it: after a restart those of machines that are gone.
    ///
    /// # Errors
    /// The hierarchy cannot be read.
    pub fn leaves(&self) -> Result<Vec<Group>, CgroupError> {
        let mut found = Vec::new();
        for slice in Slice::ALL {
            let folder = self.folder(slice);
            let entries = match std::fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(|source| os("read", &folder, source))?,
            };
            for entry in entries {
                let name = entry.map_err(|source| os("read", &folder, source))?.file_name();
                found.extend(name.to_str().and_then(|name| Group::parse(slice, name)));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Removes a leaf. Nothing happens if it is not there.
    ///
    /// # Errors
    /// Processes are in it, or the system refuses.
    pub fn remove(&self, group: Group) -> Result<(), CgroupError> {
        remove(&self.path(group))
    }

    /// Removes all leaves and the slices.
    ///
    /// # Errors
    /// Processes are in one of them, or the system refuses; the others may be gone then.
    pub fn clear(&self) -> Result<(), CgroupError> {
        self.leaves()?.into_iter().try_for_each(|group| self.remove(group))?;
        Slice::ALL.into_iter().try_for_each(|slice| remove(&self.folder(slice)))
    }

    fn folder(&self, slice: Slice) -> PathBuf {
        self.base.join(format!("{}-{}", self.name, slice.name()))
    }

    fn weight(&self, slice: Slice, weights: Weights) -> Step {
        let (folder, weight) = (self.folder(slice), weights.of(slice));
        match self.version {
            Version::One => v1::weight(&folder, weight),
            Version::Two => v2::weight(&folder, weight),
        }
    }

    /// What makes the slices.
    fn slices(&self, weights: Weights) -> Vec<Step> {
        let hand_down = |folder| (self.version == Version::Two).then_some(Step::HandDown(folder));
        let mut steps: Vec<_> = hand_down(self.base.clone()).into_iter().collect();
        for slice in Slice::ALL {
            steps.push(Step::Make(self.folder(slice)));
            steps.push(self.weight(slice, weights));
            steps.extend(hand_down(self.folder(slice)));
        }
        steps
    }
}

fn carry_out(step: &Step) -> Result<(), CgroupError> {
    match step {
        Step::Make(folder) => match std::fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(os("make", folder, error))
            }
            _ => Ok(()),
        },
        Step::HandDown(folder) => v2::hand_down(folder),
        Step::Write(file, text) => write(file, text),
    }
}

/// Writes a file that is there: the kernel makes it with its group.
fn write(file: &Path, text: &str) -> Result<(), CgroupError> {
    let opened = OpenOptions::new().write(true).truncate(true).open(file);
    let written = opened.and_then(|mut open| open.write_all(text.as_bytes()));
    written.map_err(|source| os("write", file, source))
}

fn remove(folder: &Path) -> Result<(), CgroupError> {
    match std::fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if is(&error, Errno::BUSY) || is(&error, Errno::NOTEMPTY) => {
            let text = std::fs::read_to_string(folder.join(PROCESSES)).unwrap_or_default();
            let pids = text.lines().filter_map(|line| line.parse().ok()).collect();
            Err(CgroupError::Busy { group: folder.to_owned(), pids })
        }
        outcome => outcome.map_err(|source| os("remove", folder, source)),
    }
}

fn is(error: &io::Error, code: Errno) -> bool {
    error.raw_os_error() == Some(code.raw_os_error())
}

fn os(doing: &'static str, path: &Path, source: io::Error) -> CgroupError {
    CgroupError::Os { doing, path: path.to_owned(), source }
}

//! What outlives a worker: the one door through which a disk's state goes to the keeper.
//!
//! Everything about a disk that a caller was told and that a new worker must know again is in
//! [`PreservedDisk`]; its descriptors go with it. Whoever changes it says so through [`KeeperClient::hold`] before
//! the caller is answered, so that an answered call is never forgotten. What was not answered is
//! either there afterwards or not, whole.
//!
//! Without a keeper the door only remembers: one that comes later is told everything.

mod client;
mod keys;
mod link_loop;
mod record;
mod start_info;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use model::export::ExportSpec;
use model::spec::DiskSpec;
use serde::{Deserialize, Serialize};
use vhost_user::ListenerParts;

use crate::keeper_link::PreservedEntry;
pub use client::KeeperClient;
pub(crate) use record::PreservedDiskRecord;

/// Longest wait for room in the link: a keeper that reads nothing is stopped or broken.
pub(crate) const SAY_DEADLINE: Duration = Duration::from_secs(5);
/// Key of the control socket; those of disks have a slash.
pub(crate) const CONTROL: &str = "control";

/// Newest format of [`PreservedDisk`] that is read, and the one that is written. A new field that a worker
/// of before may overlook needs no other.
pub(crate) const HELD_FORMAT: u32 = 1;

fn first_format() -> u32 {
    1
}

/// A disk as its next worker finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreservedDisk {
    /// Format of all this: higher where a worker that does not know it must not go on.
    #[serde(default = "first_format")]
    pub format: u32,
    /// As it was asked for, with all changes since.
    pub spec: DiskSpec,
    /// It holds the lock.
    pub active: bool,
    /// It serves nothing until it is resumed.
    #[serde(default)]
    pub paused: bool,
    /// It is being detached: nothing but the end of that is left to do.
    #[serde(default)]
    pub leaving: bool,
    /// Size in bytes that guests were told.
    #[serde(default)]
    pub size: Option<u64>,
    /// Which file or device the image is.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Its NBD exports.
    #[serde(default)]
    pub exports: Vec<ExportSpec>,
}

impl PreservedDisk {
    /// An export has the lock that a guest would have.
    pub(crate) fn is_exported_for_writing(&self) -> bool {
        !self.active && self.exports.iter().any(|one| !one.read_only)
    }
}

/// A file or block device, whatever path leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Number of the block device, or of the file system that the file is in.
    pub device: u64,
    /// The file's number there, 0 for a block device.
    pub inode: u64,
    /// When the file was made, in nanoseconds since 1970.
    #[serde(default)]
    pub born_ns: Option<u64>,
}

impl From<disk::FileIdentity> for Identity {
    fn from(found: disk::FileIdentity) -> Self {
        let disk::FileIdentity { device, inode, born_ns } = found;
        Self { device, inode, born_ns }
    }
}

/// Descriptors of a disk that outlive a worker.
#[derive(Debug, Default)]
pub struct PreservedFds {
    /// Where front-ends connect; none where we connect to them.
    pub listener: Option<ListenerParts>,
    /// A memory disk's bytes.
    pub memory: Option<OwnedFd>,
    /// Where clients of its exports connect, in the order of [`PreservedDisk::exports`]. A disk that
    /// connects to its front-end has none.
    pub exports: Vec<ListenerParts>,
}

impl From<PreservedEntry> for PreservedFds {
    fn from(preserved_entry: PreservedEntry) -> Self {
        let PreservedEntry { sockets, fds, .. } = preserved_entry;
        let mut sockets = sockets.into_iter();
        let listener = sockets.next();
        Self { listener, memory: fds.into_iter().next(), exports: sockets.collect() }
    }
}

/// The keeper does not hold what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum PreserveError {
    /// Descriptors cannot be shared, or the link is broken in an odd way.
    #[error("cannot have it held")]
    Os(#[from] io::Error),
    /// It does not answer.
    #[error("the keeper (process {pid}) does not answer; look whether it is stopped")]
    Late {
        /// Its process id.
        pid: u32,
    },
    /// There is none.
    #[error("this process has no keeper; start ringway-io with the same --control to have it kept")]
    NoKeeper,
    /// It refused.
    #[error("the keeper refused: {0}")]
    Refused(String),
    /// Another one is faster.
    #[error("another process is just taking over; try again if it ends")]
    Adopting,
    /// It has a keeper.
    #[error("already served by process {pid}")]
    Kept {
        /// The keeper's process id.
        pid: u32,
    },
    /// The words do not fit.
    #[error("cannot be written down")]
    Words(#[from] serde_json::Error),
}

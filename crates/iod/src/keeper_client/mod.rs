//! The keeper's storage for a worker's state: the only path by which a disk's state reaches the
//! keeper.
//!
//! [`PreservedDisk`] holds everything about a disk that a caller was told and that a new worker
//! must know. Its descriptors travel with it. Code that changes a disk calls
//! [`KeeperClient::preserve_disk`] before the caller gets a reply, so an answered call survives a
//! crash. An unanswered change is preserved either completely or not at all.
//!
//! Without a keeper the client only records entries. A keeper that comes later receives all of
//! them.

mod client;
mod fd_role;
mod keys;
mod link_loop;
mod record;
mod sockets;
mod start_info;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use model::export::ExportSpec;
use model::spec::DiskSpec;
use serde::{Deserialize, Serialize};
use vhost_user::ListenerParts;

use crate::open_disk::Sources;
pub use client::KeeperClient;
pub(crate) use record::PreservedDiskRecord;

/// Longest wait for room in the link. A keeper that reads nothing is stopped or broken.
pub(crate) const SAY_DEADLINE: Duration = Duration::from_secs(5);
/// Key of the control socket. Keys of disks contain a slash.
pub(crate) const CONTROL: &str = "control";

/// Newest format of [`PreservedDisk`] that is read. A new field that older workers may ignore needs
/// no new format.
pub(crate) const HELD_FORMAT: u32 = 2;
/// Format of a disk with a socket and a plain backend ([`model::spec::Backend::is_plain`]). Every
/// worker reads it.
const PLAIN_FORMAT: u32 = 1;

fn first_format() -> u32 {
    PLAIN_FORMAT
}

/// Disk as its next worker finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreservedDisk {
    /// Format of the record. It increases if workers that do not know it must not continue.
    #[serde(default = "first_format")]
    pub format: u32,
    /// Spec as requested, with all later changes.
    pub spec: DiskSpec,
    /// True if the disk has its image locked.
    pub active: bool,
    /// True if the disk serves nothing until it is resumed.
    #[serde(default)]
    pub paused: bool,
    /// True if the disk is being detached. Only the end of the detach is left.
    #[serde(default)]
    pub leaving: bool,
    /// Size in bytes that guests were told.
    #[serde(default)]
    pub size: Option<u64>,
    /// Size of a block in bytes that guests were told. Older workers do not record it.
    #[serde(default)]
    pub block_size: Option<u32>,
    /// Identity of the image file or device of a plain backend.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Identities of the files of any other backend, top first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub identities: Vec<Identity>,
    /// NBD exports of the disk.
    #[serde(default)]
    pub exports: Vec<ExportSpec>,
}

impl PreservedDisk {
    /// Returns the format in which a disk of this spec is preserved. Workers that know only plain
    /// backends must not continue with others, nor with disks without a socket or with a share.
    pub(crate) fn format_of(spec: &DiskSpec) -> u32 {
        match spec.backend.is_plain() && spec.socket.is_some() && spec.share.is_none() {
            true => PLAIN_FORMAT,
            false => HELD_FORMAT,
        }
    }

    /// Returns the identities of all files, top first. Old records may have none.
    pub(crate) fn file_identities(&self) -> &[Identity] {
        if self.identities.is_empty() { self.identity.as_slice() } else { &self.identities }
    }

    /// Returns whether an export has locked the image as a guest would.
    pub(crate) fn is_exported_for_writing(&self) -> bool {
        !self.active && self.exports.iter().any(|one| !one.read_only)
    }
}

/// Identity of a file or block device, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Number of the block device, or of the file system that contains the file.
    pub device: u64,
    /// Inode number of the file, 0 for a block device.
    pub inode: u64,
    /// Creation time of the file, in nanoseconds since 1970.
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
    /// Listening socket for front-ends. `None` if the disk connects to its front-end, or has no
    /// socket.
    pub listener: Option<ListenerParts>,
    /// Bytes of a memory disk, journal of an image, and files that were handed in.
    pub sources: Sources,
    /// Listening sockets of the exports, in the order of [`PreservedDisk::exports`]. Empty for a
    /// disk that connects to its front-end.
    pub exports: Vec<ListenerParts>,
}

/// Error: the keeper did not preserve an entry.
#[derive(Debug, thiserror::Error)]
pub enum PreserveError {
    /// Descriptors cannot be duplicated, or the link failed unexpectedly.
    #[error("cannot preserve the record")]
    Os(#[from] io::Error),
    /// The keeper does not answer.
    #[error("the keeper (process {pid}) does not answer; check whether it is stopped")]
    Late {
        /// Process ID of the keeper.
        pid: u32,
    },
    /// There is no keeper.
    #[error("this process has no keeper; start ringway-io with the same --control to adopt it")]
    NoKeeper,
    /// The keeper refused.
    #[error("the keeper refused: {0}")]
    Refused(String),
    /// Another keeper is adopting this worker.
    #[error("another process is adopting this worker; retry if it exits")]
    Adopting,
    /// The worker has a keeper.
    #[error("already served by process {pid}")]
    Kept {
        /// Process ID of the keeper.
        pid: u32,
    },
    /// The record cannot be encoded.
    #[error("cannot encode the record")]
    Words(#[from] serde_json::Error),
}

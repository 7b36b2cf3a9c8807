//! Entry of one key: data and descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vhost_user::{Listener, ListenerParts};

/// Entry that a keeper or worker stores for one key.
#[derive(Debug, Default)]
pub(crate) struct PreservedEntry {
    /// Listening sockets. The keeper removes their files after everything has ended.
    pub(crate) sockets: Vec<ListenerParts>,
    /// Data of the worker, opaque to the keeper.
    pub(crate) data: Value,
    /// Other descriptors.
    pub(crate) fds: Vec<OwnedFd>,
    /// Longest duration of a stop, in milliseconds.
    pub(crate) stop_ms: u64,
}

/// Entry without its descriptors. They follow in this order: for each socket the socket and its
/// lock, then the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PreservedEntryData {
    pub(super) key: String,
    pub(super) sockets: Vec<SocketFile>,
    pub(super) data: Value,
    #[serde(default)]
    pub(super) stop_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    /// Device and inode.
    pub(super) identity: Option<(u64, u64)>,
}

impl PreservedEntry {
    /// Returns the entry as a record and the descriptors that follow it.
    pub(crate) fn written(&self, key: &str) -> (PreservedEntryData, Vec<BorrowedFd<'_>>) {
        let file = |parts: &ListenerParts| SocketFile {
            path: parts.path.clone(),
            identity: parts.identity,
        };
        let sockets = self.sockets.iter().map(file).collect();
        let of_sockets = self.sockets.iter().flat_map(|p| [p.socket.as_fd(), p.lock.as_fd()]);
        let fds = of_sockets.chain(self.fds.iter().map(AsFd::as_fd)).collect();
        let (key, data, stop_ms) = (key.into(), self.data.clone(), self.stop_ms);
        (PreservedEntryData { key, sockets, data, stop_ms }, fds)
    }

    /// Rebuilds an entry from a record.
    ///
    /// # Errors
    /// Descriptors are missing.
    pub(crate) fn read(
        mut preserved_entry_data: PreservedEntryData,
        fds: Vec<OwnedFd>,
    ) -> io::Result<(String, Self)> {
        let mut fds = fds.into_iter();
        let missing = || io::Error::other("a record came without its descriptors");
        let mut sockets = Vec::new();
        for SocketFile { path, identity } in std::mem::take(&mut preserved_entry_data.sockets) {
            let socket = fds.next().ok_or_else(missing)?;
            let lock = fds.next().ok_or_else(missing)?;
            sockets.push(ListenerParts { path, identity, socket, lock });
        }
        let PreservedEntryData { key, data, stop_ms, .. } = preserved_entry_data;
        Ok((key, Self { sockets, data, fds: fds.collect(), stop_ms }))
    }

    /// Duplicates the entry and its descriptors.
    ///
    /// # Errors
    /// The process cannot open more descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let sockets = self.sockets.iter().map(duplicate).collect::<io::Result<_>>()?;
        let fds = self.fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { sockets, data: self.data.clone(), fds, stop_ms: self.stop_ms })
    }

    /// Marks the disk as being detached.
    pub(crate) fn mark_detaching(&mut self) {
        mark_detaching(&mut self.data);
    }

    /// Returns whether one of the sockets listens at `path`.
    pub(crate) fn has_socket(&self, path: &Path) -> bool {
        self.sockets.iter().any(|parts| parts.path == path)
    }

    /// Replaces the socket that listens at the same path, if there is one.
    pub(crate) fn replace_socket(&mut self, parts: ListenerParts) {
        if let Some(former) = self.sockets.iter_mut().find(|former| former.path == parts.path) {
            *former = parts;
        }
    }

    /// Removes the sockets' files if they still belong to this entry.
    pub(crate) fn remove(self) {
        for parts in self.sockets {
            // A socket that is not a listener has no file of ours.
            drop(Listener::adopt(parts));
        }
    }
}

/// Duplicates the descriptors of a socket.
///
/// # Errors
/// The process cannot open more descriptors.
pub(crate) fn duplicate(parts: &ListenerParts) -> io::Result<ListenerParts> {
    let (path, identity) = (parts.path.clone(), parts.identity);
    let (socket, lock) = (parts.socket.try_clone()?, parts.lock.try_clone()?);
    Ok(ListenerParts { path, identity, socket, lock })
}

/// Marks the data of a disk as being detached.
fn mark_detaching(data: &mut Value) {
    if let Some(fields) = data.as_object_mut() {
        fields.insert("leaving".into(), true.into());
    }
}

impl PreservedEntryData {
    /// Marks the disk as being detached.
    pub(crate) fn mark_detaching(&mut self) {
        mark_detaching(&mut self.data);
    }
}

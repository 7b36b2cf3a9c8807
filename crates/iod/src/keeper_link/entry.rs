//! What one key stands for: words and descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vhost_user::{Listener, ListenerParts};

/// What one key stands for, and whoever holds it.
#[derive(Debug, Default)]
pub(crate) struct PreservedEntry {
    /// Listening sockets; the keeper removes their files when all has ended.
    pub(crate) sockets: Vec<ListenerParts>,
    /// The worker's own words.
    pub(crate) data: Value,
    /// What else it wants back.
    pub(crate) fds: Vec<OwnedFd>,
    /// How long its end may take, in milliseconds.
    pub(crate) stop_ms: u64,
}

/// A holding without its descriptors. They follow in this order: for each socket the socket and
/// its lock, then the others.
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
    /// As a record, and the descriptors that go with it.
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

    /// The same again from a record.
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

    /// The same with descriptors of its own.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let socket = |parts: &ListenerParts| {
            let (path, identity) = (parts.path.clone(), parts.identity);
            let (socket, lock) = (parts.socket.try_clone()?, parts.lock.try_clone()?);
            Ok(ListenerParts { path, identity, socket, lock })
        };
        let sockets = self.sockets.iter().map(socket).collect::<io::Result<_>>()?;
        let fds = self.fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { sockets, data: self.data.clone(), fds, stop_ms: self.stop_ms })
    }

    /// The disk is being detached.
    pub(crate) fn mark_detaching(&mut self) {
        mark_detaching(&mut self.data);
    }

    /// Removes the sockets' files, as far as they are still ours.
    pub(crate) fn remove(self) {
        for parts in self.sockets {
            // Whatever is no listener has no file that we would have made.
            drop(Listener::adopt(parts));
        }
    }
}

/// Marks a worker's words of a disk.
fn mark_detaching(data: &mut Value) {
    if let Some(fields) = data.as_object_mut() {
        fields.insert("leaving".into(), true.into());
    }
}

impl PreservedEntryData {
    /// The disk is being detached.
    pub(crate) fn mark_detaching(&mut self) {
        mark_detaching(&mut self.data);
    }
}

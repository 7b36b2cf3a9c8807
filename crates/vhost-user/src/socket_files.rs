//! Files of a live listener: puts back those that another program has removed.
//!
//! ```text
//! listening --socket file removed--> new socket bound --preserved--> former one shut down, accepted
//!                                                                    until its backlog is empty
//! ```
//! No front-end is lost: those that are connected have their own sockets, and those that wait in the
//! backlog of the former socket are accepted first.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use rustix::net::{Shutdown, shutdown};

use crate::address::group_id;
use crate::error::SocketError;
use crate::listener::{
    Access, BoundSocket, ListenerParts, SharedSocket, lock_shared, open_socket, os,
};
use crate::lock::{Lock, identity};

/// Handle of a listener's files. It does not keep the listener alive.
#[derive(Clone, Debug)]
pub struct SocketFiles {
    path: PathBuf,
    access: Access,
    shared: Weak<Mutex<Option<BoundSocket>>>,
}

/// State of a listener's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesState {
    /// Nothing was missing, or another process is responsible for the files.
    Intact,
    /// Missing files are back.
    Restored,
    /// The listener has ended.
    Ended,
}

impl SocketFiles {
    pub(crate) fn new(
        path: PathBuf,
        access: Access,
        shared: Weak<Mutex<Option<BoundSocket>>>,
    ) -> Self {
        Self { path, access, shared }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the listener has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.strong_count() == 0
    }

    /// Returns whether both handles belong to the same listener.
    pub fn is_same(&self, other: &Self) -> bool {
        self.shared.ptr_eq(&other.shared)
    }

    /// Puts missing files back. `preserve` stores the new parts; the listener uses them only if that
    /// succeeds. The listener ends no earlier than `preserve`.
    ///
    /// # Errors
    /// The folder is gone, the path belongs to another process or file by now, or a system call or
    /// `preserve` failed. Nothing has changed then.
    pub fn restore(
        &self,
        preserve: impl FnOnce(ListenerParts) -> io::Result<()>,
    ) -> Result<FilesState, SocketError> {
        let Some(shared) = self.shared.upgrade() else { return Ok(FilesState::Ended) };
        self.restore_shared(&shared, preserve)
    }

    fn restore_shared(
        &self,
        shared: &SharedSocket,
        preserve: impl FnOnce(ListenerParts) -> io::Result<()>,
    ) -> Result<FilesState, SocketError> {
        let mut shared = lock_shared(shared);
        let Some(bound) = &mut *shared else { return Ok(FilesState::Ended) };
        if bound.identity.is_none() {
            return Ok(FilesState::Intact);
        }
        let path = &self.path;
        let has_socket = identity(path).ok() == bound.identity;
        if has_socket && bound.lock.is_current() {
            return Ok(FilesState::Intact);
        }
        let lock = if bound.lock.is_current() { None } else { Some(Lock::take(path)?) };
        let socket = if has_socket { None } else { Some(self.open_socket()?) };
        let is_new = socket.is_some();
        replace(bound, socket, lock, preserve).map_err(|error| {
            if is_new {
                let _ = std::fs::remove_file(path);
            }
            os("preserve the new socket of", path, error)
        })?;
        Ok(FilesState::Restored)
    }

    fn open_socket(&self) -> Result<(OwnedFd, (u64, u64)), SocketError> {
        let group = self.access.group.as_deref().map(group_id).transpose()?;
        open_socket(&self.path, self.access.mode, group)
    }
}

/// Puts a new socket and a new lock, if there are any, in the place of the former ones.
fn replace(
    bound: &mut BoundSocket,
    socket: Option<(OwnedFd, (u64, u64))>,
    lock: Option<Lock>,
    preserve: impl FnOnce(ListenerParts) -> io::Result<()>,
) -> io::Result<()> {
    let mut parts = bound.parts()?;
    if let Some((socket, identity)) = &socket {
        (parts.socket, parts.identity) = (socket.try_clone()?, Some(*identity));
    }
    if let Some(lock) = &lock {
        parts.lock = lock.twin()?;
    }
    preserve(parts)?;
    if let Some(lock) = lock {
        bound.lock = lock;
    }
    if let Some((socket, identity)) = socket {
        let former = std::mem::replace(&mut bound.socket, Arc::new(socket));
        bound.identity = Some(identity);
        // Wakes the thread that accepts. Front-ends in the backlog stay there.
        let _ = shutdown(&*former, Shutdown::Both);
        bound.former = Some(former);
    }
    Ok(())
}

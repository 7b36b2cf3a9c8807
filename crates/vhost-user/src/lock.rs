//! Lock file beside a socket. The process that holds its lock serves the socket.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::error::SocketError;
use crate::listener::os;

/// A locked lock file. Drop removes the file if its path still leads to the locked file.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
    /// True if drop must not remove the file.
    left: bool,
}

impl Lock {
    /// Takes the lock of `socket` without waiting.
    ///
    /// # Errors
    /// [`SocketError::Taken`] if another process holds it; [`SocketError::NoFolder`]; a failed
    /// system call.
    pub(crate) fn take(socket: &Path) -> Result<Self, SocketError> {
        let path = lock_path(socket);
        loop {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true).mode(0o600);
            options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
            let file = options.open(&path).map_err(|error| refused(&path, error))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(SocketError::Taken { path: socket.into() }),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(os("lock", &path, error.into())),
            }
            // The former owner may have removed the file between our open and our lock.
            if is_current(&file, &path).map_err(|e| os("inspect the lock file", &path, e))? {
                return Ok(Self { file, path, left: false });
            }
        }
    }

    /// Adopts the lock of `socket` that another process took through the same open file.
    pub(crate) fn adopt(socket: &Path, file: OwnedFd) -> Self {
        Self { file: file.into(), path: lock_path(socket), left: false }
    }

    /// Duplicates the descriptor of the open file. The lock ends when the last duplicate closes.
    pub(crate) fn twin(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Makes drop leave the file in place.
    pub(crate) fn leave(&mut self) {
        self.left = true;
    }

    /// Returns whether the path still leads to the locked file.
    pub(crate) fn is_current(&self) -> bool {
        is_current(&self.file, &self.path).is_ok_and(|current| current)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked, so no other process can lock the file that is removed.
        if !self.left && self.is_current() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Converts an error that creating the lock file at `path` returned.
fn refused(path: &Path, error: io::Error) -> SocketError {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) if error.kind() == io::ErrorKind::NotFound => {
            SocketError::NoFolder { path: folder.into() }
        }
        _ => os("create the lock file", path, error),
    }
}

/// Returns `SOCKET.lock`.
fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Returns whether `path` still leads to the locked file.
fn is_current(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match identity(path) {
        Ok(found) => Ok(found == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns device and inode of the file at `path`.
pub(crate) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = path.symlink_metadata()?;
    Ok((meta.dev(), meta.ino()))
}

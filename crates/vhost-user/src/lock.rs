//! The lock file beside a socket: whoever holds its lock serves the socket.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::error::SocketError;
use crate::listener::os;

/// A held lock. Dropping it removes its file, if that is still the one that is locked.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
    /// The file stays when this goes.
    left: bool,
}

impl Lock {
    /// Takes the lock of `socket` without waiting.
    ///
    /// # Errors
    /// [`SocketError::Taken`] when somebody holds it, [`SocketError::NoFolder`]; the kernel's
    /// refusal.
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
            // Its holder may have removed the file between our open and our lock.
            if is_current(&file, &path).map_err(|e| os("inspect the lock file", &path, e))? {
                return Ok(Self { file, path, left: false });
            }
        }
    }

    /// The lock of `socket` that another process has taken by the same open file.
    pub(crate) fn adopt(socket: &Path, file: OwnedFd) -> Self {
        Self { file: file.into(), path: lock_path(socket), left: false }
    }

    /// Another descriptor of the same open file: the lock goes with the last of them.
    pub(crate) fn twin(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Leaves the file where it is.
    pub(crate) fn leave(&mut self) {
        self.left = true;
    }

    /// The lock file is still the one that is locked.
    pub(crate) fn is_current(&self) -> bool {
        is_current(&self.file, &self.path).is_ok_and(|current| current)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // With the lock held, so that nobody else locks the file that goes.
        if !self.left && self.is_current() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Why there is no lock file at `path`.
fn refused(path: &Path, error: io::Error) -> SocketError {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) if error.kind() == io::ErrorKind::NotFound => {
            SocketError::NoFolder { path: folder.into() }
        }
        _ => os("create the lock file", path, error),
    }
}

/// `SOCKET.lock`
fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// The path still leads to the file that is locked.
fn is_current(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match identity(path) {
        Ok(found) => Ok(found == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Device and inode behind a path.
pub(crate) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = path.symlink_metadata()?;
    Ok((meta.dev(), meta.ino()))
}

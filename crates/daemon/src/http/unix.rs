//! The Unix socket: whoever may open it is root.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

use super::ListenError;

/// For its owner only.
const OWNER: u32 = 0o600;

/// A Unix socket that is listened on. It is removed when this is dropped.
#[derive(Debug)]
pub struct UnixApiListener {
    listener: UnixListener,
    path: PathBuf,
    /// Locked while the socket is served: a socket without this lock is nobody's, or that of a
    /// program that we do not know.
    _lock: File,
}

impl UnixApiListener {
    pub(super) fn open(path: PathBuf) -> Result<Self, ListenError> {
        let told = |source| ListenError::Unix { path: path.clone(), source };
        let lock = lock(&path).map_err(told)?;
        let Some(lock) = lock else { return Err(ListenError::Taken { path }) };
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(told(error)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ListenError::NoSocket { path });
            }
            Ok(_) if served(&path).map_err(told)? => return Err(ListenError::Taken { path }),
            Ok(_) => fs::remove_file(&path).map_err(told)?,
        }
        let listener = UnixListener::bind(&path).map_err(told)?;
        fs::set_permissions(&path, Permissions::from_mode(OWNER)).map_err(told)?;
        Ok(Self { listener, path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for root, or for who runs this process.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let uid = stream.peer_cred()?.uid();
            // The socket's mode says the same from its first moment on, except for that one.
            if uid == 0 || uid == geteuid().as_raw() {
                return Ok(stream);
            }
            tracing::warn!("user {uid} was sent away from {}", self.path.display());
        }
    }
}

impl Drop for UnixApiListener {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("{} stays behind: {error}", self.path.display());
        }
    }
}

/// The lock beside a socket; none if another process has it. It stays where it is, since a lock that
/// is removed could be had twice.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(OWNER).open(name)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Somebody listens on it.
fn served(path: &Path) -> io::Result<bool> {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    };
    // A connection that need not wait: the queue of one that listens may be full.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(true),
        Err(rustix::io::Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_dead_process_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        // It goes, and leaves its file.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let door = UnixApiListener::open(path.clone()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, OWNER);
        let client = UnixStream::connect(&path).await.unwrap();
        door.accept().await.unwrap();
        drop((client, door));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_served_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let door = UnixApiListener::open(path.clone()).unwrap();
        let second = UnixApiListener::open(path.clone()).unwrap_err();
        assert!(matches!(second, ListenError::Taken { .. }), "{second}");
        assert!(UnixStream::connect(&path).await.is_ok(), "the first goes on");
        drop(door);
        // Somebody who knows nothing of locks.
        let foreign = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = UnixApiListener::open(path.clone()).unwrap_err();
        assert!(matches!(error, ListenError::Taken { .. }), "{error}");
        drop(foreign);
        assert!(UnixApiListener::open(path).is_ok());
    }

    #[tokio::test]
    async fn what_is_no_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        fs::write(&path, "precious").unwrap();
        let error = UnixApiListener::open(path.clone()).unwrap_err();
        assert!(matches!(error, ListenError::NoSocket { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let error =
            UnixApiListener::open(dir.path().join("absent/socket")).unwrap_err().to_string();
        assert!(error.contains("absent/socket"), "{error}");
    }
}

//! Unix socket: every process that can open it is root.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

use super::ListenError;

/// Mode of the socket: access for its owner only.
const OWNER: u32 = 0o600;

/// Listening Unix socket. Dropping it removes the socket.
#[derive(Debug)]
pub struct UnixApiListener {
    listener: UnixListener,
    path: PathBuf,
    /// Lock held while the socket is served. An unlocked socket is stale, or belongs to an unknown
    /// program.
    _lock: File,
}

impl UnixApiListener {
    pub(super) fn open(path: PathBuf) -> Result<Self, ListenError> {
        let to_error = |source| ListenError::Unix { path: path.clone(), source };
        let lock = lock(&path).map_err(to_error)?;
        let Some(lock) = lock else { return Err(ListenError::Taken { path }) };
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(to_error(error)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ListenError::NoSocket { path });
            }
            Ok(_) if served(&path).map_err(to_error)? => return Err(ListenError::Taken { path }),
            Ok(_) => fs::remove_file(&path).map_err(to_error)?,
        }
        let listener = UnixListener::bind(&path).map_err(to_error)?;
        fs::set_permissions(&path, Permissions::from_mode(OWNER)).map_err(to_error)?;
        Ok(Self { listener, path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a connection of root or of the user that runs this process.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let uid = stream.peer_cred()?.uid();
            // The mode of the socket has the same effect, except between its creation and the
            // `chmod`.
            if uid == 0 || uid == geteuid().as_raw() {
                return Ok(stream);
            }
            tracing::warn!("user {uid} was rejected at {}", self.path.display());
        }
    }
}

impl Drop for UnixApiListener {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Locks the file beside a socket. `None` if another process holds the lock. The file is never
/// removed, because two processes could then lock two different files.
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

/// Returns whether a process listens on the socket.
fn served(path: &Path) -> io::Result<bool> {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    };
    // The socket is non-blocking, because the backlog of the listener may be full.
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
        // The listener closes and leaves its file.
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
        // A foreign program listens without the lock.
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

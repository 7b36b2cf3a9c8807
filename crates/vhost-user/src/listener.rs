//! A socket that front-ends connect to, and the lock that says whose it is.
//!
//! A socket file says nothing about whether anybody listens, so each has a lock file beside it,
//! locked as long as its server lives. A socket without that lock is stale and replaced, unless
//! somebody who does not know of our locks answers on it.
//!
//! A listener is a handful of descriptors ([`ListenerParts`]) that another process can hold, so that
//! front-ends find the same socket when the one that accepted has died: they wait in its backlog.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Gid, OFlags, chownat, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    getsockname, listen, socket_with, sockopt,
};

use crate::address::{check_length, group_id};
use crate::error::SocketError;
use crate::lock::{Lock, identity};
use crate::stop_signal::{StopSignal, Woken};

/// Front-ends that may wait while one is served.
const BACKLOG: i32 = 16;
/// Pause after an accept that failed for want of descriptors or memory: no event tells when
/// there are some again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Permission bits of the socket; those of the process's umask when absent.
    pub mode: Option<u32>,
    /// Group that owns the socket, by name or number; the process's when absent.
    pub group: Option<String>,
}

/// A listening socket. Dropping it removes the socket and the lock file, if they are still ours.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file; none when the file is somebody else's to remove.
    identity: Option<(u64, u64)>,
    lock: Lock,
}

/// What a listener is made of: enough to go on with it in another process.
#[derive(Debug)]
pub struct ListenerParts {
    /// Where it listens.
    pub path: PathBuf,
    /// Device and inode of the socket file; none when the file is somebody else's to remove.
    pub identity: Option<(u64, u64)>,
    /// The listening socket.
    pub socket: OwnedFd,
    /// The locked lock file.
    pub lock: OwnedFd,
}

impl Listener {
    /// Takes the path and listens on it. When this returns, front-ends can connect.
    ///
    /// # Errors
    /// A path that is too long, served by another process or not a socket; an unknown group; or
    /// the kernel's refusal.
    pub fn bind(path: &Path, access: &Access) -> Result<Self, SocketError> {
        check_length(path)?;
        let group = access.group.as_deref().map(group_id).transpose()?;
        let lock = Lock::take(path)?;
        remove_stale(path)?;
        let error = |action| move |source| os(action, path, source);
        let address = SocketAddrUnix::new(path).map_err(errno("name", path))?;
        // Non-blocking, so that a front-end that goes before it is accepted stops nobody.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = stream_socket(flags).map_err(errno("open", path))?;
        bind(&socket, &address).map_err(errno("create", path))?;
        let meta = path.symlink_metadata().map_err(error("inspect"))?;
        // From here on, dropping cleans up.
        let identity = Some((meta.dev(), meta.ino()));
        let listener = Self { socket, path: path.into(), identity, lock };
        if let Some(group) = group {
            let gid = Some(Gid::from_raw(group));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(CWD, path, None, gid, flags).map_err(errno("change the group of", path))?;
        }
        if let Some(mode) = access.mode {
            let permissions = Permissions::from_mode(mode);
            std::fs::set_permissions(path, permissions).map_err(error("change the mode of"))?;
        }
        // Nobody could connect before this, so nobody slipped past mode and group.
        listen(&listener.socket, BACKLOG).map_err(errno("listen on", path))?;
        Ok(listener)
    }

    /// Removes socket and lock file of a listener whose process has ended.
    ///
    /// # Errors
    /// They are served, or not of our kind.
    pub fn sweep(path: &Path) -> Result<(), SocketError> {
        // Its file goes with it.
        let _lock = Lock::take(path)?;
        remove_stale(path)
    }

    /// Goes on with a socket that whoever started us listens on, and takes the lock beside it.
    /// Dropping this leaves the socket's file to them.
    ///
    /// # Errors
    /// Not a Unix socket that listens at a path; served by another process.
    pub fn given(socket: OwnedFd) -> Result<Self, SocketError> {
        let path = listening_at(&socket)?;
        let lock = Lock::take(&path)?;
        fcntl_setfl(&socket, OFlags::NONBLOCK | OFlags::RDWR).map_err(errno("set up", &path))?;
        Ok(Self { socket, path, identity: None, lock })
    }

    /// Goes on with a listener of another process, which holds its lock by the same descriptor.
    ///
    /// # Errors
    /// The socket does not listen.
    pub fn adopt(parts: ListenerParts) -> Result<Self, SocketError> {
        let ListenerParts { path, identity, socket, lock } = parts;
        listening_at(&socket)?;
        let lock = Lock::adopt(&path, lock);
        Ok(Self { socket, path, identity, lock })
    }

    /// Twins of its descriptors, for another process to hold.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn parts(&self) -> io::Result<ListenerParts> {
        let (path, identity) = (self.path.clone(), self.identity);
        let (socket, lock) = (self.socket.try_clone()?, self.lock.twin()?);
        Ok(ListenerParts { path, identity, socket, lock })
    }

    /// Closes our side and leaves the files to the other holder of the parts.
    pub fn leave(mut self) {
        self.identity = None;
        self.lock.leave();
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next front-end; `None`: told to stop.
    ///
    /// # Errors
    /// The socket is broken. A shortage of descriptors is waited out instead.
    pub fn accept(&self, stop: &StopSignal) -> Result<Option<UnixStream>, SocketError> {
        let error = |source| os("wait for a front-end on", &self.path, source);
        loop {
            match stop.wait(Some(self.socket.as_fd()), None).map_err(error)? {
                Woken::Stopped => return Ok(None),
                Woken::Readable | Woken::TimedOut => {}
            }
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(stream) => return Ok(Some(stream.into())),
                Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => {}
                Err(shortage @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    tracing::warn!(path = %self.path.display(), "cannot accept yet: {shortage}");
                    stop.wait(None, Some(ACCEPT_PAUSE)).map_err(error)?;
                }
                Err(source) => return Err(error(source.into())),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Before the lock is dropped: a successor that has the lock finds no socket. With a lock
        // file that is no longer ours, somebody has been here since, and the socket is theirs.
        let ours = self.identity.is_some_and(|ours| {
            identity(&self.path).is_ok_and(|found| found == ours) && self.lock.is_current()
        });
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The path that a listening Unix socket has.
fn listening_at(socket: &OwnedFd) -> Result<PathBuf, SocketError> {
    let no = || SocketError::NotListening;
    let listens = sockopt::socket_acceptconn(socket).map_err(|_| no())?;
    let address = getsockname(socket).ok().and_then(|any| SocketAddrUnix::try_from(any).ok());
    let path = address.as_ref().and_then(SocketAddrUnix::path_bytes);
    match path {
        Some(path) if listens => Ok(PathBuf::from(OsStr::from_bytes(path))),
        _ => Err(no()),
    }
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let meta = match path.symlink_metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(os("inspect", path, error)),
    };
    if !meta.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.into() });
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = stream_socket(flags).map_err(errno("open", path))?;
    let address = SocketAddrUnix::new(path).map_err(errno("name", path))?;
    match connect(&probe, &address) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // Connected, or a full backlog: somebody is there.
        Ok(()) | Err(Errno::AGAIN) => return Err(SocketError::Taken { path: path.into() }),
        Err(error) => return Err(os("try", path, error.into())),
    }
    std::fs::remove_file(path).map_err(|error| os("remove the stale socket", path, error))
}

/// A stream socket that is not yet at any address.
pub(crate) fn stream_socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

pub(crate) fn os(action: &'static str, path: &Path, source: io::Error) -> SocketError {
    SocketError::Os { action, path: path.into(), source }
}

/// A refusal of the kernel about this path.
pub(crate) fn errno(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> SocketError {
    move |error| os(action, path, error.into())
}

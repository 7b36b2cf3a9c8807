//! A socket that front-ends connect to, and the lock file that names its server.
//!
//! A socket file does not show whether a process listens on it. So each socket has a lock file
//! beside it, which its server locks as long as it lives. A socket without that lock is stale, and
//! [`Listener::bind`] replaces it unless a process without such a lock accepts connections on it.
//!
//! A listener consists of a few descriptors ([`ListenerParts`]). Another process can store them, so
//! that front-ends find the same socket after the accepting process has died. Meanwhile they wait
//! in its backlog.
//!
//! A socket file can be removed while its process listens, and no system call links it again. So
//! [`SocketFiles`] binds a new socket at the path and puts it in the place of the former one.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use crate::socket_files::SocketFiles;
use crate::stop_signal::{StopSignal, Woken};

/// Number of front-ends or clients that may wait until they are accepted. A client that does not wait
/// fails if there are more. The kernel lowers it to `net.core.somaxconn`, 4096 by default.
const BACKLOG: i32 = 4096;
/// Pause after an accept that failed for lack of descriptors or memory. No event reports when they
/// are available again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Access rights of a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Permission bits of the socket. `None`: those of the process's umask.
    pub mode: Option<u32>,
    /// Group that owns the socket, by name or number. `None`: the group of the process.
    pub group: Option<String>,
}

/// A listening socket. Drop removes the socket file and the lock file if they still belong to it.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    shared: SharedSocket,
}

/// Socket of a listener. `None` after the listener has ended.
pub(crate) type SharedSocket = Arc<Mutex<Option<BoundSocket>>>;

/// Listening socket with its files. Drop removes the files that still belong to it.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    pub(crate) socket: Arc<OwnedFd>,
    /// Former socket, which is shut down. Front-ends may still wait in its backlog.
    pub(crate) former: Option<Arc<OwnedFd>>,
    pub(crate) path: PathBuf,
    /// Device and inode of the socket file. `None`: another process removes the file.
    pub(crate) identity: Option<(u64, u64)>,
    pub(crate) lock: Lock,
}

/// The socket is replaced in one step, so a panic elsewhere cannot leave it inconsistent.
pub(crate) fn lock_shared(shared: &SharedSocket) -> MutexGuard<'_, Option<BoundSocket>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parts of a listener, with which another process can continue it.
#[derive(Debug)]
pub struct ListenerParts {
    /// Path of the socket.
    pub path: PathBuf,
    /// Device and inode of the socket file. `None`: another process removes the file.
    pub identity: Option<(u64, u64)>,
    /// Descriptor of the listening socket.
    pub socket: OwnedFd,
    /// Descriptor of the locked lock file.
    pub lock: OwnedFd,
}

impl Listener {
    /// Locks the path and listens on it. Front-ends can connect as soon as this returns.
    ///
    /// # Errors
    /// The path is too long, served by another process or not a socket; the group does not exist;
    /// or a system call failed.
    pub fn bind(path: &Path, access: &Access) -> Result<Self, SocketError> {
        check_length(path)?;
        let group = access.group.as_deref().map(group_id).transpose()?;
        let lock = Lock::take(path)?;
        let (socket, identity) = open_socket(path, access.mode, group)?;
        Ok(Self::new(path.into(), socket, Some(identity), lock))
    }

    fn new(path: PathBuf, socket: OwnedFd, identity: Option<(u64, u64)>, lock: Lock) -> Self {
        let (socket, former) = (Arc::new(socket), None);
        let bound_socket = BoundSocket { socket, former, path: path.clone(), identity, lock };
        Self { path, shared: Arc::new(Mutex::new(Some(bound_socket))) }
    }

    /// Removes socket and lock file of a listener whose process has ended.
    ///
    /// # Errors
    /// A process serves the socket, or the file is not a socket.
    pub fn sweep(path: &Path) -> Result<(), SocketError> {
        // Drop of the lock removes the lock file.
        let _lock = Lock::take(path)?;
        remove_stale(path)
    }

    /// Serves a listening socket that the parent process passed, and locks the file beside it. Drop
    /// leaves the socket file to the parent.
    ///
    /// # Errors
    /// Not a Unix socket that listens at a path; served by another process.
    pub fn given(socket: OwnedFd) -> Result<Self, SocketError> {
        let path = listening_at(&socket)?;
        let lock = Lock::take(&path)?;
        fcntl_setfl(&socket, OFlags::NONBLOCK | OFlags::RDWR).map_err(errno("set up", &path))?;
        Ok(Self::new(path, socket, None, lock))
    }

    /// Continues a listener of another process, which has locked the same open lock file.
    ///
    /// # Errors
    /// The socket does not listen.
    pub fn adopt(parts: ListenerParts) -> Result<Self, SocketError> {
        let ListenerParts { path, identity, socket, lock } = parts;
        listening_at(&socket)?;
        let lock = Lock::adopt(&path, lock);
        Ok(Self::new(path, socket, identity, lock))
    }

    /// Duplicates the descriptors, for another process to store.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn parts(&self) -> io::Result<ListenerParts> {
        let ended = || io::Error::other("the listener has ended");
        lock_shared(&self.shared).as_ref().ok_or_else(ended)?.parts()
    }

    /// Closes the descriptors of this process. Leaves the files to the other owner of the parts.
    pub fn close_keep_files(self) {
        if let Some(bound_socket) = &mut *lock_shared(&self.shared) {
            bound_socket.identity = None;
            bound_socket.lock.leave();
        }
    }

    /// Returns a handle that puts removed files back, with these access rights.
    pub fn files(&self, access: Access) -> SocketFiles {
        SocketFiles::new(self.path.clone(), access, Arc::downgrade(&self.shared))
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next front-end. Returns `None` after `stop`.
    ///
    /// # Errors
    /// The socket is broken. If descriptors are short, the function waits and retries.
    pub fn accept(&self, stop: &StopSignal) -> Result<Option<UnixStream>, SocketError> {
        let error = |source| os("wait for a front-end on", &self.path, source);
        while let Some((socket, is_former)) = self.next_socket() {
            // A former socket is shut down, so that it is always readable.
            match stop.wait(Some(socket.as_fd()), None).map_err(error)? {
                Woken::Stopped => return Ok(None),
                Woken::Readable | Woken::TimedOut => {}
            }
            match accept_with(&*socket, SocketFlags::CLOEXEC) {
                Ok(stream) => return Ok(Some(stream.into())),
                Err(Errno::AGAIN | Errno::INVAL) if is_former => self.close_former(),
                Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => {}
                Err(shortage @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    tracing::warn!(path = %self.path.display(), "cannot accept yet: {shortage}");
                    stop.wait(None, Some(ACCEPT_PAUSE)).map_err(error)?;
                }
                Err(source) => return Err(error(source.into())),
            }
        }
        Ok(None)
    }

    /// Returns the socket of the next front-end, and whether that is the former one.
    fn next_socket(&self) -> Option<(Arc<OwnedFd>, bool)> {
        let shared = lock_shared(&self.shared);
        let bound_socket = shared.as_ref()?;
        let former = bound_socket.former.as_ref().map(|former| (Arc::clone(former), true));
        Some(former.unwrap_or_else(|| (Arc::clone(&bound_socket.socket), false)))
    }

    /// Closes the former socket, whose front-ends are all accepted.
    fn close_former(&self) {
        if let Some(bound_socket) = &mut *lock_shared(&self.shared) {
            bound_socket.former = None;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // From here on, `SocketFiles` finds no socket and creates no files.
        drop(lock_shared(&self.shared).take());
    }
}

impl BoundSocket {
    pub(crate) fn parts(&self) -> io::Result<ListenerParts> {
        let (path, identity) = (self.path.clone(), self.identity);
        let (socket, lock) = (self.socket.try_clone()?, self.lock.twin()?);
        Ok(ListenerParts { path, identity, socket, lock })
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Remove the socket before the lock: a successor that has the lock then finds no socket. If
        // the lock file was replaced, another server has started, and the socket belongs to it.
        let ours = self.identity.is_some_and(|ours| {
            identity(&self.path).is_ok_and(|found| found == ours) && self.lock.is_current()
        });
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Creates a socket that listens at `path`, which this process has locked. Returns it with device
/// and inode of its file.
pub(crate) fn open_socket(
    path: &Path,
    mode: Option<u32>,
    group: Option<u32>,
) -> Result<(OwnedFd, (u64, u64)), SocketError> {
    remove_stale(path)?;
    let address = SocketAddrUnix::new(path).map_err(errno("name", path))?;
    // Non-blocking: a front-end may disconnect before `accept`, which must not block then.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = stream_socket(flags).map_err(errno("open", path))?;
    bind(&socket, &address).map_err(errno("create", path))?;
    let prepared = prepare(&socket, path, mode, group);
    if prepared.is_err() {
        let _ = std::fs::remove_file(path);
    }
    Ok((socket, prepared?))
}

fn prepare(
    socket: &OwnedFd,
    path: &Path,
    mode: Option<u32>,
    group: Option<u32>,
) -> Result<(u64, u64), SocketError> {
    let error = |action| move |source| os(action, path, source);
    let found = identity(path).map_err(error("inspect"))?;
    if let Some(group) = group {
        let gid = Some(Gid::from_raw(group));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        chownat(CWD, path, None, gid, flags).map_err(errno("change the group of", path))?;
    }
    if let Some(mode) = mode {
        let permissions = Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).map_err(error("change the mode of"))?;
    }
    // No front-end could connect before this, so none bypassed mode and group.
    listen(socket, BACKLOG).map_err(errno("listen on", path))?;
    Ok(found)
}

/// Returns the path of a listening Unix socket.
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

/// Removes a socket without a listener.
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
        // Connected, or a full backlog: a process listens.
        Ok(()) | Err(Errno::AGAIN) => return Err(SocketError::Taken { path: path.into() }),
        Err(error) => return Err(os("try", path, error.into())),
    }
    std::fs::remove_file(path).map_err(|error| os("remove the stale socket", path, error))
}

/// Creates a stream socket without an address.
pub(crate) fn stream_socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

pub(crate) fn os(action: &'static str, path: &Path, source: io::Error) -> SocketError {
    SocketError::Os { action, path: path.into(), source }
}

/// Returns a function that turns an error number of the kernel into an error about this path.
pub(crate) fn errno(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> SocketError {
    move |error| os(action, path, error.into())
}

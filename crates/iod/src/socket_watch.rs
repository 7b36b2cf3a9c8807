//! Watch over the files of listening sockets.
//!
//! A cleanup job or a person may remove the file of a socket while its process listens. Connected
//! front-ends notice nothing, but after the next crash they could not connect again. So a thread of
//! the worker learns from inotify that a file is gone, and puts it back ([`vhost_user::SocketFiles`]).
//! The keeper's entry gets the new socket before front-ends do.
//!
//! The worker does this and not the keeper: the accepting process must have the new socket, and an
//! upgrade replaces only the worker. A worker checks the files of all sockets that it takes over, so
//! files that are removed while no worker runs come back with the next one. If a folder is gone, the
//! thread waits until somebody creates it again.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use vhost_user::{FilesState, SocketError, SocketFiles};

use crate::error::error_chain;
use crate::keeper_client::KeeperClient;

/// Size of the buffer for events in bytes: some dozens of them.
const EVENTS_BYTES: usize = 4096;
/// First pause after files could not be put back. It doubles each time: no event reports that
/// descriptors are free or that the keeper answers, and an attempt causes events itself.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest pause.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Sockets that are to be watched, for the thread that watches them.
#[derive(Debug, Default)]
pub(crate) struct SocketWatch {
    added: Mutex<Added>,
}

#[derive(Debug, Default)]
struct Added {
    files: Vec<SocketFiles>,
    /// Wakes the thread, once there is one.
    wake: Option<Arc<OwnedFd>>,
}

impl SocketWatch {
    fn added(&self) -> MutexGuard<'_, Added> {
        // Each change is a single step, so a panic elsewhere leaves the list consistent.
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the files of a socket from now on.
    pub(crate) fn add(&self, files: SocketFiles) {
        let mut added = self.added();
        added.files.push(files);
        added.wake.as_deref().map(wake);
    }
}

fn wake(event: &OwnedFd) {
    // Fails only if the counter is full, and a full counter is readable too.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Starts the thread that watches the sockets of `keeper_client`. It lives as long as the process.
pub(crate) fn start(keeper_client: &KeeperClient) {
    if let Err(error) = try_start(keeper_client) {
        tracing::warn!("socket files that are removed will not come back, inotify failed: {error}");
    }
}

fn try_start(keeper_client: &KeeperClient) -> io::Result<()> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let event = Arc::new(eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (twin, keeper_client) = (Arc::clone(&event), keeper_client.clone());
    let watcher = Watcher { keeper_client: keeper_client.clone(), inotify, sockets: Vec::new() };
    // Before the thread begins, so that it misses no socket.
    keeper_client.socket_watch().added().wake = Some(event);
    std::thread::Builder::new().name("sockets".into()).spawn(move || watcher.run(&twin))?;
    Ok(())
}

/// The thread's state.
struct Watcher {
    keeper_client: KeeperClient,
    inotify: OwnedFd,
    sockets: Vec<WatchedSocket>,
}

/// One socket.
struct WatchedSocket {
    files: SocketFiles,
    place: Option<WatchPlace>,
    /// Text that was logged last, until the files are back.
    problem: Option<String>,
    /// Time of the next attempt after a failure. Events are ignored until then.
    retry_at: Option<Instant>,
    /// Pause after the next failure.
    pause: Duration,
    has_ended: bool,
}

/// Watched folder, and the name in it for which the socket waits: that of the socket's file, or that
/// of the next folder on the path if the socket's folder is gone.
#[derive(Debug, PartialEq, Eq)]
struct WatchPlace {
    watch: i32,
    name: OsString,
}

impl Watcher {
    fn run(mut self, event: &OwnedFd) {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.inotify.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN),
            ];
            let next = self.sockets.iter().filter_map(|one| one.retry_at).min();
            let left = next.map(|at| at.saturating_duration_since(Instant::now()));
            match poll(&mut fds, left.and_then(|left| Timespec::try_from(left).ok()).as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::error!("socket files are not watched: {error}"),
            }
            // This fails only if the event was not signalled.
            let _ = rustix::io::read(event, &mut [0u8; 8]);
            let mut due = self.take_added();
            match self.take_events() {
                Ok(more) => due.extend(more),
                Err(error) => return tracing::error!("socket files are not watched: {error}"),
            }
            due.retain(|at| self.sockets.get(*at).is_some_and(|one| one.retry_at.is_none()));
            let now = Instant::now();
            let sockets = self.sockets.iter().enumerate();
            let again = sockets.filter(|(_, one)| one.retry_at.is_some_and(|at| at <= now));
            due.extend(again.map(|(at, _)| at));
            due.into_iter().for_each(|at| self.check(at));
            self.forget_ended();
        }
    }

    /// Takes new sockets. Returns their indexes.
    fn take_added(&mut self) -> BTreeSet<usize> {
        let files = std::mem::take(&mut self.keeper_client.socket_watch().added().files);
        let first = self.sockets.len();
        for files in files {
            if !self.sockets.iter().any(|one| one.files.is_same(&files)) {
                self.sockets.push(WatchedSocket::new(files));
            }
        }
        (first..self.sockets.len()).collect()
    }

    /// Reads all events. Returns the indexes of the sockets that they concern.
    fn take_events(&self) -> io::Result<BTreeSet<usize>> {
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut due = BTreeSet::new();
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(due),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let lost = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            let concerns = |one: &WatchedSocket| {
                lost || one.place.as_ref().is_none_or(|place| place.is_hit(event.wd(), name))
            };
            let sockets = self.sockets.iter().enumerate();
            due.extend(sockets.filter(|(_, one)| concerns(one)).map(|(at, _)| at));
        }
    }

    /// Puts the files of a socket back if they are missing.
    fn check(&mut self, at: usize) {
        let Some(one) = self.sockets.get_mut(at) else { return };
        let path = one.files.path();
        let socket = path.display();
        // Watch first, so that no later removal is missed.
        let placed = WatchPlace::find(&self.inotify, path);
        let outcome = self.keeper_client.restore_socket(&one.files);
        // The folder's return is an event.
        let retries = !matches!(outcome, Ok(_) | Err(SocketError::NoFolder { .. }));
        let problem = match (outcome, &placed) {
            (Ok(FilesState::Ended), _) => {
                one.has_ended = true;
                None
            }
            (Ok(FilesState::Restored), _) => {
                tracing::warn!(
                    %socket,
                    "the socket's file was removed while this process listens; it is back, and \
                     front-ends can connect again"
                );
                None
            }
            (Ok(FilesState::Intact), Ok(_)) => None,
            (Ok(FilesState::Intact), Err(error)) => {
                Some(format!("the socket's file is not watched: {error}"))
            }
            (Err(error), _) => Some(format!(
                "the socket's file was removed and cannot be put back: {}",
                error_chain(&error)
            )),
        };
        if let Some(problem) = problem.as_ref().filter(|_| problem != one.problem) {
            tracing::error!(%socket, "{problem}");
        }
        one.problem = problem;
        one.plan_retry(retries);
        if let Some(former) = std::mem::replace(&mut one.place, placed.ok()) {
            self.remove_unused(former.watch);
        }
    }

    /// Forgets sockets that have ended, and the folders that no socket needs any more.
    fn forget_ended(&mut self) {
        let (ended, rest) = std::mem::take(&mut self.sockets)
            .into_iter()
            .partition(|one| one.has_ended || one.files.has_ended());
        self.sockets = rest;
        let ended: Vec<WatchedSocket> = ended;
        let watches: BTreeSet<i32> =
            ended.into_iter().filter_map(|one| one.place).map(|place| place.watch).collect();
        watches.into_iter().for_each(|watch| self.remove_unused(watch));
    }

    fn remove_unused(&self, watch: i32) {
        if !self.sockets.iter().any(|one| one.is_at(watch)) {
            // This fails if the folder is gone, and its watch with it.
            let _ = inotify::remove_watch(&self.inotify, watch);
        }
    }
}

impl WatchedSocket {
    fn new(files: SocketFiles) -> Self {
        let (place, problem, retry_at, has_ended) = (None, None, None, false);
        Self { files, place, problem, retry_at, pause: FIRST_RETRY, has_ended }
    }

    fn plan_retry(&mut self, retries: bool) {
        self.retry_at = retries.then(|| Instant::now() + self.pause);
        self.pause = if retries { (self.pause * 2).min(LAST_RETRY) } else { FIRST_RETRY };
    }

    fn is_at(&self, watch: i32) -> bool {
        self.place.as_ref().is_some_and(|place| place.watch == watch)
    }
}

impl WatchPlace {
    /// Watches the folder of a socket, or the nearest one above it that exists.
    fn find(inotify: &OwnedFd, path: &Path) -> io::Result<Self> {
        let wanted = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        loop {
            let mut below = path;
            while let Some(folder) = below.parent() {
                let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                match inotify::add_watch(inotify, here, wanted) {
                    Ok(watch) => {
                        // The folder below may have appeared before its parent was watched.
                        if below != path && below.is_dir() {
                            break;
                        }
                        let name = below.file_name().unwrap_or_default().to_owned();
                        return Ok(Self { watch, name });
                    }
                    Err(Errno::NOENT | Errno::NOTDIR) => below = folder,
                    Err(error) => return Err(error.into()),
                }
            }
            if below.parent().is_none() {
                return Err(Errno::NOENT.into());
            }
        }
    }

    /// Returns whether an event concerns this place. Events without a name concern the folder.
    fn is_hit(&self, watch: i32, name: Option<&OsStr>) -> bool {
        let is_ours = |name: &OsStr| {
            let rest = name.as_bytes().strip_prefix(self.name.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest == b".lock")
        };
        watch == self.watch && name.is_none_or(is_ours)
    }
}

//! Supervisor of a `ringway-io`, which serves one SR or all networks. It starts the process on
//! demand, discovers it after a restart of the daemon, replaces it when it dies, and ends it with
//! its SR.
//!
//! `ringway-io` consists of two processes, keeper and worker. The keeper replaces a dead worker
//! without the supervisor. If the keeper dies, the supervisor starts another, which adopts the
//! worker, and guests do not notice.
//!
//! If both die, the supervisor starts a new `ringway-io` and attaches the devices again. Guests
//! reconnect to it. A device that cannot be attached at once is retried.

mod group;
mod restore;
mod start;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use model::report::Stats;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::connection_pool::ConnectionPool;
use super::full_follower::FullDisks;
use super::served_devices::{DatapathOwner, ServedDevice};
use super::spec_store::SpecStore;
use super::{CALL_DEADLINE, DatapathError, RpcConnection};
use crate::keyed_locks::KeyedLocks;
pub use start::IoLaunch;

/// Name of its control socket, in the directory of its other sockets.
pub(super) const CONTROL: &str = "control.sock";
/// Longest wait for its exit after a shutdown: every disk is drained and flushed.
const END_DEADLINE: Duration = Duration::from_secs(40);

/// Supervisor of one `ringway-io`.
#[derive(Debug)]
pub(super) struct Supervisor<T> {
    pub(super) owner: DatapathOwner,
    /// Receiver of the disks that wait for space. Without it they are not followed.
    pub(super) full_disks: OnceLock<mpsc::Sender<FullDisks>>,
    launch: Arc<IoLaunch>,
    folder: PathBuf,
    control: PathBuf,
    pub(super) pool: ConnectionPool,
    specs: Mutex<SpecStore<T>>,
    /// Serializes discovery, start and end.
    turn: tokio::sync::Mutex<()>,
    watched: Mutex<WatchedProcess>,
    pub(super) keyed_locks: KeyedLocks,
    /// True while failed attaches are being retried.
    retrying: AtomicBool,
}

/// Process whose exit is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchedProcess {
    /// No process was discovered or started yet.
    None,
    /// Process id of the keeper.
    Keeper(u32),
    /// The SR is detached, and no other process is started.
    Ended,
}

impl<T: ServedDevice> Supervisor<T> {
    /// Creates a supervisor before any discovery. Sockets are in `folder`.
    pub(super) fn new(
        owner: DatapathOwner,
        folder: PathBuf,
        launch: Arc<IoLaunch>,
    ) -> std::io::Result<Arc<Self>> {
        let specs = Mutex::new(SpecStore::open(&folder, owner)?);
        let control = folder.join(CONTROL);
        let (pool, turn) = (ConnectionPool::new(&control), tokio::sync::Mutex::default());
        let watched = Mutex::new(WatchedProcess::None);
        let (keyed_locks, insists) = (KeyedLocks::default(), AtomicBool::new(false));
        Ok(Arc::new(Self {
            owner,
            full_disks: OnceLock::new(),
            launch,
            folder,
            control,
            pool,
            specs,
            turn,
            watched,
            keyed_locks,
            retrying: insists,
        }))
    }

    /// Returns the control socket.
    pub(super) fn control(&self) -> &Path {
        &self.control
    }

    /// Locks the stored specifications.
    pub(super) fn specs(&self) -> MutexGuard<'_, SpecStore<T>> {
        // Each change of the map is complete before it can panic.
        self.specs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ensures that a `ringway-io` takes calls. With `start`, starts one even if there is nothing
    /// to serve. Returns false if there is none.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) async fn ready(self: &Arc<Self>, start: bool) -> Result<bool, DatapathError> {
        match self.watched() {
            WatchedProcess::Keeper(_) => Ok(true),
            WatchedProcess::Ended => Ok(false),
            WatchedProcess::None => self.bring_up(start).await,
        }
    }

    /// Ensures that a `ringway-io` takes calls after the socket has refused a connection. Otherwise
    /// acts as [`Self::ready`].
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) async fn ensure_running(
        self: &Arc<Self>,
        start: bool,
    ) -> Result<bool, DatapathError> {
        match self.watched() {
            WatchedProcess::Ended => Ok(false),
            _ => self.bring_up(start).await,
        }
    }

    /// Ends the `ringway-io` with all its devices.
    ///
    /// # Errors
    /// It does not exit in time. It then continues to run.
    pub(super) async fn end(&self) -> Result<(), DatapathError> {
        let _turn = self.turn.lock().await;
        let before = std::mem::replace(&mut *self.watching(), WatchedProcess::Ended);
        let ended = self.shut_down().await;
        match &ended {
            Ok(()) => self.tidy().await,
            Err(_) => *self.watching() = before,
        }
        ended
    }

    async fn shut_down(&self) -> Result<(), DatapathError> {
        let mut client = match RpcConnection::connect(&self.control).await {
            Ok(client) => client,
            Err(DatapathError::NotThere { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let stats = client.stats().await?;
        // The keeper exits last.
        let last = stats.keeper.map_or(stats.pid, |keeper| keeper.pid);
        let ended = ended(last);
        client.shutdown(END_DEADLINE).await?;
        let Some(ended) = ended else { return Ok(()) };
        let (what, deadline) = ("shutdown by exiting".into(), END_DEADLINE);
        let waited = timeout(END_DEADLINE, ended.readable()).await;
        waited.map(drop).map_err(|_| DatapathError::Late { what, deadline })
    }

    async fn tidy(&self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            let folder = self.folder.display();
            tracing::warn!(of = %self.owner, "cannot remove {folder}: {error}");
        }
        self.leave_group().await;
    }

    fn watching(&self) -> MutexGuard<'_, WatchedProcess> {
        // The value is one word, so it is always consistent.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the control socket if the watched keeper has this process id.
    pub(super) fn control_of(&self, pid: u32) -> Option<PathBuf> {
        (self.watched() == WatchedProcess::Keeper(pid)).then(|| self.control.clone())
    }

    fn watched(&self) -> WatchedProcess {
        *self.watching()
    }

    async fn bring_up(self: &Arc<Self>, start: bool) -> Result<bool, DatapathError> {
        let _turn = self.turn.lock().await;
        self.bring_up_in_turn(start).await
    }

    /// Discovers or starts a `ringway-io`, and attaches missing devices. The caller has locked
    /// `turn`.
    async fn bring_up_in_turn(self: &Arc<Self>, start: bool) -> Result<bool, DatapathError> {
        if self.watched() == WatchedProcess::Ended {
            return Ok(false);
        }
        let served = match self.find().await? {
            Some(stats) => T::served(&stats),
            None if start || self.specs().all().next().is_some() => {
                self.start().await?;
                BTreeSet::new()
            }
            None => return Ok(false),
        };
        self.reattach(&served).await;
        Ok(true)
    }

    /// Discovers a running `ringway-io` and watches it.
    async fn find(self: &Arc<Self>) -> Result<Option<Stats>, DatapathError> {
        let stats = match self.ask().await {
            Ok(stats) => stats,
            Err(DatapathError::NotThere { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(keeper) = &stats.keeper
            && let Some(ended) = ended(keeper.pid)
            // The process still had the id when the pidfd was opened.
            && self.ask().await?.keeper.is_some_and(|again| again.pid == keeper.pid)
        {
            self.place([stats.pid, keeper.pid]);
            self.watch(keeper.pid, ended);
            return Ok(Some(stats));
        }
        // The worker has no keeper: start one, which adopts it. If the worker dies before that, the
        // new keeper starts without devices, and they are attached again.
        self.start().await?;
        let stats = self.ask().await?;
        self.place([stats.pid]);
        Ok(Some(stats))
    }

    async fn ask(&self) -> Result<Stats, DatapathError> {
        let until = Instant::now() + CALL_DEADLINE;
        loop {
            match RpcConnection::connect(&self.control).await?.stats().await {
                // The worker has died. Its successor accepts the next connection.
                Err(DatapathError::Broken { .. }) if Instant::now() < until => {}
                reply => return reply,
            }
        }
    }
}

/// Returns a pidfd, which is readable when the process has exited; `None` if it already has.
#[allow(
    deprecated,
    reason = "what replaces it asks for a promise that only other types than OwnedFd need"
)]
fn ended(pid: u32) -> Option<AsyncFd<OwnedFd>> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    let opened = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    AsyncFd::with_interest(opened, Interest::READABLE).ok()
}

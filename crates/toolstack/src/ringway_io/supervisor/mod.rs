//! The `ringway-io` of one SR, or of all networks: started when it is first needed, found again after
//! a restart of the daemon, replaced when it dies, ended with its SR.
//!
//! `ringway-io` is two processes. The one that serves is replaced by the other, and nobody here
//! need know. If the other dies, one that is started again takes its place, and guests do not
//! notice. If both die, what was served is attached anew to another one, and guests connect to that:
//! at once, and what cannot be had then as soon as it can.

mod group;
mod restore;
mod start;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::report::Stats;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout};

use super::connection_pool::ConnectionPool;
use super::served_devices::{DatapathOwner, ServedDevice};
use super::spec_store::SpecStore;
use super::{CALL_DEADLINE, DatapathError, RpcConnection};
use crate::keyed_locks::KeyedLocks;
pub use start::IoLaunch;

/// Its control socket, in the folder of its other sockets.
const CONTROL: &str = "control.sock";
/// Longest wait for its end when it was told to: every disk is drained and flushed.
const END_DEADLINE: Duration = Duration::from_secs(40);

/// One `ringway-io`.
#[derive(Debug)]
pub(super) struct Supervisor<T> {
    owner: DatapathOwner,
    launch: Arc<IoLaunch>,
    folder: PathBuf,
    control: PathBuf,
    pub(super) pool: ConnectionPool,
    specs: Mutex<SpecStore<T>>,
    /// Held while one is looked for, started or ended.
    turn: tokio::sync::Mutex<()>,
    watched: Mutex<WatchedProcess>,
    pub(super) keyed_locks: KeyedLocks,
    /// What could not be attached again is tried again.
    insists: AtomicBool,
}

/// Whose end is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchedProcess {
    /// Nobody's: none was found or started yet.
    None,
    /// This process's.
    Keeper(u32),
    /// The SR is detached, and no other one is started.
    Ended,
}

impl<T: ServedDevice> Supervisor<T> {
    /// One that is not looked for yet. Its sockets are in `folder`.
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
            launch,
            folder,
            control,
            pool,
            specs,
            turn,
            watched,
            keyed_locks,
            insists,
        }))
    }

    /// What it was told to serve.
    pub(super) fn specs(&self) -> MutexGuard<'_, SpecStore<T>> {
        // Entries are changed whole.
        self.specs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees that one takes calls; `start` says whether one is started that has nothing to serve.
    /// False: there is none.
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

    /// Nothing accepts: sees that one does again.
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

    /// Ends it with everything that it serves.
    ///
    /// # Errors
    /// It does not end in time: then it goes on.
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
        // The one that keeps the other ends last.
        let last = stats.keeper.map_or(stats.pid, |keeper| keeper.pid);
        let ended = ended(last);
        client.shutdown(END_DEADLINE).await?;
        let Some(ended) = ended else { return Ok(()) };
        let (what, deadline) = ("shutdown by its end".into(), END_DEADLINE);
        let waited = timeout(END_DEADLINE, ended.readable()).await;
        waited.map(drop).map_err(|_| DatapathError::Late { what, deadline })
    }

    async fn tidy(&self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            let folder = self.folder.display();
            tracing::warn!(of = %self.owner, "something is left in {folder}: {error}");
        }
        self.leave_group().await;
    }

    fn watching(&self) -> MutexGuard<'_, WatchedProcess> {
        // One value.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> WatchedProcess {
        *self.watching()
    }

    async fn bring_up(self: &Arc<Self>, start: bool) -> Result<bool, DatapathError> {
        let _turn = self.turn.lock().await;
        self.bring_up_in_turn(start).await
    }

    /// Finds one or starts one, and has it serve what it is to serve.
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

    /// Finds one that runs, and watches it.
    async fn find(self: &Arc<Self>) -> Result<Option<Stats>, DatapathError> {
        let stats = match self.ask().await {
            Ok(stats) => stats,
            Err(DatapathError::NotThere { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(keeper) = &stats.keeper
            && let Some(ended) = ended(keeper.pid)
            // The number was still its own when it was opened.
            && self.ask().await?.keeper.is_some_and(|again| again.pid == keeper.pid)
        {
            self.place([stats.pid, keeper.pid]);
            self.watch(keeper.pid, ended);
            return Ok(Some(stats));
        }
        // It serves and nobody keeps it: another one does, and takes it over. If it dies before that, the
        // other one begins with nothing: what is served then is told anew.
        self.start().await?;
        let stats = self.ask().await?;
        self.place([stats.pid]);
        Ok(Some(stats))
    }

    async fn ask(&self) -> Result<Stats, DatapathError> {
        let until = Instant::now() + CALL_DEADLINE;
        loop {
            match RpcConnection::connect(&self.control).await?.stats().await {
                // Whoever serves has died: the next one takes the next connection.
                Err(DatapathError::Broken { .. }) if Instant::now() < until => {}
                told => return told,
            }
        }
    }
}

/// A descriptor that is readable when the process has ended; `None`: it has.
#[allow(
    deprecated,
    reason = "what replaces it asks for a promise that only other types than OwnedFd need"
)]
fn ended(pid: u32) -> Option<AsyncFd<OwnedFd>> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    let opened = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    AsyncFd::with_interest(opened, Interest::READABLE).ok()
}

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

use super::items::{Item, Owner};
use super::pool::Pool;
use super::specs::Specs;
use super::{CALL_DEADLINE, Client, IoError};
use crate::turns::Turns;
pub use start::IoLaunch;

/// Its control socket, in the folder of its other sockets.
const CONTROL: &str = "control.sock";
/// Longest wait for its end when it was told to: every disk is drained and flushed.
const END_DEADLINE: Duration = Duration::from_secs(40);

/// One `ringway-io`.
#[derive(Debug)]
pub(super) struct Keep<T> {
    owner: Owner,
    launch: Arc<IoLaunch>,
    folder: PathBuf,
    control: PathBuf,
    pub(super) pool: Pool,
    specs: Mutex<Specs<T>>,
    /// Held while one is looked for, started or ended.
    turn: tokio::sync::Mutex<()>,
    watched: Mutex<Watched>,
    pub(super) turns: Turns,
    /// What could not be attached again is tried again.
    insists: AtomicBool,
}

/// Whose end is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    /// Nobody's: none was found or started yet.
    None,
    /// This process's.
    Keeper(u32),
    /// The SR is detached, and no other one is started.
    Ended,
}

impl<T: Item> Keep<T> {
    /// One that is not looked for yet. Its sockets are in `folder`.
    pub(super) fn new(
        owner: Owner,
        folder: PathBuf,
        launch: Arc<IoLaunch>,
    ) -> std::io::Result<Arc<Self>> {
        let specs = Mutex::new(Specs::open(&folder, owner)?);
        let control = folder.join(CONTROL);
        let (pool, turn) = (Pool::new(&control), tokio::sync::Mutex::default());
        let watched = Mutex::new(Watched::None);
        let (turns, insists) = (Turns::default(), AtomicBool::new(false));
        Ok(Arc::new(Self {
            owner,
            launch,
            folder,
            control,
            pool,
            specs,
            turn,
            watched,
            turns,
            insists,
        }))
    }

    /// What it was told to serve.
    pub(super) fn specs(&self) -> MutexGuard<'_, Specs<T>> {
        // Entries are changed whole.
        self.specs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees that one takes calls; `start` says whether one is started that has nothing to serve.
    /// False: there is none.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) async fn ready(self: &Arc<Self>, start: bool) -> Result<bool, IoError> {
        match self.watched() {
            Watched::Keeper(_) => Ok(true),
            Watched::Ended => Ok(false),
            Watched::None => self.bring_up(start).await,
        }
    }

    /// Nothing accepts: sees that one does again.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) async fn revive(self: &Arc<Self>, start: bool) -> Result<bool, IoError> {
        match self.watched() {
            Watched::Ended => Ok(false),
            _ => self.bring_up(start).await,
        }
    }

    /// Ends it with everything that it serves.
    ///
    /// # Errors
    /// It does not end in time: then it goes on.
    pub(super) async fn end(&self) -> Result<(), IoError> {
        let _turn = self.turn.lock().await;
        let before = std::mem::replace(&mut *self.watching(), Watched::Ended);
        let ended = self.shut_down().await;
        match &ended {
            Ok(()) => self.tidy().await,
            Err(_) => *self.watching() = before,
        }
        ended
    }

    async fn shut_down(&self) -> Result<(), IoError> {
        let mut client = match Client::connect(&self.control).await {
            Ok(client) => client,
            Err(IoError::NotThere { .. }) => return Ok(()),
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
        waited.map(drop).map_err(|_| IoError::Late { what, deadline })
    }

    async fn tidy(&self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            let folder = self.folder.display();
            tracing::warn!(of = %self.owner, "something is left in {folder}: {error}");
        }
        self.leave_group().await;
    }

    fn watching(&self) -> MutexGuard<'_, Watched> {
        // One value.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> Watched {
        *self.watching()
    }

    async fn bring_up(self: &Arc<Self>, start: bool) -> Result<bool, IoError> {
        let _turn = self.turn.lock().await;
        self.bring_up_in_turn(start).await
    }

    /// Finds one or starts one, and has it serve what it is to serve.
    async fn bring_up_in_turn(self: &Arc<Self>, start: bool) -> Result<bool, IoError> {
        if self.watched() == Watched::Ended {
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
        self.restore(&served).await;
        Ok(true)
    }

    /// Finds one that runs, and watches it.
    async fn find(self: &Arc<Self>) -> Result<Option<Stats>, IoError> {
        let stats = match self.ask().await {
            Ok(stats) => stats,
            Err(IoError::NotThere { .. }) => return Ok(None),
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

    async fn ask(&self) -> Result<Stats, IoError> {
        let until = Instant::now() + CALL_DEADLINE;
        loop {
            match Client::connect(&self.control).await?.stats().await {
                // Whoever serves has died: the next one takes the next connection.
                Err(IoError::Broken { .. }) if Instant::now() < until => {}
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

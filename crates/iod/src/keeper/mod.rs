//! The process that keeps a worker running.
//!
//! A keeper holds what must outlive the death of whoever serves: listening sockets with their
//! locks, the memory of memory disks, and the worker's own words about each disk, which it does
//! not read. It has no guest memory and no image open, and does so little that it has no reason
//! to die.
//!
//! ```text
//! start -> serving --worker died--> pause --over--> serving (a new worker, told what is held)
//!             |                       |
//!             +-- signal: told to end +-- signal
//!             v                       v
//!          ending --worker ended--> ended (files of held sockets are removed)
//! ```
//! A worker may ask for a successor (`heir`): another worker is started beside it, to which it
//! hands over everything while front-ends stay connected. From then on that is the worker, and it
//! is started from its file again if it dies.
//!
//! Front-ends that connect while no worker lives wait in the backlog of the held sockets. Between
//! events the process sleeps in one poll: over signals, the end of the worker and what it says.

mod adopt;
mod backoff;
mod exit_text;
mod service_manager;
mod stop_deadline;
mod store;
mod successor;
mod unkillable;
mod wakeup;
mod watchdog;
mod worker;
mod worker_exit;
mod worker_messages;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::keeper_link::{KeeperInfo, KeeperMessage, PreservedEntry};
use backoff::Backoff;
pub use service_manager::{ServiceManager, given_socket};
use stop_deadline::StopDeadline;
use store::Store;
use successor::Successor;
use wakeup::WakeReasons;
use worker::{QueuedMessage, Worker};

/// What is kept, and how.
#[derive(Debug)]
pub struct KeeperConfig {
    /// Name of the program in lists of processes.
    pub program: &'static str,
    /// Options of the worker.
    pub options: Vec<OsString>,
    /// Told once when the first worker serves.
    pub ready: Option<OwnedFd>,
    /// Told of the same, of the end, and that the worker is well.
    pub manager: ServiceManager,
    /// Readable when a signal to end has come: one byte for each.
    pub signals: OwnedFd,
    /// Longest pause before a dead worker is replaced.
    pub pause_max: Duration,
    /// A worker whose keeper has died ends too.
    pub die_together: bool,
}

/// Keeps a worker.
#[derive(Debug)]
pub struct Keeper {
    setup: KeeperConfig,
    store: Store,
    worker: Option<Worker>,
    successor: Option<Successor>,
    /// Have handed over, or were killed before they took over.
    retired: Vec<Worker>,
    /// Where the worker's program is, if it was upgraded.
    file: Option<PathBuf>,
    /// The same of a worker that has not served yet.
    unproven: Option<PathBuf>,
    backoff: Backoff,
    /// When the next worker is started.
    start_at: Option<Instant>,
    /// A worker has served since we are here.
    served: bool,
    /// Told to end.
    ending: bool,
    /// How long the worker's end is waited for.
    stop_deadline: Option<StopDeadline>,
    restarts: u64,
    last_exit: Option<String>,
}

/// Whether to go on.
enum LoopControl {
    Poll,
    End(ExitCode),
}

impl Keeper {
    /// A keeper that holds nothing.
    pub fn new(setup: KeeperConfig) -> Self {
        let backoff = Backoff::new(setup.pause_max);
        let (store, worker, start_at) = (Store::default(), None, None);
        let (served, ending, restarts, last_exit) = (false, false, 0, None);
        let (successor, retired, file, unproven) = (None, Vec::new(), None, None);
        Self {
            setup,
            store,
            worker,
            successor,
            retired,
            file,
            unproven,
            backoff,
            start_at,
            served,
            ending,
            stop_deadline: None,
            restarts,
            last_exit,
        }
    }

    /// Holds something of the keeper's own for all workers.
    pub(crate) fn insert(&mut self, key: &str, preserved_entry: PreservedEntry) {
        self.store.insert(key, preserved_entry);
    }

    /// Takes over the worker that serves behind `control` without a keeper.
    ///
    /// # Errors
    /// It has a keeper, is no worker, or belongs to somebody else.
    pub fn take_over(&mut self, control: &Path) -> anyhow::Result<()> {
        let (mut worker, adopted) = adopt::take_over(control)?;
        (self.restarts, self.last_exit) = (adopted.restarts, adopted.last_exit);
        worker.queue_message(QueuedMessage::Record(KeeperMessage::Keeper(self.words())));
        tracing::info!(pid = adopted.pid, "keeping a worker whose keeper has ended");
        self.worker = Some(worker);
        // Whatever becomes of it, what it had held is worth another one.
        self.served = true;
        Ok(())
    }

    /// Keeps a worker until all ends. The code is the worker's.
    ///
    /// # Errors
    /// No worker can be started, or the kernel refuses to wait.
    pub fn run(mut self) -> anyhow::Result<ExitCode> {
        let outcome = self.keep();
        self.end_heir();
        self.report_abandoned();
        self.store.clear();
        outcome
    }

    fn keep(&mut self) -> anyhow::Result<ExitCode> {
        if self.worker.is_none() {
            self.start().context("cannot start a worker")?;
        }
        loop {
            if let LoopControl::End(code) = self.turn()? {
                return Ok(code);
            }
        }
    }

    fn words(&self) -> KeeperInfo {
        KeeperInfo {
            pid: std::process::id(),
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
            die_together: self.setup.die_together,
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let mut worker = self.start_upgraded()?;
        self.brief(&mut worker);
        worker.queue_message(QueuedMessage::Record(KeeperMessage::Begin));
        if self.ending {
            worker.queue_message(QueuedMessage::Record(KeeperMessage::Stop));
        }
        self.worker = Some(worker);
        Ok(())
    }

    /// Tells a worker what is held, and who holds it.
    fn brief(&self, worker: &mut Worker) {
        self.store.keys().for_each(|key| worker.queue_message(QueuedMessage::Restore(key.clone())));
        worker.queue_message(QueuedMessage::Record(KeeperMessage::Keeper(self.words())));
    }

    /// Sleeps until something happens, and takes care of it.
    fn turn(&mut self) -> anyhow::Result<LoopControl> {
        let WakeReasons { signalled, told, ended, heir } =
            self.wait().context("cannot wait for the worker")?;
        if signalled && let LoopControl::End(code) = self.take_signals() {
            return Ok(LoopControl::End(code));
        }
        if told || ended {
            // A dead worker's last words count.
            self.handle_messages();
        }
        if !ended {
            self.abandon_partial_adoption()?;
        }
        let promoted = self.poll_successor(heir) || self.succeeded();
        // One that has retired meanwhile is none of that worker any more.
        if ended && !promoted {
            return self.on_worker_exit();
        }
        if self.start_at.is_some_and(|at| at <= Instant::now()) {
            self.start_at = None;
            match self.start() {
                Ok(()) => self.setup.manager.well(),
                Err(error) => {
                    tracing::error!("cannot start a worker: {error}");
                    self.start_at = Some(Instant::now() + self.backoff.died(Duration::ZERO));
                }
            }
        }
        self.replace_undead();
        self.watch();
        self.enforce_stop_deadline()?;
        if let Some(worker) = &mut self.worker
            && let Err(error) = worker.flush_messages(&self.store)
        {
            tracing::error!("killing the worker, it cannot be told what is held: {error}");
            worker.silent = true;
            worker.kill();
        }
        Ok(LoopControl::Poll)
    }
}

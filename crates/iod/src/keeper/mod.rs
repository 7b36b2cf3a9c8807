//! The process that keeps a worker running.
//!
//! A keeper holds the resources that must survive a worker crash: listening sockets with their
//! locks, the memory of memory disks, and the worker's records of each device. It does not parse
//! these records. It maps no guest memory and opens no image, so it has little reason to die.
//!
//! ```text
//! start -> serving --worker died--> pause --over--> serving (new worker, gets all entries)
//!             |                       |
//!             +-- signal: stop sent   +-- signal
//!             v                       v
//!          ending --worker ended--> ended (files of preserved sockets are removed)
//! ```
//! A worker may ask for a successor (`successor`). The keeper starts another worker beside it, and
//! the old worker hands over everything while front-ends stay connected. From then on the successor
//! is the worker, and a restart uses its program file.
//!
//! While no worker runs, front-ends wait in the backlog of the preserved sockets. Between events
//! the keeper sleeps in one poll over signals, the end of the worker, and its messages.

mod adopt;
mod backoff;
mod exit_text;
mod faults;
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
use faults::Faults;
pub use service_manager::{ServiceManager, given_socket};
use stop_deadline::StopDeadline;
use store::Store;
use successor::Successor;
use wakeup::WakeReasons;
use worker::{QueuedMessage, Worker};

/// Settings of a keeper.
#[derive(Debug)]
pub struct KeeperConfig {
    /// Process name in process lists.
    pub program: &'static str,
    /// Command line of the worker.
    pub options: Vec<OsString>,
    /// Descriptor that receives a newline once, when the first worker serves.
    pub ready: Option<OwnedFd>,
    /// Service manager, which is notified of readiness, of the end, and of watchdog pings.
    pub manager: ServiceManager,
    /// Descriptor from which one byte can be read for each signal to end.
    pub signals: OwnedFd,
    /// Longest pause before a dead worker is restarted.
    pub pause_max: Duration,
    /// True if a worker ends when its keeper has died.
    pub die_together: bool,
}

/// Keeper of a worker.
#[derive(Debug)]
pub struct Keeper {
    setup: KeeperConfig,
    store: Store,
    worker: Option<Worker>,
    successor: Option<Successor>,
    /// Workers that have handed over, or were killed before they took over.
    retired: Vec<Worker>,
    /// Program file of the worker, if it was upgraded.
    file: Option<PathBuf>,
    /// Program file of an upgraded worker that has not served yet.
    unproven: Option<PathBuf>,
    backoff: Backoff,
    faults: Faults,
    /// Time of the next worker start.
    start_at: Option<Instant>,
    /// True if a worker has served since this keeper started.
    served: bool,
    /// True if the keeper has been told to end.
    ending: bool,
    /// Deadline for the worker's end.
    stop_deadline: Option<StopDeadline>,
    restarts: u64,
    last_exit: Option<String>,
}

/// Whether the loop continues.
enum LoopControl {
    Poll,
    End(ExitCode),
}

impl Keeper {
    /// Creates a keeper without preserved entries.
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
            faults: Faults::default(),
            start_at,
            served,
            ending,
            stop_deadline: None,
            restarts,
            last_exit,
        }
    }

    /// Stores an entry of the keeper itself, for all workers.
    pub(crate) fn insert(&mut self, key: &str, preserved_entry: PreservedEntry) {
        self.store.insert(key, preserved_entry);
    }

    /// Adopts the worker that serves behind `control` without a keeper.
    ///
    /// # Errors
    /// It has a keeper, is not a worker, or belongs to another user.
    pub fn take_over(&mut self, control: &Path) -> anyhow::Result<()> {
        let (mut worker, adopted) = adopt::take_over(control)?;
        (self.restarts, self.last_exit) = (adopted.restarts, adopted.last_exit);
        worker.queue_message(QueuedMessage::Record(KeeperMessage::Keeper(self.words())));
        tracing::info!(pid = adopted.pid, "adopted a worker whose keeper has ended");
        self.worker = Some(worker);
        // Even if this worker dies, its preserved devices justify a restart.
        self.served = true;
        Ok(())
    }

    /// Keeps a worker running until everything ends. Returns the worker's exit code.
    ///
    /// # Errors
    /// No worker can be started, or the kernel refuses to wait.
    pub fn run(mut self) -> anyhow::Result<ExitCode> {
        let outcome = self.keep();
        self.end_successor();
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
            faults: self.faults.unexplained(),
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

    /// Queues the keeper's information and all preserved entries for a worker.
    fn brief(&self, worker: &mut Worker) {
        self.store.keys().for_each(|key| worker.queue_message(QueuedMessage::Restore(key.clone())));
        worker.queue_message(QueuedMessage::Record(KeeperMessage::Keeper(self.words())));
    }

    /// Sleeps until an event occurs, and handles it.
    fn turn(&mut self) -> anyhow::Result<LoopControl> {
        let WakeReasons { signalled, link_ready, ended, successor: heir } =
            self.wait().context("cannot wait for the worker")?;
        if signalled && let LoopControl::End(code) = self.take_signals() {
            return Ok(LoopControl::End(code));
        }
        if link_ready || ended {
            // Handle the messages that a dead worker sent before its end.
            self.handle_messages();
        }
        if !ended {
            self.abandon_partial_adoption()?;
        }
        let promoted = self.poll_successor(heir) || self.succeeded();
        // If the worker was replaced meanwhile, the end concerns the former worker.
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
        self.replace_unkillable();
        self.watch();
        self.enforce_stop_deadline()?;
        if let Some(worker) = &mut self.worker
            && let Err(error) = worker.flush_messages(&self.store)
        {
            tracing::error!("killing the worker, cannot send it the preserved records: {error}");
            worker.silent = true;
            worker.kill();
        }
        Ok(LoopControl::Poll)
    }
}

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
mod end;
mod heir;
mod notify;
mod store;
mod worker;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::adopt::tell_ready;
use crate::link::{FromKeeper, FromWorker, Holding, Words};
use backoff::Backoff;
use end::EndBy;
use heir::Heir;
use notify::Due;
pub use notify::{Manager, given_socket};
use store::Store;
use worker::{Unsaid, Worker, words};

/// Exit code when a second signal ended everything before it was done.
const IMPATIENT: u8 = 130;

/// What is kept, and how.
#[derive(Debug)]
pub struct Setup {
    /// Name of the program in lists of processes.
    pub program: &'static str,
    /// Options of the worker.
    pub options: Vec<OsString>,
    /// Told once when the first worker serves.
    pub ready: Option<OwnedFd>,
    /// Told of the same, of the end, and that the worker is well.
    pub manager: Manager,
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
    setup: Setup,
    store: Store,
    worker: Option<Worker>,
    heir: Option<Heir>,
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
    end_by: Option<EndBy>,
    restarts: u64,
    last_exit: Option<String>,
}

/// What has happened.
struct Happened {
    signalled: bool,
    /// The worker has said something, or can be told something.
    told: bool,
    /// It has ended.
    ended: bool,
    /// The same of the heir.
    heir: (bool, bool),
}

/// Whether to go on.
enum Next {
    Poll,
    End(ExitCode),
}

impl Keeper {
    /// A keeper that holds nothing.
    pub fn new(setup: Setup) -> Self {
        let backoff = Backoff::new(setup.pause_max);
        let (store, worker, start_at) = (Store::default(), None, None);
        let (served, ending, restarts, last_exit) = (false, false, 0, None);
        let (heir, retired, file, unproven) = (None, Vec::new(), None, None);
        Self {
            setup,
            store,
            worker,
            heir,
            retired,
            file,
            unproven,
            backoff,
            start_at,
            served,
            ending,
            end_by: None,
            restarts,
            last_exit,
        }
    }

    /// Holds something of the keeper's own for all workers.
    pub(crate) fn insert(&mut self, key: &str, holding: Holding) {
        self.store.insert(key, holding);
    }

    /// Takes over the worker that serves behind `control` without a keeper.
    ///
    /// # Errors
    /// It has a keeper, is no worker, or belongs to somebody else.
    pub fn take_over(&mut self, control: &Path) -> anyhow::Result<()> {
        let (mut worker, adopted) = adopt::take_over(control)?;
        (self.restarts, self.last_exit) = (adopted.restarts, adopted.last_exit);
        worker.say(Unsaid::Record(FromKeeper::Keeper(self.words())));
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
        self.store.clear();
        outcome
    }

    fn keep(&mut self) -> anyhow::Result<ExitCode> {
        if self.worker.is_none() {
            self.start().context("cannot start a worker")?;
        }
        loop {
            if let Next::End(code) = self.turn()? {
                return Ok(code);
            }
        }
    }

    fn words(&self) -> Words {
        Words {
            pid: std::process::id(),
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
            die_together: self.setup.die_together,
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let mut worker = self.start_upgraded()?;
        self.brief(&mut worker);
        worker.say(Unsaid::Record(FromKeeper::Begin));
        if self.ending {
            worker.say(Unsaid::Record(FromKeeper::Stop));
        }
        self.worker = Some(worker);
        Ok(())
    }

    /// Tells a worker what is held, and who holds it.
    fn brief(&self, worker: &mut Worker) {
        self.store.keys().for_each(|key| worker.say(Unsaid::Restore(key.clone())));
        worker.say(Unsaid::Record(FromKeeper::Keeper(self.words())));
    }

    /// Sleeps until something happens, and takes care of it.
    fn turn(&mut self) -> anyhow::Result<Next> {
        let Happened { signalled, told, ended, heir } =
            self.wait().context("cannot wait for the worker")?;
        if signalled && let Next::End(code) = self.take_signals() {
            return Ok(Next::End(code));
        }
        if told || ended {
            // A dead worker's last words count.
            self.hear();
        }
        if !ended {
            self.leave_untold()?;
        }
        let promoted = self.attend_heir(heir);
        // One that has retired meanwhile is none of that worker any more.
        if ended && !promoted {
            return self.bury();
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
        self.watch();
        self.hurry()?;
        if let Some(worker) = &mut self.worker
            && let Err(error) = worker.speak(&self.store)
        {
            tracing::error!("killing the worker, it cannot be told what is held: {error}");
            worker.kill();
        }
        Ok(Next::Poll)
    }

    /// Sleeps until something has happened.
    fn wait(&self) -> io::Result<Happened> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.setup.signals.as_fd(), PollFlags::IN)];
        let heir = self.heir.as_ref().map(|heir| &heir.worker);
        // Of each worker, its end and what it says: two places.
        for worker in self.worker.iter().chain(heir) {
            fds.push(PollFd::from_borrowed_fd(worker.ended(), PollFlags::IN));
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, !worker.silent);
            wanted.set(PollFlags::OUT, worker.has_unsaid());
            // Of one that is silent only the end counts.
            let said = if wanted.is_empty() { worker.ended() } else { worker.link() };
            fds.push(PollFd::from_borrowed_fd(said, wanted));
        }
        for worker in &self.retired {
            fds.push(PollFd::from_borrowed_fd(worker.ended(), PollFlags::IN));
        }
        let next = [self.start_at, self.setup.manager.next(), self.end_by.map(EndBy::at)];
        let next = next.into_iter().flatten().min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let next = if self.worker.is_some() { 3 } else { 1 };
        let (told, ended) = (self.worker.is_some() && is(2), self.worker.is_some() && is(1));
        let heir = if heir.is_some() { (is(next + 1), is(next)) } else { (false, false) };
        Ok(Happened { signalled: is(0), told, ended, heir })
    }

    /// Asks the worker when the service manager wants to know; one that does not answer is killed
    /// and replaced, before the manager would take that for our own silence.
    fn watch(&mut self) {
        let Some(worker) = &mut self.worker else {
            return self.setup.manager.pause(Instant::now());
        };
        if !worker.ready {
            // One that does not get ready is the manager's to judge.
            return self.setup.manager.skip(Instant::now());
        }
        match self.setup.manager.due(Instant::now()) {
            Due::Ask => worker.say(Unsaid::Record(FromKeeper::Ping)),
            Due::Hangs if !self.ending && !worker.ending => {
                tracing::error!(pid = worker.pid(), "killing the worker, it does not answer");
                worker.kill();
            }
            Due::Hangs | Due::Nothing => {}
        }
    }

    fn take_signals(&mut self) -> Next {
        let mut bytes = [0; 16];
        let count = rustix::io::read(&self.setup.signals, &mut bytes).unwrap_or(0);
        let again = self.ending || count > 1;
        self.ending = true;
        self.setup.manager.stopping();
        match &mut self.worker {
            Some(worker) if again => {
                worker.kill();
                Next::End(ExitCode::from(IMPATIENT))
            }
            Some(worker) => {
                worker.say(Unsaid::Record(FromKeeper::Stop));
                self.stop_heir();
                Next::Poll
            }
            None => Next::End(ExitCode::FAILURE),
        }
    }

    fn hear(&mut self) {
        while let Some(worker) = &mut self.worker {
            let (record, fds) = match worker.listen() {
                Ok(Some(heard)) => heard,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("killing the worker, it cannot be understood: {error}");
                    worker.kill();
                    worker.silent = true;
                    break;
                }
            };
            let done = |seq, problem| Unsaid::Record(FromKeeper::Done { seq, problem });
            match record {
                FromWorker::Hold { seq, what } => {
                    let fds = fds.map_err(|lacking| lacking.to_string());
                    let problem = fds.and_then(|fds| self.store.hold(what, fds)).err();
                    if let Some(problem) = &problem {
                        tracing::error!("something is not held: {problem}");
                    }
                    worker.say(done(seq, problem));
                }
                FromWorker::Forget { seq, key } => {
                    self.store.forget(&key);
                    worker.say(done(seq, None));
                }
                FromWorker::Ready => {
                    self.setup.manager.ready();
                    worker.ready = true;
                    self.served = true;
                    self.proven();
                    if let Some(ready) = self.setup.ready.take()
                        && let Err(error) = tell_ready(&ready)
                    {
                        tracing::warn!("--ready-fd cannot be written: {error}");
                    }
                }
                FromWorker::Ending => {
                    worker.ending = true;
                    self.setup.manager.stopping();
                }
                FromWorker::Pong => self.setup.manager.well(),
                FromWorker::Succeed { seq, binary } => {
                    let fds = fds.map_err(|lacking| lacking.to_string());
                    let problem = fds.and_then(|fds| self.succeed(binary, fds)).err();
                    self.say(done(seq, problem));
                }
                FromWorker::Yield { seq } => {
                    let problem = self.name_heir().err();
                    self.say(done(seq, problem));
                }
                FromWorker::Abandon { seq } => self.abandon(seq),
            }
        }
    }

    /// The worker has ended.
    fn bury(&mut self) -> anyhow::Result<Next> {
        let Some(mut worker) = self.worker.take() else { return Ok(Next::Poll) };
        if let Some(worker) = self.inherit(&mut worker) {
            self.worker = Some(worker);
            return Ok(Next::Poll);
        }
        let status = worker.reap().context("cannot tell how the worker ended")?;
        let how = words(status);
        if worker.ending || self.ending || !self.served {
            if !status.is_none_or(|status| status.success()) && self.served {
                tracing::error!("the worker {how} while it was ending");
            }
            return Ok(Next::End(exit_code(status, worker.ending)));
        }
        if !worker.ready {
            self.disproven();
        }
        let pause = self.backoff.died(worker.since.elapsed());
        self.restarts += 1;
        let pause_ms = pause.as_millis() as u64;
        let (pid, restarts) = (worker.pid(), self.restarts);
        tracing::error!(pid, restarts, pause_ms, "the worker {how}; another one is started");
        self.last_exit = Some(how);
        self.start_at = Some(Instant::now() + pause);
        Ok(Next::Poll)
    }
}

/// The worker's code as ours; nobody is told that of another's child, which may have said that it
/// ends in order.
fn exit_code(status: Option<ExitStatus>, in_order: bool) -> ExitCode {
    match status.map(|status| status.code()) {
        None if in_order => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
        Some(code) => code.and_then(|c| u8::try_from(c).ok()).map_or(ExitCode::FAILURE, Into::into),
    }
}

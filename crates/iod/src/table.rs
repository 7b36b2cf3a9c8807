//! The disks of a process, and who may do what to which of them now.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model::report::{DiskState, Stats};
use model::rpc::{DiskReply, RpcError, code};
use model::spec::DiskSpec;

use crate::error::failed;
use crate::export::{Export, ExportError};
use crate::lifecycle::{Begin, Phase, Refused, Rest, Verb};
use crate::limits::check_open_files;
use crate::open::reported;
use crate::pool::Pool;
use crate::stats::{self, Detail};

/// Answer to every verb from then on.
const CLOSING: &str = "the process is shutting down";

/// All disks by id. Verbs on different disks run side by side; on one disk, one at a time.
#[derive(Debug)]
pub struct Table {
    pool: Arc<Pool>,
    started: Instant,
    /// Open files that the process may have.
    open_files: u64,
    disks: Mutex<Disks>,
    /// A verb has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Disks {
    by_id: BTreeMap<String, Entry>,
    /// All disks go, and callers may do nothing to them any more.
    closing: bool,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    queues: u16,
    /// Absent while it is being attached.
    export: Option<Arc<Export>>,
}

impl Table {
    /// An empty table whose disks run on `pool`; `open_files` is the limit of the process.
    pub fn new(pool: Arc<Pool>, open_files: u64) -> Self {
        let (disks, ended) = (Mutex::default(), Condvar::new());
        Self { pool, started: Instant::now(), open_files, disks, ended }
    }

    fn disks(&self) -> MutexGuard<'_, Disks> {
        // Entries are changed whole: a panic elsewhere leaves them whole.
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a disk and listens; activates it if the spec says so. When this returns, front-ends
    /// can connect.
    ///
    /// # Errors
    /// The id is taken, too few open files are left, the image or the socket cannot be had.
    pub fn attach(&self, spec: DiskSpec) -> Result<DiskReply, RpcError> {
        let id = spec.id.clone();
        let goal = if spec.activate { Rest::Active } else { Rest::Attached };
        self.admit(&spec, Phase::Busy(Verb::Attach, goal))?;
        let opened = Export::attach(spec, Arc::clone(&self.pool));
        let mut disks = self.disks();
        let outcome = match opened {
            Ok(export) => {
                if let Some(entry) = disks.by_id.get_mut(&id) {
                    entry.export = Some(Arc::clone(&export));
                }
                self.end(&mut disks, &id, true);
                Ok(reply(&export))
            }
            Err(error) => {
                self.end(&mut disks, &id, false);
                Err(failed(error))
            }
        };
        drop(disks);
        outcome
    }

    fn admit(&self, spec: &DiskSpec, phase: Phase) -> Result<(), RpcError> {
        let mut disks = self.disks();
        if disks.closing {
            return Err(wrong_state(CLOSING));
        }
        if let Some(entry) = disks.by_id.get(&spec.id) {
            let refused = entry.phase.begin(Verb::Attach).err().unwrap_or(Refused::Exists);
            return Err(wrong_state(refused));
        }
        let others = disks.by_id.values().map(|entry| entry.queues);
        check_open_files(self.open_files, others, spec.queues).map_err(failed)?;
        let entry = Entry { phase, queues: spec.queues, export: None };
        disks.by_id.insert(spec.id.clone(), entry);
        Ok(())
    }

    /// Takes the lock of a disk and serves it.
    ///
    /// # Errors
    /// No such disk, a verb at work, or an image that somebody else uses.
    pub fn activate(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Activate, Export::activate)
    }

    /// Drains a disk, flushes it and releases its lock.
    ///
    /// # Errors
    /// No such disk, a verb at work, or a flush that failed; the lock is released all the same.
    pub fn deactivate(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Deactivate, Export::deactivate)
    }

    /// Drains a disk and holds it: its lock is kept, its front-end stays and waits.
    ///
    /// # Errors
    /// No such disk, a verb at work, a disk that is not active.
    pub fn pause(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Pause, Export::pause)
    }

    /// Serves a paused disk again.
    ///
    /// # Errors
    /// No such disk, a verb at work, a disk that is not active.
    pub fn resume(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Resume, |export| export.resume())
    }

    /// Takes a new size and tells the guest.
    ///
    /// # Errors
    /// No such disk, a verb at work, a disk that is not active, or a size that the disk cannot have.
    pub fn resize(&self, id: &str, size: Option<u64>) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Resize, |export| export.resize(size))
    }

    /// Deactivates a disk, closes its socket and forgets it.
    ///
    /// # Errors
    /// No such disk, a verb at work, or a flush that failed; the disk is gone all the same.
    pub fn detach(&self, id: &str) -> Result<(), RpcError> {
        self.verb(id, Verb::Detach, Export::detach).map(drop)
    }

    fn verb(
        &self,
        id: &str,
        verb: Verb,
        work: impl FnOnce(&Arc<Export>) -> Result<(), ExportError>,
    ) -> Result<DiskReply, RpcError> {
        let disks = self.disks();
        if disks.closing {
            return Err(wrong_state(CLOSING));
        }
        self.carry_out(disks, id, verb, work)
    }

    /// Begins a verb under the lock that its caller has looked under, and ends it.
    fn carry_out(
        &self,
        mut disks: MutexGuard<'_, Disks>,
        id: &str,
        verb: Verb,
        work: impl FnOnce(&Arc<Export>) -> Result<(), ExportError>,
    ) -> Result<DiskReply, RpcError> {
        let entry = disks.by_id.get_mut(id).ok_or_else(|| no_such_disk(id))?;
        let begin = entry.phase.begin(verb).map_err(wrong_state)?;
        let export = entry.export.clone().ok_or_else(|| no_such_disk(id))?;
        let Begin::Work(phase) = begin else { return Ok(reply(&export)) };
        entry.phase = phase;
        drop(disks);
        let outcome = work(&export);
        self.end(&mut self.disks(), id, outcome.is_ok());
        outcome.map(|()| reply(&export)).map_err(failed)
    }

    fn end(&self, disks: &mut Disks, id: &str, succeeded: bool) {
        if let Some(entry) = disks.by_id.get_mut(id) {
            match entry.phase.end(succeeded) {
                Some(phase) => entry.phase = phase,
                None => {
                    disks.by_id.remove(id);
                }
            }
        }
        self.ended.notify_all();
    }

    /// What the process and its disks have done, or one disk of it.
    ///
    /// # Errors
    /// No such disk.
    pub fn stats(&self, id: Option<&str>) -> Result<Stats, RpcError> {
        let disks = self.disks();
        if let Some(id) = id.filter(|id| !disks.by_id.contains_key(*id)) {
            return Err(no_such_disk(id));
        }
        let exports: Vec<_> = disks.by_id.values().filter_map(|one| one.export.clone()).collect();
        drop(disks);
        let wanted = |one: &str| id.is_none_or(|id| one == id);
        let detail = if id.is_some() { Detail::Everything } else { Detail::Counts };
        Ok(stats::process(self.started, &self.pool, &exports, wanted, detail))
    }

    /// Detaches everything. Waits for verbs that are at work, and refuses all others.
    pub fn shut_down(&self) {
        let mut disks = self.disks();
        disks.closing = true;
        let ids: Vec<_> = disks.by_id.keys().cloned().collect();
        for entry in disks.by_id.values() {
            // All of them drain from now on, whoever is waited for first.
            if let Some(export) = &entry.export {
                export.hang_up();
            }
        }
        drop(disks);
        std::thread::scope(|scope| {
            for id in &ids {
                // A thread for each: one whose storage hangs waits for its deadline, and any
                // number of those must not hold up the others.
                let work = || self.detach_at_last(id);
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    self.detach_at_last(id);
                }
            }
        });
    }

    fn detach_at_last(&self, id: &str) {
        let mut disks = self.disks();
        while let Some(Phase::Busy(..)) = disks.by_id.get(id).map(|entry| entry.phase) {
            disks = self.ended.wait(disks).unwrap_or_else(PoisonError::into_inner);
        }
        // Under the same lock, so that no other verb can come between.
        if let Err(error) = self.carry_out(disks, id, Verb::Detach, Export::detach)
            && error.code != code::NO_SUCH_DISK
        {
            tracing::error!(disk = id, "detached with an error: {}", error.message);
        }
    }
}

fn reply(export: &Export) -> DiskReply {
    let geometry = reported(export.geometry());
    DiskReply { id: export.spec().id.clone(), state: state(export), geometry }
}

/// A disk's state as it is reported.
pub(crate) fn state(export: &Export) -> DiskState {
    if export.stuck().is_some() {
        return DiskState::Stuck;
    }
    match (export.is_active(), export.is_paused(), export.waiting()) {
        (false, ..) => DiskState::Attached,
        (true, true, _) => DiskState::Paused,
        (true, false, 0) => DiskState::Active,
        (true, false, _) => DiskState::Waiting,
    }
}

fn no_such_disk(id: &str) -> RpcError {
    let message = format!("no disk {id:?} is attached; `stats` lists those that are");
    RpcError { code: code::NO_SUCH_DISK, message }
}

fn wrong_state(refused: impl std::fmt::Display) -> RpcError {
    RpcError { code: code::WRONG_STATE, message: refused.to_string() }
}

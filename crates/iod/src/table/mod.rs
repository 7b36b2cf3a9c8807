//! The disks of a process, and who may do what to which of them now.
//!
//! A verb that has changed a disk has it held (`crate::held`) before its caller is answered.

mod exports;
mod restore;
mod upgrade;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model::report::{DiskState, Stats};
use model::rpc::{DiskReply, RpcError, code};
use model::spec::{Caps, DiskSpec};

use crate::error::failed;
use crate::export::{Export, ExportError};
use crate::held::{Door, Held, HoldError};
use crate::lifecycle::{Begin, Phase, Refused, Rest, Verb};
use crate::limits::check_open_files;
use crate::metrics::{Source, page};
use crate::open::reported;
use crate::pool::Pool;
use crate::stats::{self, Detail};
pub(crate) use restore::RefusedDisk;

/// Answer to every verb from then on.
const CLOSING: &str = "the process is shutting down";

/// All disks by id. Verbs on different disks run side by side; on one disk, one at a time.
#[derive(Debug)]
pub struct Table {
    pool: Arc<Pool>,
    started: Instant,
    /// Open files that the process may have.
    open_files: u64,
    door: Door,
    disks: Mutex<Disks>,
    /// A verb has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Disks {
    by_id: BTreeMap<String, Entry>,
    /// All disks go, and callers may do nothing to them any more.
    closing: bool,
    /// Another process is about to go on with everything, or does so.
    upgrading: bool,
    handed_over: bool,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    queues: u16,
    /// Absent while it is being opened, and where it cannot be.
    export: Option<Arc<Export>>,
    /// Held, and not to be had again as it was.
    refused: Option<Arc<RefusedDisk>>,
    /// What is held of it is older than it is: a verb did what it was to do, and could not have
    /// that held.
    unheld: bool,
}

impl Table {
    /// An empty table whose disks run on `pool`, and of which nobody is told; `open_files` is the
    /// limit of the process.
    pub fn new(pool: Arc<Pool>, open_files: u64) -> Self {
        Self::with(pool, open_files, Door::default())
    }

    /// The same under a keeper, who is told of all disks.
    pub fn with(pool: Arc<Pool>, open_files: u64, door: Door) -> Self {
        let (disks, ended) = (Mutex::default(), Condvar::new());
        Self { pool, started: Instant::now(), open_files, door, disks, ended }
    }

    /// The way to the keeper.
    pub(crate) fn door(&self) -> &Door {
        &self.door
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
        let attached = Export::open(spec, Arc::clone(&self.pool)).and_then(|export| {
            self.show(&id, &export);
            self.serve_new(&export).map(|()| export)
        });
        self.end(&mut self.disks(), &id, attached.is_ok());
        attached.map(|export| reply(&export)).map_err(failed)
    }

    /// From here on a disk that is being attached can be looked at.
    fn show(&self, id: &str, export: &Arc<Export>) {
        let mut disks = self.disks();
        let closing = disks.closing;
        if let Some(entry) = disks.by_id.get_mut(id) {
            entry.export = Some(Arc::clone(export));
            entry.refused = None;
            if closing {
                export.hang_up();
            }
        }
    }

    /// Activates a new disk if its spec says so, listens, has it held and serves it. A failure
    /// leaves nothing behind.
    fn serve_new(&self, export: &Arc<Export>) -> Result<(), ExportError> {
        if export.spec().activate {
            export.activate_in_time()?;
        }
        let serving = export.listen().and_then(|()| self.hold(export));
        let serving = serving.and_then(|()| export.serve(export.source(), None));
        if serving.is_err() {
            // Nothing was written, so there is nothing to flush.
            let _ = export.detach();
            self.forget(&export.spec().id);
        }
        serving
    }

    /// Has a disk held as it is now.
    fn hold(&self, export: &Export) -> Result<(), ExportError> {
        let kept = export.kept();
        let kept = kept.map_err(|source| ExportError::Os { action: "share sockets", source })?;
        Ok(self.door.hold(&export.held(), kept)?)
    }

    fn forget(&self, id: &str) {
        if let Err(error) = self.door.forget(id) {
            let cause = crate::error::text(&error);
            tracing::error!(disk = id, "a new worker would look for it: {cause}");
        }
    }

    /// Detaches a disk; a worker that dies in the middle leaves the rest to its successor.
    fn leave(&self, export: &Arc<Export>) -> Result<(), ExportError> {
        let held = Held { leaving: true, ..export.held() };
        let told = export.kept().map_err(HoldError::from).and_then(|k| self.door.hold(&held, k));
        if let Err(error) = told {
            tracing::error!(disk = held.spec.id, "{}", crate::error::text(&error));
        }
        let detached = export.detach();
        self.forget(&held.spec.id);
        detached
    }

    fn admit(&self, spec: &DiskSpec, phase: Phase) -> Result<(), RpcError> {
        let mut disks = self.disks();
        disks.open()?;
        if let Some(entry) = disks.by_id.get(&spec.id) {
            let refused = entry.phase.begin(Verb::Attach).err().unwrap_or(Refused::Exists);
            return Err(wrong_state(refused));
        }
        let others = disks.by_id.values().map(|entry| entry.queues);
        check_open_files(self.open_files, others, spec.queues).map_err(failed)?;
        let entry =
            Entry { phase, queues: spec.queues, export: None, refused: None, unheld: false };
        disks.by_id.insert(spec.id.clone(), entry);
        Ok(())
    }

    /// Takes the lock of a disk and serves it.
    ///
    /// # Errors
    /// No such disk, a verb at work, or an image that somebody else uses.
    pub fn activate(&self, id: &str) -> Result<DiskReply, RpcError> {
        if let Some(outcome) = self.try_again(id) {
            return outcome;
        }
        self.verb(id, Verb::Activate, Export::activate_in_time)
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

    /// Caps what the guest may do with a disk from now on.
    ///
    /// # Errors
    /// No such disk, or a verb at work.
    pub fn caps(&self, id: &str, caps: Option<Caps>) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Caps, |export| {
            export.set_caps(caps);
            Ok(())
        })
    }

    /// Deactivates a disk, closes its socket and forgets it.
    ///
    /// # Errors
    /// No such disk, a verb at work, or a flush that failed; the disk is gone all the same.
    pub fn detach(&self, id: &str) -> Result<(), RpcError> {
        let disks = self.disks();
        disks.open()?;
        self.carry_out_detach(disks, id)
    }

    fn verb(
        &self,
        id: &str,
        verb: Verb,
        work: impl FnOnce(&Arc<Export>) -> Result<(), ExportError>,
    ) -> Result<DiskReply, RpcError> {
        let disks = self.disks();
        disks.open()?;
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
        // Asked again because it could not be held: that is left to be done.
        let again = begin == Begin::Nothing && entry.unheld;
        let phase = match (begin, entry.phase) {
            (Begin::Work(phase), _) => phase,
            (Begin::Nothing, Phase::At(rest)) if again => Phase::Busy(verb, rest),
            (Begin::Nothing, _) => {
                drop(disks);
                // It is where it was to be, but what was left with the storage may still be
                // written.
                let free = export.refuse_stuck(verb.method());
                return free.map(|()| reply(&export)).map_err(failed);
            }
        };
        entry.phase = phase;
        drop(disks);
        let worked = if again { export.refuse_stuck(verb.method()) } else { work(&export) };
        // What a verb took away it has taken away, even if it failed.
        let held = self.hold(&export);
        let mut disks = self.disks();
        if let Some(entry) = disks.by_id.get_mut(id) {
            entry.unheld = held.is_err();
        }
        // Where the disk rests is what has been done to it, whoever knows of that.
        self.end(&mut disks, id, worked.is_ok());
        drop(disks);
        worked.and(held).map(|()| reply(&export)).map_err(|error| match error {
            ExportError::Nbd(refused) => wrong_state(refused),
            error => failed(error),
        })
    }

    fn carry_out_detach(&self, mut disks: MutexGuard<'_, Disks>, id: &str) -> Result<(), RpcError> {
        let mut given_up = false;
        let export = loop {
            let Some(entry) = disks.by_id.get_mut(id) else {
                // It was being attached, and that has ended.
                return if given_up { Ok(()) } else { Err(no_such_disk(id)) };
            };
            match (entry.phase.begin(Verb::Detach), &entry.export) {
                (Ok(Begin::Work(phase)), export) => {
                    entry.phase = phase;
                    break export.clone();
                }
                (Ok(Begin::Nothing), _) => return Ok(()),
                // Whatever it is busy with, it waits for the I/O of a dead process: not any more.
                (Err(_), Some(export)) if given_up || export.fence_since().is_some() => {
                    export.hang_up();
                    given_up = true;
                }
                (Err(_), None) if given_up => {}
                (Err(refused), _) => return Err(wrong_state(refused)),
            }
            disks = self.ended.wait(disks).unwrap_or_else(PoisonError::into_inner);
        };
        drop(disks);
        let outcome = match &export {
            Some(export) => self.leave(export),
            None => self.leave_refused(id),
        };
        self.end(&mut self.disks(), id, true);
        outcome.map_err(failed)
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
        let refused: Vec<_> = disks.by_id.values().filter_map(|one| one.refused.clone()).collect();
        drop(disks);
        let wanted = |one: &str| id.is_none_or(|id| one == id);
        let detail = if id.is_some() { Detail::Everything } else { Detail::Counts };
        let mut stats = stats::process(self.started, &self.pool, &exports, wanted, detail);
        let refused = refused.iter().filter(|disk| wanted(&disk.held.spec.id));
        stats.disks.extend(refused.map(|disk| stats::refused(disk)));
        stats.disks.sort_by(|one, other| one.id.cmp(&other.id));
        stats.keeper = self.door.keeper().map(stats::keeper);
        Ok(stats)
    }

    /// What all of it has done, in the text format of OpenMetrics.
    pub fn metrics(&self) -> String {
        let disks = self.disks();
        let exports = disks.by_id.values().filter_map(|one| one.export.clone()).collect();
        drop(disks);
        // Without an id there is none that can be missing.
        let stats = self.stats(None);
        stats.map_or_else(|_| String::new(), |stats| page(&Source { stats, exports }))
    }

    /// Detaches everything. Waits for verbs that are at work, and refuses all others. Nothing is
    /// done where another process has taken over.
    pub fn shut_down(&self) {
        if !self.begin_end() {
            return;
        }
        let disks = self.disks();
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
        if let Err(error) = self.carry_out_detach(disks, id)
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

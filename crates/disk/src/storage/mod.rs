//! One storage below the files of many disks, which share it by weight.
//!
//! Each reactor has one dispatch queue for a storage ([`reactor_queue`]), which the channels of all
//! files on that storage use. A storage without a profile has none of this.
//!
//! Processes share a storage by a file ([`state_file`]), and wake each other by FIFOs ([`wakes`]).

mod error;
mod reactor_queue;
mod state_file;
#[cfg(test)]
mod tests;
mod wakes;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use memory::Mapping;
use reactor::Handle;
use share::{
    CELLS, DiskConfig, DiskId, DiskStats, Op, OpKind, Profile, ReactorId, Share, ShareStats,
    WaitReason,
};

pub use error::StorageError;
pub(crate) use reactor_queue::{Dispatched, Membership};
use state_file::StateFile;
use wakes::{Wake, Wakes};

/// Number of the only process of a storage.
const ONLY_PROCESS: u64 = 1;

/// One storage: a device, or a remote.
#[derive(Debug)]
pub struct Storage {
    share: Arc<Share<Mapping>>,
    /// Reactors with a dispatch queue, for wake-ups.
    reactors: Mutex<Vec<(ReactorId, Handle)>>,
    /// Other processes that share the storage.
    others: OnceLock<Others>,
}

/// Ways to the other processes of a storage. The thread ends before the membership.
#[derive(Debug)]
struct Others {
    wakes: Wakes,
    state_file: StateFile,
}

impl Storage {
    /// Creates a storage with this profile, which only this process uses.
    ///
    /// # Errors
    /// No memory is available, or the profile has a number outside of its range.
    pub fn new(profile: &Profile) -> Result<Arc<Self>, StorageError> {
        let memory = Mapping::sealed("ringway-share", CELLS as u64 * 8)?;
        let share = Share::open(memory, ONLY_PROCESS)?;
        share.update_profile(profile)?;
        Ok(Arc::new(Self { share, reactors: Mutex::default(), others: OnceLock::new() }))
    }

    /// Opens the storage on a device, which this process shares with all others that name the same
    /// folder. The folder lies on a memory file system. The profile is that of the processes that
    /// use the storage already, or `profile` if there is none.
    ///
    /// # Errors
    /// As [`Self::new`], and those of the file in the folder.
    pub fn open(folder: &Path, device: u64, profile: &Profile) -> Result<Arc<Self>, StorageError> {
        let open = |memory, process| {
            let share = Share::open(memory, process)?;
            share.release_process(process);
            if share.profile().is_err() {
                share.update_profile(profile)?;
            }
            Ok(share)
        };
        let (state_file, share) = StateFile::enter(folder, device, open)?;
        let storage = Arc::new(Self { share, reactors: Mutex::default(), others: OnceLock::new() });
        let path = state_file.fifo(state_file.process());
        let wakes = Wakes::start(&path, Arc::downgrade(&storage))
            .map_err(|source| StorageError::State { path, source })?;
        let _ = storage.others.set(Others { wakes, state_file });
        Ok(storage)
    }

    /// Replaces the profile for all processes. Requests from then on follow it.
    ///
    /// # Errors
    /// A number is outside of its range.
    pub fn set_profile(self: &Arc<Self>, profile: &Profile) -> Result<(), StorageError> {
        self.share.update_profile(profile)?;
        self.look_all();
        for process in self.share.other_processes() {
            self.wake(process, Wake::All);
        }
        Ok(())
    }

    /// Makes all channels of this process look, because the profile has changed.
    fn look_all(self: &Arc<Self>) {
        for (_, handle) in &*self.reactors() {
            let storage = Arc::clone(self);
            let _ = handle.send(move |context| reactor_queue::look_all(&storage, context));
        }
    }

    /// Adds a disk, which shares the storage with the others. Reports call it `name`.
    ///
    /// # Errors
    /// A number is outside of its range, or the storage has too many disks.
    pub fn add_disk(
        self: &Arc<Self>,
        name: &str,
        config: DiskConfig,
    ) -> Result<Arc<StorageDisk>, StorageError> {
        let id = self.share.add_disk(name, config)?;
        Ok(Arc::new(StorageDisk {
            storage: Arc::clone(self),
            id,
            refused: AtomicU64::new(0),
            refused_ns: AtomicU64::new(0),
        }))
    }

    fn reactors(&self) -> MutexGuard<'_, Vec<(ReactorId, Handle)>> {
        self.reactors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a reactor of any process look at its dispatch queue. One that has ended needs none.
    fn kick(self: &Arc<Self>, reactor: ReactorId) {
        if !self.kick_own(reactor) {
            self.wake(self.share.process_of(reactor), Wake::Reactor(reactor));
        }
    }

    /// Makes a reactor of this process look at its dispatch queue. Returns false if it has none.
    fn kick_own(self: &Arc<Self>, reactor: ReactorId) -> bool {
        let found = self.reactors().iter().find(|(id, _)| *id == reactor).map(|(_, it)| it.clone());
        if let Some(handle) = &found {
            let storage = Arc::clone(self);
            let _ = handle.send(move |context| reactor_queue::look(&storage, context));
        }
        found.is_some()
    }

    fn wake(&self, process: u64, wake: Wake) {
        if let Some(Others { wakes, state_file }) = self.others.get()
            && ![0, state_file.process()].contains(&process)
        {
            wakes.wake(process, || state_file.fifo(process), wake);
        }
    }

    /// Removes the disks and reactors of processes that have ended.
    fn release_ended(&self) {
        if let Some(Others { state_file, .. }) = self.others.get() {
            let others = self.share.other_processes();
            let release = |process| self.share.release_process(process);
            if !others.is_empty() {
                state_file.release_ended(others, release);
            }
        }
    }
}

/// Operation on the metadata of an image, which nothing schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataOp {
    /// Read of so many bytes.
    Read(u64),
    /// Write of so many bytes.
    Write(u64),
    /// Flush.
    Flush,
}

/// One disk on a storage. It leaves the storage on drop.
#[derive(Debug)]
pub struct StorageDisk {
    storage: Arc<Storage>,
    id: DiskId,
    /// Requests that the scheduler refused and that wait in their channels, and the time for which
    /// such requests waited, in nanoseconds.
    refused: AtomicU64,
    refused_ns: AtomicU64,
}

impl StorageDisk {
    /// Changes weight and floors. Requests that wait follow them at once.
    ///
    /// # Errors
    /// A number is outside of its range.
    pub fn configure(&self, config: DiskConfig) -> Result<(), StorageError> {
        Ok(self.storage.share.update_disk(self.id, config)?)
    }

    /// Returns what the scheduler did with the disk's requests.
    pub fn stats(&self) -> DiskStats {
        let stats = self.storage.share.disk_stats(self.id);
        DiskStats {
            held: stats.held + self.refused.load(Ordering::Relaxed),
            waited_ns: stats.waited_ns + self.refused_ns.load(Ordering::Relaxed),
            ..stats
        }
    }

    /// Returns the state of the storage.
    pub fn storage_stats(&self) -> ShareStats {
        self.storage.share.stats()
    }

    /// Charges the disk for an operation that was not scheduled.
    pub(crate) fn charge(&self, op: MetadataOp) {
        let op = match op {
            MetadataOp::Read(bytes) => Op::new(OpKind::Read, bytes),
            MetadataOp::Write(bytes) => Op::new(OpKind::Write, bytes),
            MetadataOp::Flush => Op::new(OpKind::Flush, 0),
        };
        self.storage.share.charge(self.id, op);
    }

    /// Counts a request that the scheduler refused.
    pub(crate) fn begin_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a refused request's wait.
    pub(crate) fn end_refused(&self, ns: u64) {
        self.refused.fetch_sub(1, Ordering::Relaxed);
        self.refused_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the name of the disk for which requests of this one wait. `None` if none waits, or if
    /// this disk alone is busy.
    pub fn waits_behind(&self) -> Option<String> {
        match self.storage.share.wait_reason(self.id)? {
            WaitReason::Behind(other) => {
                Some(self.storage.share.disk_name(other)).filter(|name| !name.is_empty())
            }
            WaitReason::Depth { .. } => None,
        }
    }
}

impl Drop for StorageDisk {
    fn drop(&mut self) {
        self.storage.share.remove_disk(self.id);
    }
}

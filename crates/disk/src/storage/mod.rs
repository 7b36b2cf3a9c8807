//! One storage below the files of many disks, which share it by weight.
//!
//! Each reactor has one dispatch queue for a storage ([`reactor_queue`]), which the channels of all
//! files on that storage use. A storage without a profile has none of this.

mod error;
mod reactor_queue;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memory::Mapping;
use reactor::Handle;
use share::{
    CELLS, DiskConfig, DiskId, DiskStats, Op, OpKind, Profile, ReactorId, Share, ShareStats,
    WaitReason,
};

pub use error::StorageError;
pub(crate) use reactor_queue::{Dispatched, Membership};

/// Number of this process among those of a storage. One process uses a storage for now.
const PROCESS: u64 = 1;

/// One storage: a device, or a remote.
#[derive(Debug)]
pub struct Storage {
    share: Arc<Share<Mapping>>,
    /// Reactors with a dispatch queue, for wake-ups.
    reactors: Mutex<Vec<(ReactorId, Handle)>>,
    /// Names of the disks, for reports.
    names: Mutex<BTreeMap<DiskId, String>>,
}

impl Storage {
    /// Creates a storage with this profile.
    ///
    /// # Errors
    /// No memory is available, or the profile has a number outside of its range.
    pub fn new(profile: &Profile) -> Result<Arc<Self>, StorageError> {
        let memory = Mapping::sealed("ringway-share", CELLS as u64 * 8)?;
        let share = Share::open(memory, PROCESS)?;
        share.update_profile(profile)?;
        Ok(Arc::new(Self { share, reactors: Mutex::default(), names: Mutex::default() }))
    }

    /// Replaces the profile. Requests from then on follow it.
    ///
    /// # Errors
    /// A number is outside of its range.
    pub fn set_profile(self: &Arc<Self>, profile: &Profile) -> Result<(), StorageError> {
        self.share.update_profile(profile)?;
        for (_, handle) in &*self.reactors() {
            let storage = Arc::clone(self);
            let _ = handle.send(move |context| reactor_queue::look_all(&storage, context));
        }
        Ok(())
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
        let id = self.share.add_disk(config)?;
        self.names().insert(id, name.into());
        Ok(Arc::new(StorageDisk {
            storage: Arc::clone(self),
            id,
            refused: AtomicU64::new(0),
            refused_ns: AtomicU64::new(0),
        }))
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<DiskId, String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reactors(&self) -> MutexGuard<'_, Vec<(ReactorId, Handle)>> {
        self.reactors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a reactor look at its dispatch queue. One that has ended needs none.
    fn kick(self: &Arc<Self>, reactor: ReactorId) {
        let found = self.reactors().iter().find(|(id, _)| *id == reactor).map(|(_, it)| it.clone());
        if let Some(handle) = found {
            let storage = Arc::clone(self);
            let _ = handle.send(move |context| reactor_queue::look(&storage, context));
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
            WaitReason::Behind(other) => self.storage.names().get(&other).cloned(),
            WaitReason::Depth { .. } => None,
        }
    }
}

impl Drop for StorageDisk {
    fn drop(&mut self) {
        self.storage.names().remove(&self.id);
        self.storage.share.remove_disk(self.id);
    }
}

//! One storage below the files of many disks, which share it by weight.
//!
//! Each reactor has one dispatch queue for a storage ([`reactor_queue`]), which the channels of all
//! files on that storage use. A storage without a profile has none of this.

mod error;
mod reactor_queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memory::Mapping;
use reactor::Handle;
use share::{CELLS, DiskConfig, DiskId, Profile, ReactorId, Share, ShareCounts};

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
        Ok(Arc::new(Self { share, reactors: Mutex::default() }))
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

    /// Adds a disk, which shares the storage with the others.
    ///
    /// # Errors
    /// A number is outside of its range, or the storage has too many disks.
    pub fn add_disk(
        self: &Arc<Self>,
        config: DiskConfig,
    ) -> Result<Arc<StorageDisk>, StorageError> {
        let id = self.share.add_disk(config)?;
        Ok(Arc::new(StorageDisk { storage: Arc::clone(self), id }))
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

/// One disk on a storage. It leaves the storage on drop.
#[derive(Debug)]
pub struct StorageDisk {
    storage: Arc<Storage>,
    id: DiskId,
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
    pub fn counts(&self) -> ShareCounts {
        self.storage.share.disk_counts(self.id)
    }
}

impl Drop for StorageDisk {
    fn drop(&mut self) {
        self.storage.share.remove_disk(self.id);
    }
}

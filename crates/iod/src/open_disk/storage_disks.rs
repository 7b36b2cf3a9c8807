//! Storages below the files of a disk, which it shares with other disks.
//!
//! A storage is a whole device, by its number: the disk below partitions and logical volumes. It has a scheduler if the folder of an image on it has a
//! profile (`ringway calibrate --store`). Processes with the same folder ([`share_storages_in`]) share
//! it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use disk::{FileDisk, Storage, StorageDisk, StorageError};
use model::calibration::StorageProfile;
use model::share::DiskShare;
use model::spec::FileRef;
use share::{DiskConfig, Profile};

use super::model_storage::ModelStorage;
use crate::error::error_chain;

/// Storages of this process by the number of their whole device.
static STORAGES: Mutex<BTreeMap<u64, Weak<Storage>>> = Mutex::new(BTreeMap::new());

/// Folder by which processes share storages. `None` inside if this process shares with no other.
static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();

/// One disk on all storages that its files are on.
#[derive(Debug, Default)]
pub(crate) struct StorageDisks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Id of the disk, for reports.
    id: String,
    share: DiskShare,
    by_device: BTreeMap<u64, Arc<StorageDisk>>,
    /// Model that the disk is on, and the disk there if it is shared.
    on_model: Option<(Arc<ModelStorage>, Option<Arc<StorageDisk>>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StorageDisks {
    /// Creates the state of a disk with this id and share.
    pub(crate) fn new(id: &str, share: Option<DiskShare>) -> Arc<Self> {
        let (id, share) = (id.into(), share.unwrap_or_default());
        Arc::new(Self(Mutex::new(State { id, share, ..State::default() })))
    }

    /// Lets the scheduler of its storage dispatch the requests of a file, if there is one. Returns a
    /// note if there is a profile that cannot be used.
    pub(crate) fn schedule(&self, file: &FileDisk, name: &FileRef) -> Option<String> {
        let device = calibrate::whole_device(file.identity().ok()?.device);
        let mut state = lock(&self.0);
        let found = match state.by_device.get(&device) {
            Some(present) => Ok(Arc::clone(present)),
            None => match storage(device, name)? {
                Ok(storage) => storage
                    .add_disk(&state.id, config(state.share))
                    .map_err(|error| error.to_string()),
                Err(note) => Err(note),
            },
        };
        match found {
            Ok(storage_disk) => {
                state.by_device.insert(device, Arc::clone(&storage_disk));
                file.share_storage(storage_disk);
                None
            }
            Err(note) => Some(note),
        }
    }

    /// Lets the scheduler of a model dispatch the requests of a disk, if the model has a profile. Returns
    /// a note if it takes no more disks.
    pub(crate) fn schedule_on_model(
        &self,
        file: &FileDisk,
        model: Arc<ModelStorage>,
    ) -> Option<String> {
        let mut state = lock(&self.0);
        let add = |storage: &Arc<Storage>| storage.add_disk(&state.id, config(state.share));
        let added = model.storage.as_ref().map(add).transpose();
        let (storage_disk, note) = match added {
            Ok(storage_disk) => (storage_disk, None),
            Err(error) => (None, Some(format!("the disk does not share its model: {error}"))),
        };
        storage_disk.iter().for_each(|storage_disk| file.share_storage(Arc::clone(storage_disk)));
        state.on_model = Some((model, storage_disk));
        note
    }

    /// Schedules a file that had no storage with a profile when it was opened. Returns whether it is
    /// scheduled from now on, and was not before.
    pub(crate) fn join(&self, file: &FileDisk, name: &FileRef) -> bool {
        if file.shares_storage() {
            return false;
        }
        // An attach has told its notes.
        let _ = self.schedule(file, name);
        file.shares_storage()
    }

    /// Changes the share of the disk on all its storages. It was validated.
    pub(crate) fn set_share(&self, share: DiskShare) {
        let mut state = lock(&self.0);
        state.share = share;
        for storage_disk in state.all() {
            if let Err(error) = storage_disk.configure(config(share)) {
                tracing::error!("the share of a disk cannot be changed: {error}");
            }
        }
    }

    /// Returns the share, and the disk on its model or on the storage of its top file. `None` without a
    /// scheduler.
    pub(crate) fn report(&self, top: Option<&FileDisk>) -> Option<(DiskShare, Arc<StorageDisk>)> {
        let state = lock(&self.0);
        let on_model = state.on_model.as_ref().and_then(|(_, disk)| disk.as_ref());
        let found = on_model.or_else(|| top?.storage_disk())?;
        Some((state.share, Arc::clone(found)))
    }

    /// Returns the share.
    pub(crate) fn share(&self) -> DiskShare {
        lock(&self.0).share
    }
}

impl State {
    /// Returns the disk on all its storages.
    fn all(&self) -> impl Iterator<Item = &Arc<StorageDisk>> {
        let on_model = self.on_model.iter().filter_map(|(_, disk)| disk.as_ref());
        self.by_device.values().chain(on_model)
    }
}

/// Converts a share to the scheduler's form.
fn config(share: DiskShare) -> DiskConfig {
    DiskConfig {
        weight: share.weight.into(),
        floor_requests: share.floor_iops.unwrap_or(0),
        floor_bytes: share.floor_bytes.unwrap_or(0),
    }
}

/// Returns the storage on a device. `None` if it has no profile; a note if its profile cannot be used.
fn storage(device: u64, name: &FileRef) -> Option<Result<Arc<Storage>, String>> {
    if let Some(present) = lock(&STORAGES).get(&device).and_then(Weak::upgrade) {
        return Some(Ok(present));
    }
    let used = use_profile(name.path()?.parent()?, device).transpose()?;
    Some(used.map(|(_, storage)| storage))
}

/// Sets the folder by which this process shares storages with others, once, before the first disk is
/// opened. `None`: it shares with no other.
pub(crate) fn share_storages_in(folder: Option<PathBuf>) {
    let _ = FOLDER.set(folder);
}

/// Opens the storage on a device, shared with other processes if that is possible.
fn open_storage(device: u64, profile: &Profile) -> Result<Arc<Storage>, StorageError> {
    if let Some(folder) = FOLDER.get().and_then(Option::as_ref) {
        match Storage::open(folder, device, profile) {
            Err(error @ (StorageError::State { .. } | StorageError::Memory(_))) => {
                let error = error_chain(&error);
                tracing::warn!(
                    "{error}; disks of other processes have no weights beside this one's"
                );
            }
            other => return other,
        }
    }
    Storage::new(profile)
}

/// Makes the storage on a device follow the profile in a folder. `None` if the folder has none. The
/// storage lasts as long as it has disks, or the caller has it.
///
/// # Errors
/// The profile cannot be used. The storage follows its former profile, if it has one.
pub(crate) fn use_profile(
    folder: &Path,
    device: u64,
) -> Result<Option<(StorageProfile, Arc<Storage>)>, String> {
    let read = calibrate::read_profile(folder, &calibrate::identity(device));
    let Some(profile) = read.map_err(|error| error.to_string())? else { return Ok(None) };
    let scheduler_profile = calibrate::scheduler_profile(&profile);
    let mut storages = lock(&STORAGES);
    let storage = match storages.get(&device).and_then(Weak::upgrade) {
        Some(present) => present.set_profile(&scheduler_profile).map(|()| present),
        None => open_storage(device, &scheduler_profile),
    };
    let storage = storage.map_err(|error| error_chain(&error))?;
    storages.retain(|_, storage| storage.strong_count() > 0);
    storages.insert(device, Arc::downgrade(&storage));
    Ok(Some((profile, storage)))
}

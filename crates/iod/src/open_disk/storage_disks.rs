//! Storages below the files of a disk, which it shares with other disks.
//!
//! A storage is a device, by its number. It has a scheduler if the folder of an image on it has a
//! profile (`ringway calibrate --store`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use disk::{FileDisk, Storage, StorageDisk};
use model::calibration::{PROFILE_FILE, PROFILE_VERSION, StorageProfile};
use model::share::DiskShare;
use model::spec::FileRef;
use share::{DiskConfig, Profile};

/// Longest profile that is read, in bytes.
const MAX_PROFILE_BYTES: u64 = 64 << 10;

/// Storages of this process by the number of their device.
static STORAGES: Mutex<BTreeMap<u64, Weak<Storage>>> = Mutex::new(BTreeMap::new());

/// One disk on all storages that its files are on.
#[derive(Debug, Default)]
pub(crate) struct StorageDisks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Id of the disk, for reports.
    id: String,
    share: DiskShare,
    by_device: BTreeMap<u64, Arc<StorageDisk>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StorageDisks {
    /// Creates the state of a disk with this id and share.
    pub(crate) fn new(id: &str, share: Option<DiskShare>) -> Arc<Self> {
        let (id, share) = (id.into(), share.unwrap_or_default());
        Arc::new(Self(Mutex::new(State { id, share, by_device: BTreeMap::new() })))
    }

    /// Lets the scheduler of its storage dispatch the requests of a file, if there is one. Returns a
    /// note if there is a profile that cannot be used.
    pub(crate) fn schedule(&self, file: &FileDisk, name: &FileRef) -> Option<String> {
        let device = file.identity().ok()?.device;
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

    /// Changes the share of the disk on all its storages. It was validated.
    pub(crate) fn set_share(&self, share: DiskShare) {
        let mut state = lock(&self.0);
        state.share = share;
        for storage_disk in state.by_device.values() {
            if let Err(error) = storage_disk.configure(config(share)) {
                tracing::error!("the share of a disk cannot be changed: {error}");
            }
        }
    }

    /// Returns the share, and the disk on the storage of its top file. `None` without a scheduler.
    pub(crate) fn report(&self, top: &FileDisk) -> Option<(DiskShare, Arc<StorageDisk>)> {
        let device = top.identity().ok()?.device;
        let state = lock(&self.0);
        Some((state.share, Arc::clone(state.by_device.get(&device)?)))
    }

    /// Returns the share.
    pub(crate) fn share(&self) -> DiskShare {
        lock(&self.0).share
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
    let mut storages = lock(&STORAGES);
    if let Some(present) = storages.get(&device).and_then(Weak::upgrade) {
        return Some(Ok(present));
    }
    let folder = name.path()?.parent()?;
    let path = folder.join(PROFILE_FILE);
    let read = read(&path, device).transpose()?;
    let made = read.and_then(|profile| Storage::new(&profile).map_err(|error| error.to_string()));
    let told = made.map_err(|problem| {
        format!(
            "the profile {} is not used: {problem}; measure the storage again with `ringway calibrate \
             --store`, or remove the file",
            path.display()
        )
    });
    if let Ok(storage) = &told {
        storages.retain(|_, storage| storage.strong_count() > 0);
        storages.insert(device, Arc::downgrade(storage));
    }
    Some(told)
}

/// Reads a profile. `None` if there is no such file.
fn read(path: &Path, device: u64) -> Result<Option<Profile>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = String::new();
    let read = file.take(MAX_PROFILE_BYTES).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    let profile: StorageProfile = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if profile.version != PROFILE_VERSION {
        return Err(format!(
            "it has version {}, and this program knows {PROFILE_VERSION}",
            profile.version
        ));
    }
    let present = calibrate::identity(device);
    if profile.device != present {
        return Err("it was measured on another device, or the device has changed".into());
    }
    Ok(Some(calibrate::scheduler_profile(&profile)))
}

#[cfg(test)]
mod tests {
    use model::calibration::RequestCost;

    use super::*;

    fn profile() -> StorageProfile {
        let cost = RequestCost { request_ns: 5_000, mib_ns: 500_000 };
        StorageProfile {
            version: PROFILE_VERSION,
            device: model::calibration::StorageDevice::default(),
            reads: cost,
            writes: cost,
            knee_ns: 100_000,
            requests_min: 1,
            latency_ns: 80_000,
            piece_bytes: Some(65_536),
            piece_gain_percent: 40,
            seeks: false,
        }
    }

    #[test]
    fn a_profile_is_checked_before_it_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PROFILE_FILE);
        assert_eq!(read(&path, 0), Ok(None));
        let told = |profile: &StorageProfile| {
            std::fs::write(&path, serde_json::to_string(profile).unwrap()).unwrap();
            read(&path, 0)
        };
        let found = told(&profile()).unwrap().unwrap();
        assert_eq!((found.read.request_ns, found.read.byte_ps, found.turn), (5_000, 477, None));
        assert!(
            told(&StorageProfile { version: 2, ..profile() }).unwrap_err().contains("version 2")
        );
        let name = Some("sdz".to_owned());
        let device = model::calibration::StorageDevice { name, ..Default::default() };
        let other = told(&StorageProfile { device, ..profile() });
        assert!(other.unwrap_err().contains("another device"));
        std::fs::write(&path, "{").unwrap();
        assert!(read(&path, 0).is_err());
    }
}

//! Profile of a storage, so that its disks share it.

use std::path::Path;

use model::calibration::{
    PROFILE_FILE, PROFILE_VERSION, RequestCost, StorageDevice, StorageProfile,
};

use crate::error::{Error, Result};

/// Stores a profile for the folder of images on `device`: storage that takes few requests at a
/// time, so that requests of disks wait for each other.
///
/// # Errors
/// The file cannot be written.
pub fn store_profile(folder: &Path, device: StorageDevice) -> Result<()> {
    store(folder, &profile(device))
}

/// Returns the profile of storage that takes few requests at a time.
pub(super) fn profile(device: StorageDevice) -> StorageProfile {
    let cost = RequestCost { request_ns: 20_000, mib_ns: 1_000_000 };
    StorageProfile {
        version: PROFILE_VERSION,
        device,
        reads: cost,
        writes: cost,
        knee_ns: 100_000,
        requests_min: 2,
        latency_ns: 80_000,
        piece_bytes: None,
        piece_gain_percent: 0,
        seeks: false,
    }
}

/// Stores a profile in a folder.
pub(super) fn store(folder: &Path, profile: &StorageProfile) -> Result<()> {
    let text = serde_json::to_string(profile).map_err(std::io::Error::from);
    text.and_then(|text| std::fs::write(folder.join(PROFILE_FILE), text))
        .map_err(|error| Error::io("cannot store a profile", error))
}

//! Profile that is stored in a folder.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use model::calibration::{PROFILE_FILE, PROFILE_VERSION, StorageDevice, StorageProfile};

use crate::scheduler_profile;

/// Longest profile that is read, in bytes.
const MAX_PROFILE_BYTES: u64 = 64 << 10;

/// Reason why a stored profile is not used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the profile {path} is not used: {problem}; measure the storage again with `ringway calibrate \
     --store`, or remove the file"
)]
pub struct StoredProfileError {
    path: PathBuf,
    problem: String,
}

/// Reads the profile of the device `present` that is stored in a folder. `None` if there is no such
/// file.
///
/// # Errors
/// The file cannot be read, is no profile, has numbers outside of their range, or is that of another
/// device, or of the device before it changed.
pub fn read_profile(
    folder: &Path,
    present: &StorageDevice,
) -> Result<Option<StorageProfile>, StoredProfileError> {
    let path = folder.join(PROFILE_FILE);
    read(&path, present).map_err(|problem| StoredProfileError { path, problem })
}

fn read(path: &Path, present: &StorageDevice) -> Result<Option<StorageProfile>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = String::new();
    let read = file.take(MAX_PROFILE_BYTES).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    let profile: StorageProfile = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if profile.version != PROFILE_VERSION {
        let version = profile.version;
        return Err(format!("it has version {version}, and this program knows {PROFILE_VERSION}"));
    }
    if profile.device != *present {
        return Err("it was measured on another device, or the device has changed".into());
    }
    scheduler_profile(&profile).check().map_err(|error| error.to_string())?;
    Ok(Some(profile))
}

/// Stores a profile in a folder, where every user may read it. Returns its path.
///
/// # Errors
/// The folder cannot be written to. The former profile stays.
pub fn store_profile(folder: &Path, profile: &StorageProfile) -> io::Result<PathBuf> {
    let path = folder.join(PROFILE_FILE);
    let new = folder.join(format!("{PROFILE_FILE}.{}", std::process::id()));
    let written = write(&new, profile).and_then(|()| std::fs::rename(&new, &path));
    if let Err(error) = written {
        // The caller learns the first failure.
        let _ = std::fs::remove_file(&new);
        return Err(error);
    }
    Ok(path)
}

fn write(path: &Path, profile: &StorageProfile) -> io::Result<()> {
    // One that a crash has left.
    let _ = std::fs::remove_file(path);
    let mut file = File::create_new(path)?;
    serde_json::to_writer_pretty(&mut file, profile)?;
    writeln!(file)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use model::calibration::RequestCost;

    use super::*;

    fn profile(device: &StorageDevice) -> StorageProfile {
        let cost = RequestCost { request_ns: 5_000, mib_ns: 500_000 };
        StorageProfile {
            version: PROFILE_VERSION,
            device: device.clone(),
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

    fn device() -> StorageDevice {
        StorageDevice {
            name: Some("sdz".into()),
            model: Some("SPINDLE 9000".into()),
            bytes: Some(1 << 40),
            rotational: Some(true),
            scheduler: Some("none".into()),
        }
    }

    #[test]
    fn a_profile_is_stored_and_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_profile(folder.path(), &device()).unwrap(), None);
        let stored = profile(&device());
        for _ in 0..2 {
            let path = store_profile(folder.path(), &stored).unwrap();
            assert_eq!(path, folder.path().join(PROFILE_FILE));
        }
        assert_eq!(read_profile(folder.path(), &device()).unwrap(), Some(stored));
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        assert!(store_profile(&folder.path().join("none"), &profile(&device())).is_err());
    }

    #[test]
    fn a_profile_of_another_or_a_changed_device_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        store_profile(folder.path(), &profile(&device())).unwrap();
        for present in [
            StorageDevice { name: Some("sda".into()), ..device() },
            StorageDevice { model: None, ..device() },
            StorageDevice { bytes: Some(1 << 41), ..device() },
            StorageDevice { rotational: Some(false), ..device() },
            StorageDevice { scheduler: Some("bfq".into()), ..device() },
        ] {
            let error = read_profile(folder.path(), &present).unwrap_err().to_string();
            assert!(error.contains("another device, or the device has changed"), "{error}");
            assert!(error.contains("ringway calibrate --store"), "{error}");
        }
    }

    #[test]
    fn nonsense_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let told = |text: &str| {
            std::fs::write(folder.path().join(PROFILE_FILE), text).unwrap();
            read_profile(folder.path(), &device()).unwrap_err().to_string()
        };
        let text = |profile: &StorageProfile| serde_json::to_string(profile).unwrap();
        let fine = profile(&device());
        assert!(told(&text(&StorageProfile { version: 2, ..fine.clone() })).contains("version 2"));
        for absurd in [
            StorageProfile { knee_ns: 0, ..fine.clone() },
            StorageProfile { knee_ns: u64::MAX, ..fine.clone() },
            StorageProfile { requests_min: u32::MAX, ..fine.clone() },
            StorageProfile { piece_bytes: Some(1), ..fine.clone() },
            StorageProfile { reads: RequestCost { request_ns: 0, mib_ns: u64::MAX }, ..fine },
        ] {
            let error = told(&text(&absurd));
            assert!(error.contains("allowed are"), "{error}");
        }
        assert!(told("{").contains("EOF") && told("[]").contains("invalid"));
        let long = format!("{{{}}}", " ".repeat(MAX_PROFILE_BYTES as usize));
        assert!(told(&long).contains("EOF"));
    }
}

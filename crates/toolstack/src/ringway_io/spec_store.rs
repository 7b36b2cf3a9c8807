//! Specifications of served devices, stored beside the sockets. If a `ringway-io` dies while no
//! daemon runs, its successor gets the same devices.
//!
//! Each disk or NIC has one file, which is replaced atomically. The files are valid for one boot of
//! the host: after a reboot no guest waits for its devices.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::served_devices::{DatapathOwner, ServedDevice};

/// File with the kernel's random id of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// File that names the owner of the directory.
const OWNER: &str = "owner.json";
/// Extension of an incomplete file.
const NEW: &str = "new";

/// Specifications of disks or NICs, by id.
#[derive(Debug)]
pub(super) struct SpecStore<T> {
    folder: PathBuf,
    by_id: BTreeMap<String, T>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owned {
    /// The SR, or another owner.
    sr: String,
    boot: String,
}

impl<T: ServedDevice> SpecStore<T> {
    /// Opens the specifications of the `ringway-io` with sockets in `folder`. Creates the directory
    /// if necessary.
    ///
    /// # Errors
    /// The directory cannot be created, or has another owner.
    pub(super) fn open(folder: &Path, owner: DatapathOwner) -> io::Result<Self> {
        let boot = std::fs::read_to_string(BOOT_ID)?.trim().to_owned();
        let items = folder.join(T::FOLDER);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&items)?;
        let ours = Owned { sr: owner.to_string(), boot };
        let mut by_id = BTreeMap::new();
        match read::<Owned>(&folder.join(OWNER)) {
            Some(owned) if owned == ours => by_id = load(&items)?,
            Some(Owned { sr, boot }) if boot == ours.boot => {
                let why = format!("{} belongs to {sr}", folder.display());
                return Err(io::Error::other(why));
            }
            _ => {
                // The files are of an earlier boot.
                std::fs::remove_dir_all(&items)?;
                std::fs::DirBuilder::new().mode(0o700).create(&items)?;
                write(&folder.join(OWNER), &ours)?;
            }
        }
        Ok(Self { folder: folder.into(), by_id })
    }

    /// Returns all specifications.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.by_id.values()
    }

    /// Returns the specification of one device.
    pub(super) fn get(&self, id: &str) -> Option<&T> {
        self.by_id.get(id)
    }

    /// Stores the specification of a device.
    pub(super) fn put(&mut self, spec: T) {
        self.log_failure(write(&self.file(spec.id()), &spec));
        self.by_id.insert(spec.id().to_owned(), spec);
    }

    /// Changes the specification of a device.
    pub(super) fn change(&mut self, id: &str, change: impl FnOnce(&mut T)) {
        if let Some(mut spec) = self.by_id.get(id).cloned() {
            change(&mut spec);
            if self.by_id.get(id) != Some(&spec) {
                self.put(spec);
            }
        }
    }

    /// Removes the specification of a device.
    pub(super) fn remove(&mut self, id: &str) {
        if self.by_id.remove(id).is_some() {
            self.log_failure(std::fs::remove_file(self.file(id)));
        }
    }

    fn file(&self, id: &str) -> PathBuf {
        self.folder.join(T::FOLDER).join(format!("{id}.json"))
    }

    /// Logs a failed write. The device is not affected: the failure matters only if keeper and
    /// worker die.
    fn log_failure(&self, kept: io::Result<()>) {
        if let Err(error) = kept {
            tracing::warn!("cannot store the served devices in {}: {error}", self.folder.display());
        }
    }
}

fn load<T: ServedDevice>(items: &Path) -> io::Result<BTreeMap<String, T>> {
    let mut by_id = BTreeMap::new();
    for entry in std::fs::read_dir(items)? {
        let path = entry?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => {}
            // An interrupted write left this file.
            Some(NEW) => {
                if let Err(error) = std::fs::remove_file(&path) {
                    tracing::warn!("cannot remove the unused file {}: {error}", path.display());
                }
                continue;
            }
            _ => continue,
        }
        match read::<T>(&path) {
            Some(spec) => drop(by_id.insert(spec.id().to_owned(), spec.loaded())),
            None => tracing::warn!("{} cannot be parsed and is ignored", path.display()),
        }
    }
    Ok(by_id)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Replaces a file atomically for other processes. The content need not survive a crash of the
/// host, so it is not synced.
fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let new = path.with_extension(NEW);
    std::fs::write(&new, serde_json::to_vec(value)?)?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use model::id::{SrId, Uuid};
    use model::spec::{Backend, BlockSize, DiskSpec};

    use super::*;

    fn disk(id: &str) -> DiskSpec {
        let spec = DiskSpec::new(id, format!("/run/{id}.sock"), Backend::Null(4096));
        DiskSpec { block_size: Some(BlockSize::Bytes(512)), ..spec }
    }

    #[test]
    fn what_is_served_is_known_to_the_next_daemon() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join("io/01234567");
        let [sr, other] = [1, 2].map(|n| DatapathOwner::Sr(SrId(Uuid::from_random([n; 16]))));
        let mut specs = SpecStore::<DiskSpec>::open(&folder, sr).unwrap();
        for id in ["a", "b", "c.d"] {
            specs.put(disk(id));
        }
        specs.remove("b");
        specs.remove("none");
        specs.change("a", |spec| spec.activate = false);
        specs.change("none", |spec| spec.activate = false);
        std::fs::write(folder.join("disks/torn.json"), "{").unwrap();
        std::fs::write(folder.join("disks/half.new"), "{").unwrap();
        // An earlier version stored no block size, and guests knew that of the storage.
        let old = DiskSpec { block_size: None, ..disk("old") };
        write(&folder.join("disks/old.json"), &old).unwrap();
        let again = SpecStore::<DiskSpec>::open(&folder, sr).unwrap();
        let old = DiskSpec { block_size: Some(BlockSize::Storage), ..old };
        let expected = [DiskSpec { activate: false, ..disk("a") }, disk("c.d"), old];
        assert!(again.all().eq(expected.iter()), "{again:?}");
        assert!(!folder.join("disks/half.new").exists(), "left by a death");
        let error = SpecStore::<DiskSpec>::open(&folder, other).unwrap_err().to_string();
        assert!(error.contains(&sr.to_string()), "{error}");
    }

    #[test]
    fn what_was_served_before_a_reboot_is_forgotten() {
        let run = tempfile::tempdir().unwrap();
        let sr = DatapathOwner::Sr(SrId(Uuid::from_random([1; 16])));
        SpecStore::open(run.path(), sr).unwrap().put(disk("a"));
        for owner in [r#"{"sr":"another","boot":"another"}"#, "?"] {
            std::fs::write(run.path().join(OWNER), owner).unwrap();
            let mut specs = SpecStore::<DiskSpec>::open(run.path(), sr).unwrap();
            assert_eq!(specs.all().count(), 0, "{owner}");
            specs.put(disk("a"));
        }
    }
}

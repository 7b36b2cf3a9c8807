//! Which disks a `ringway-io` was told to serve: kept beside its sockets, so that one that has died
//! while no daemon ran is replaced as it was.
//!
//! A file for each disk, written whole. The directory is one of the host's running time: after a
//! reboot no guest waits for its disks any more.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use model::id::SrId;
use model::spec::DiskSpec;
use serde::{Deserialize, Serialize};

/// Names the start of the host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Says whose the directory is.
const OWNER: &str = "owner.json";
/// Where the files of disks are.
const DISKS: &str = "disks";
/// Ends the name of a file that is not whole yet.
const NEW: &str = "new";

/// Disks by id.
#[derive(Debug)]
pub(super) struct Specs {
    folder: PathBuf,
    by_id: BTreeMap<String, DiskSpec>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    sr: String,
    boot: String,
}

impl Specs {
    /// Those of the `ringway-io` whose sockets are in `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// The directory cannot be made or is another SR's.
    pub(super) fn open(folder: &Path, sr: SrId) -> io::Result<Self> {
        let boot = std::fs::read_to_string(BOOT_ID)?.trim().to_owned();
        let disks = folder.join(DISKS);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&disks)?;
        let ours = Owner { sr: sr.to_string(), boot };
        let mut by_id = BTreeMap::new();
        match read::<Owner>(&folder.join(OWNER)) {
            Some(owner) if owner == ours => by_id = load(&disks)?,
            Some(Owner { sr, boot }) if boot == ours.boot => {
                let why = format!("{} is that of storage repository {sr}", folder.display());
                return Err(io::Error::other(why));
            }
            _ => {
                // Of before the last reboot.
                std::fs::remove_dir_all(&disks)?;
                std::fs::DirBuilder::new().mode(0o700).create(&disks)?;
                write(&folder.join(OWNER), &ours)?;
            }
        }
        Ok(Self { folder: folder.into(), by_id })
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &DiskSpec> {
        self.by_id.values()
    }

    /// One of them.
    pub(super) fn get(&self, id: &str) -> Option<&DiskSpec> {
        self.by_id.get(id)
    }

    /// A disk is served, or is served otherwise.
    pub(super) fn put(&mut self, spec: DiskSpec) {
        self.told(write(&self.file(&spec.id), &spec));
        self.by_id.insert(spec.id.clone(), spec);
    }

    /// Changes what is known of a disk.
    pub(super) fn change(&mut self, id: &str, change: impl FnOnce(&mut DiskSpec)) {
        if let Some(mut spec) = self.by_id.get(id).cloned() {
            change(&mut spec);
            if self.by_id.get(id) != Some(&spec) {
                self.put(spec);
            }
        }
    }

    /// A disk is not served any more.
    pub(super) fn remove(&mut self, id: &str) {
        if self.by_id.remove(id).is_some() {
            self.told(std::fs::remove_file(self.file(id)));
        }
    }

    fn file(&self, id: &str) -> PathBuf {
        self.folder.join(DISKS).join(format!("{id}.json"))
    }

    /// The disk is served, or is not, all the same: only a death of both processes would show it.
    fn told(&self, kept: io::Result<()>) {
        if let Err(error) = kept {
            tracing::warn!("cannot note in {} what is served: {error}", self.folder.display());
        }
    }
}

fn load(disks: &Path) -> io::Result<BTreeMap<String, DiskSpec>> {
    let mut by_id = BTreeMap::new();
    for entry in std::fs::read_dir(disks)? {
        let path = entry?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => {}
            // What a death has left half written.
            Some(NEW) => {
                if let Err(error) = std::fs::remove_file(&path) {
                    tracing::warn!("{} stays, though nobody reads it: {error}", path.display());
                }
                continue;
            }
            _ => continue,
        }
        match read::<DiskSpec>(&path) {
            Some(spec) => drop(by_id.insert(spec.id.clone(), spec)),
            None => tracing::warn!("{} cannot be understood and is passed over", path.display()),
        }
    }
    Ok(by_id)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Whole or not at all, as far as processes see it: nothing of this outlives a crash of the host.
fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let new = path.with_extension(NEW);
    std::fs::write(&new, serde_json::to_vec(value)?)?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use model::id::Uuid;
    use model::spec::Backend;

    use super::*;

    fn disk(id: &str) -> DiskSpec {
        DiskSpec::new(id, format!("/run/{id}.sock"), Backend::Null(4096))
    }

    #[test]
    fn what_is_served_is_known_to_the_next_daemon() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join("io/01234567");
        let [sr, other] = [1, 2].map(|n| SrId(Uuid::from_random([n; 16])));
        let mut specs = Specs::open(&folder, sr).unwrap();
        for id in ["a", "b", "c.d"] {
            specs.put(disk(id));
        }
        specs.remove("b");
        specs.remove("none");
        specs.change("a", |spec| spec.activate = false);
        specs.change("none", |spec| spec.activate = false);
        std::fs::write(folder.join("disks/torn.json"), "{").unwrap();
        std::fs::write(folder.join("disks/half.new"), "{").unwrap();
        let again = Specs::open(&folder, sr).unwrap();
        let expected = [DiskSpec { activate: false, ..disk("a") }, disk("c.d")];
        assert!(again.all().eq(expected.iter()), "{again:?}");
        assert!(!folder.join("disks/half.new").exists(), "left by a death");
        let error = Specs::open(&folder, other).unwrap_err().to_string();
        assert!(error.contains(&sr.to_string()), "{error}");
    }

    #[test]
    fn what_was_served_before_a_reboot_is_forgotten() {
        let run = tempfile::tempdir().unwrap();
        let sr = SrId(Uuid::from_random([1; 16]));
        Specs::open(run.path(), sr).unwrap().put(disk("a"));
        for owner in [r#"{"sr":"another","boot":"another"}"#, "?"] {
            std::fs::write(run.path().join(OWNER), owner).unwrap();
            let mut specs = Specs::open(run.path(), sr).unwrap();
            assert_eq!(specs.all().count(), 0, "{owner}");
            specs.put(disk("a"));
        }
    }
}

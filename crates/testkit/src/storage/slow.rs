//! Storage of few bytes a second.

use std::path::{Path, PathBuf};

use model::calibration::{RequestCost, StorageDevice};
use tempfile::TempDir;

use super::io_group::{END_GROUP, IoGroup};
use super::{Guard, profile};
use crate::error::{Error, Result};

/// Size of the file system in bytes.
const BYTES: u64 = 512 << 20;
/// Request of which the profile lets few be in flight, in bytes.
const REQUEST_BYTES: u64 = 64 << 10;
/// Number of these requests in flight.
const DEPTH: u64 = 4;
/// Time that the block layer may make a request wait, in nanoseconds: it gives out the bytes of a
/// tenth of a second at a time.
const LATENCY_NS: u64 = 200_000_000;
/// Script that mounts, reports, waits, and cleans up. `$1`: image, `$2`: mount point, `$3`: group.
const GUARD: &str = r#"
set -e
mkfs.ext4 -q -F "$1" && mount -o loop "$1" "$2"
number=$(mountpoint -d "$2")
mkdir "$3" || { umount "$2"; exit 1; }
trap '' INT TERM
echo "$number"
read -r _ || true
set +e
end_group "$3" "$number"
umount "$2" 2>/dev/null || umount -l "$2"
"#;

/// A file system on a loop device of which chosen processes read few bytes a second. The block layer
/// holds their requests back, so that the storage limits guests, however slow the host's CPUs are.
///
/// Needs root, loop devices and the controller io or blkio of control groups.
#[derive(Debug)]
pub struct SlowStorage {
    /// Guard, dropped first: it removes the limit and unmounts.
    _guard: Guard,
    place: PathBuf,
    group: IoGroup,
    bytes_per_second: u64,
    _dir: TempDir,
}

impl SlowStorage {
    /// Creates and mounts the file system. Returns `None` if this host has no block layer that can
    /// limit, and `RINGWAY_NO_BLKIO=1` says that this is known.
    ///
    /// # Errors
    /// Root, a loop device or the controller is missing.
    pub fn new(bytes_per_second: u64) -> Result<Option<Self>> {
        let io = |what: &'static str| move |error| Error::io(what, error);
        let dir = tempfile::tempdir().map_err(io("cannot make a directory"))?;
        let Some(group) = IoGroup::new(dir.path())? else { return Ok(None) };
        let (image, place) = (dir.path().join("fs"), dir.path().join("mount"));
        std::fs::create_dir(&place).map_err(io("cannot make a directory"))?;
        let file = std::fs::File::create(&image).map_err(io("cannot make an image"))?;
        file.set_len(BYTES).map_err(io("cannot make an image"))?;
        let words = [image.as_os_str(), place.as_os_str(), group.path.as_os_str()];
        let script = format!("{END_GROUP}{GUARD}");
        let needs = "slow storage needs root and loop devices";
        let (guard, number) = Guard::start(&script, &words, needs)?;
        group.limit(&number, Some(bytes_per_second), false)?;
        Ok(Some(Self { _guard: guard, place, group, bytes_per_second, _dir: dir }))
    }

    /// Returns the mount point.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Limits process `pid`, with all its threads and the processes that it starts.
    ///
    /// # Errors
    /// There is no such process.
    pub fn enclose(&self, pid: u32) -> Result<()> {
        self.group.enclose(pid)
    }

    /// Stores the profile of this storage in a folder on it, so that disks share it. `device` is its
    /// identity.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store_profile(&self, folder: &Path, device: StorageDevice) -> Result<()> {
        let second = 1_000_000_000;
        let cost = RequestCost { request_ns: 1, mib_ns: (second << 20) / self.bytes_per_second };
        let mut stored = profile::profile(device);
        (stored.reads, stored.writes) = (cost, cost);
        stored.knee_ns = DEPTH * REQUEST_BYTES * second / self.bytes_per_second;
        stored.latency_ns = LATENCY_NS;
        profile::store(folder, &stored)
    }
}

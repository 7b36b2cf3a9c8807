//! A block device with two partitions, each with a file system.

use std::path::PathBuf;

use tempfile::TempDir;

use super::Guard;
use crate::error::{Error, Result};

/// Size of the device in bytes: two partitions of 31 MiB.
const BYTES: u64 = 64 << 20;
/// Script that mounts, prints, waits, and cleans up. `$1`: image, `$2` and `$3`: mount points. The
/// partitions need no table, which not every kernel reads.
const GUARD: &str = r#"
set -e
device=$(losetup --find --show --partscan "$1")
trap 'set +e; umount "$2" "$3" 2>/dev/null; losetup -d "$device"' EXIT
trap '' INT TERM
addpart "$device" 1 2048 63488
addpart "$device" 2 65536 63488
mkfs.ext4 -q -F "${device}p1" && mount "${device}p1" "$2"
mkfs.ext4 -q -F "${device}p2" && mount "${device}p2" "$3"
echo mounted
read -r _ || true
"#;

/// Two file systems on partitions of one device. Needs root and loop devices.
#[derive(Debug)]
pub struct Partitions {
    /// Guard, dropped first: it unmounts before the other fields are dropped.
    _guard: Guard,
    places: [PathBuf; 2],
    _dir: TempDir,
}

impl Partitions {
    /// Creates the device, and mounts the file systems.
    ///
    /// # Errors
    /// Root, loop devices or programs are missing.
    pub fn new() -> Result<Self> {
        let io = |what: &'static str| move |error| Error::io(what, error);
        let dir = tempfile::tempdir().map_err(io("cannot make a directory"))?;
        let [image, one, two] = ["image", "one", "two"].map(|name| dir.path().join(name));
        for place in [&one, &two] {
            std::fs::create_dir(place).map_err(io("cannot make a directory"))?;
        }
        let file = std::fs::File::create(&image).map_err(io("cannot make an image"))?;
        file.set_len(BYTES).map_err(io("cannot make an image"))?;
        let needs = "partitions need root and loop devices";
        let (guard, _) = Guard::start(GUARD, &[&image, &one, &two], needs)?;
        Ok(Self { _guard: guard, places: [one, two], _dir: dir })
    }

    /// Returns the mount points.
    #[must_use]
    pub fn places(&self) -> &[PathBuf; 2] {
        &self.places
    }
}

//! A file system that hangs.
//!
//! It is a small ext4 on a loop device, frozen with `fsfreeze`. A process that writes to it, or
//! waits for its writes, sleeps in the kernel until the thaw, and no signal ends that sleep. A loop
//! device over a file there hangs like a block device: its requests are in the kernel, and no user
//! thread sleeps for them.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Guard, run};
use crate::error::{Error, Result};

/// Size of the file system in bytes.
const BYTES: u64 = 64 << 20;
/// Script that mounts, reports, waits, and cleans up. `$1`: image, `$2`: mount point.
const GUARD: &str = r#"
set -e
mkfs.ext4 -q -F "$1" && mount -o loop "$1" "$2"
trap '' INT TERM
echo mounted
read -r _ || true
set +e
fsfreeze -u "$2" 2>/dev/null
for device in $(losetup -n -O NAME,BACK-FILE | grep -F "$2/" | cut -d' ' -f1); do
    losetup -d "$device"
done
umount "$2" 2>/dev/null || umount -l "$2"
"#;

/// A file system whose writes can be made to hang. Needs root and loop devices.
#[derive(Debug)]
pub struct Hanging {
    /// Guard, dropped first: it thaws and unmounts before the other fields are dropped.
    _guard: Guard,
    place: PathBuf,
    _dir: TempDir,
}

impl Hanging {
    /// Creates and mounts the file system.
    ///
    /// # Errors
    /// Root, loop devices or programs are missing.
    pub fn new() -> Result<Self> {
        let io = |what: &'static str| move |error| Error::io(what, error);
        let dir = tempfile::tempdir().map_err(io("cannot make a directory"))?;
        let (image, place) = (dir.path().join("fs"), dir.path().join("mount"));
        std::fs::create_dir(&place).map_err(io("cannot make a directory"))?;
        let file = std::fs::File::create(&image).map_err(io("cannot make an image"))?;
        file.set_len(BYTES).map_err(io("cannot make an image"))?;
        let needs = "mounting an ext4 image needs root";
        let (guard, _) = Guard::start(GUARD, &[&image, &place], needs)?;
        Ok(Self { _guard: guard, place, _dir: dir })
    }

    /// Creates a file of `bytes` on it, written once so that later writes allocate nothing.
    ///
    /// # Errors
    /// The file does not fit.
    pub fn image(&self, name: &str, bytes: usize) -> Result<PathBuf> {
        let path = self.place.join(name);
        std::fs::write(&path, vec![0; bytes])
            .and_then(|()| std::fs::File::open(&path)?.sync_all())
            .map_err(|error| Error::io("cannot write an image", error))?;
        Ok(path)
    }

    /// Creates a block device of `bytes` on it.
    ///
    /// # Errors
    /// No loop device is free.
    pub fn device(&self, name: &str, bytes: usize) -> Result<PathBuf> {
        let image = self.image(name, bytes)?;
        let output = run(Command::new("losetup").args(["--find", "--show"]).arg(&image))?;
        Ok(output.trim().into())
    }

    /// Makes every write to it hang. Returns when that is in force.
    ///
    /// # Errors
    /// The file system cannot be frozen.
    pub fn hang(&self) -> Result<()> {
        run(Command::new("fsfreeze").arg("-f").arg(&self.place)).map(drop)
    }

    /// Lets all hanging requests continue.
    ///
    /// # Errors
    /// The file system was not frozen.
    pub fn answer(&self) -> Result<()> {
        run(Command::new("fsfreeze").arg("-u").arg(&self.place)).map(drop)
    }

    /// Returns the mount point.
    pub fn place(&self) -> &Path {
        &self.place
    }
}

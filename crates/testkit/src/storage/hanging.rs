//! A file system that hangs.
//!
//! A small ext4 on a loop device, frozen (`fsfreeze`): whatever writes to it, or waits for what it
//! has written, sleeps in the kernel until the thaw, and no signal ends that sleep. A loop device
//! over a file there hangs as a block device does: its requests are with the kernel, and no thread
//! of the user sleeps for them.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Guard, run};
use crate::error::{Error, Result};

/// Bytes of the file system.
const BYTES: u64 = 64 << 20;
/// Mounts, tells, waits, cleans up. `$1`: image, `$2`: where to mount it.
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
    /// First: it thaws and unmounts before the rest goes.
    _guard: Guard,
    place: PathBuf,
    _dir: TempDir,
}

impl Hanging {
    /// Makes and mounts it.
    ///
    /// # Errors
    /// No root, no loop devices, or no programs.
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

    /// A file of `bytes` on it, written once so that nothing needs to be allocated later.
    ///
    /// # Errors
    /// It does not fit.
    pub fn image(&self, name: &str, bytes: usize) -> Result<PathBuf> {
        let path = self.place.join(name);
        std::fs::write(&path, vec![0; bytes])
            .and_then(|()| std::fs::File::open(&path)?.sync_all())
            .map_err(|error| Error::io("cannot write an image", error))?;
        Ok(path)
    }

    /// A block device of `bytes` on it.
    ///
    /// # Errors
    /// No loop device is free.
    pub fn device(&self, name: &str, bytes: usize) -> Result<PathBuf> {
        let image = self.image(name, bytes)?;
        let said = run(Command::new("losetup").args(["--find", "--show"]).arg(&image))?;
        Ok(said.trim().into())
    }

    /// From now on every write to it hangs. Returns when it does.
    ///
    /// # Errors
    /// It cannot be frozen.
    pub fn hang(&self) -> Result<()> {
        run(Command::new("fsfreeze").arg("-f").arg(&self.place)).map(drop)
    }

    /// Whatever hung goes on.
    ///
    /// # Errors
    /// It was not frozen.
    pub fn answer(&self) -> Result<()> {
        run(Command::new("fsfreeze").arg("-u").arg(&self.place)).map(drop)
    }

    /// Where it is mounted.
    pub fn place(&self) -> &Path {
        &self.place
    }
}

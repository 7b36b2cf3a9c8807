//! A block device with chosen sectors.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Guard, run};
use crate::error::{Error, Result};

/// Script that prints the device, waits, and cleans up. `$1`: image, `$2`: bytes of a sector.
const GUARD: &str = r#"
set -e
device=$(losetup --find --show --sector-size "$2" "$1")
trap '' INT TERM
echo "$device"
read -r _ || true
losetup -d "$device"
"#;

/// A loop device whose sectors have a chosen size. Needs root and loop devices.
#[derive(Debug)]
pub struct LoopDevice {
    /// Guard, dropped first: it removes the device before its image.
    _guard: Guard,
    path: PathBuf,
    _dir: TempDir,
}

impl LoopDevice {
    /// Creates a device of `bytes` zeroes with sectors of `sector` bytes.
    ///
    /// # Errors
    /// Root or a loop device is missing.
    pub fn new(bytes: u64, sector: u32) -> Result<Self> {
        let io = |what: &'static str| move |error| Error::io(what, error);
        let dir = tempfile::tempdir().map_err(io("cannot make a directory"))?;
        let image = dir.path().join("image");
        let file = std::fs::File::create(&image).map_err(io("cannot make an image"))?;
        file.set_len(bytes).map_err(io("cannot make an image"))?;
        let words = [image.as_os_str(), sector.to_string().as_ref()].map(ToOwned::to_owned);
        let (guard, line) = Guard::start(GUARD, &words, "needs root and loop devices")?;
        Ok(Self { _guard: guard, path: line.into(), _dir: dir })
    }

    /// Returns the path of the device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes the size of the sectors, as if other storage were at the same path.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_sector(&self, sector: u32) -> Result<()> {
        let mut losetup = Command::new("losetup");
        losetup.args(["--sector-size", &sector.to_string()]).arg(&self.path);
        run(&mut losetup).map(drop)
    }
}

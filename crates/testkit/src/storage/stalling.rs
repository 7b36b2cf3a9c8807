//! A block device that stalls its requests.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::Guard;
use super::io_group::{END_GROUP, IoGroup};
use crate::error::{Error, Result};

/// Bytes a second while it stalls: no request completes during a test. The controller io refuses less.
const STALLED: u64 = 2;
/// Script that prints the device, waits, and cleans up. `$1`: image, `$2`: group.
const GUARD: &str = r#"
set -e
device=$(losetup --find --show "$1")
mkdir "$2" || { losetup -d "$device"; exit 1; }
trap '' INT TERM
number=$(stat -c '%Hr:%Lr' "$device")
echo "$number $device"
read -r _ || true
set +e
end_group "$2" "$number"
losetup -d "$device"
"#;

/// A loop device whose requests, reads and writes, can hang for chosen processes. The block layer
/// holds them in the kernel. No thread sleeps for direct requests.
///
/// Needs root, loop devices and the controller io or blkio of control groups.
#[derive(Debug)]
pub struct Stalling {
    /// Guard, dropped first: it ends the stall before the other fields are dropped.
    _guard: Guard,
    device: PathBuf,
    number: String,
    group: IoGroup,
    _dir: TempDir,
}

impl Stalling {
    /// Creates a device of `bytes`, each of them `fill`. Returns `None` if this host has no block
    /// layer that can stall, and `RINGWAY_NO_BLKIO=1` says that this is known.
    ///
    /// # Errors
    /// Root, a loop device or the controller is missing.
    pub fn new(bytes: usize, fill: u8) -> Result<Option<Self>> {
        let io = |what: &'static str| move |error| Error::io(what, error);
        let dir = tempfile::tempdir().map_err(io("cannot make a directory"))?;
        let image = dir.path().join("image");
        std::fs::write(&image, vec![fill; bytes]).map_err(io("cannot write an image"))?;
        let Some(group) = IoGroup::new(dir.path())? else { return Ok(None) };
        let needs = "a device that stalls needs root and loop devices";
        let script = format!("{END_GROUP}{GUARD}");
        let (guard, line) = Guard::start(&script, &[&image, &group.path], needs)?;
        let Some((number, device)) = line.split_once(' ') else {
            return Err(Error::io(needs, std::io::Error::other(line)));
        };
        let (device, number) = (PathBuf::from(device), number.to_owned());
        Ok(Some(Self { _guard: guard, device, number, group, _dir: dir }))
    }

    /// Returns the path of the block device.
    #[must_use]
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Returns the control group of the processes for which it can hang.
    #[must_use]
    pub fn group(&self) -> &Path {
        &self.group.path
    }

    /// Adds process `pid` to those for which it can hang, with all its threads and those that they
    /// start.
    ///
    /// # Errors
    /// There is no such process.
    pub fn enclose(&self, pid: u32) -> Result<()> {
        self.group.enclose(pid)
    }

    /// Makes all further requests of the processes in its group hang.
    ///
    /// # Errors
    /// The controller refuses the limit.
    pub fn hang(&self) -> Result<()> {
        self.group.limit(&self.number, Some(STALLED), true)
    }

    /// Lets all hanging requests continue.
    ///
    /// # Errors
    /// The controller refuses the limit.
    pub fn answer(&self) -> Result<()> {
        self.group.limit(&self.number, None, true)
    }
}

//! A block device that stalls its requests.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{BLKIO, Guard, enclose, group_of, is_limitable};
use crate::error::{Error, Result};
use crate::requirements::HostRequirement;

/// Bytes a second while it stalls: no request completes during a test.
const STALLED: &str = "1";
/// No limit: all waiting requests continue.
const FREE: &str = "0";
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
echo "$number 0" >"$2/blkio.throttle.read_bps_device"
echo "$number 0" >"$2/blkio.throttle.write_bps_device"
while read -r pid; do echo "$pid" >"$2/../cgroup.procs"; done <"$2/cgroup.procs"
rmdir "$2"
losetup -d "$device"
"#;

/// A loop device whose requests, reads and writes, can hang for chosen processes. The block layer
/// holds them in the kernel. No thread sleeps for direct requests.
///
/// Needs root, loop devices and the blkio controller of control groups, version 1.
#[derive(Debug)]
pub struct Stalling {
    /// Guard, dropped first: it ends the stall before the other fields are dropped.
    _guard: Guard,
    device: PathBuf,
    number: String,
    group: PathBuf,
    _dir: TempDir,
}

impl Stalling {
    /// Creates a device of `bytes`, each of them `fill`. Returns `None` if this host has no block
    /// layer that can stall, and `RINGWAY_NO_BLKIO=1` says that this is known.
    ///
    /// # Errors
    /// Root, a loop device or the controller is missing.
    pub fn new(bytes: usize, fill: u8) -> Result<Option<Self>> {
        if !is_limitable() {
            let needs = format!(
                "needs root and the blkio controller of control groups, version 1, at {BLKIO}"
            );
            return HostRequirement::Stalling.leave_out(&needs).map(|()| None);
        }
        let io = |what: &'static str| move |error| Error::io(what, error);
        let dir = tempfile::tempdir().map_err(io("cannot make a directory"))?;
        let image = dir.path().join("image");
        std::fs::write(&image, vec![fill; bytes]).map_err(io("cannot write an image"))?;
        let group = group_of(dir.path());
        let needs = "a device that stalls needs root and loop devices";
        let (guard, line) = Guard::start(GUARD, &[&image, &group], needs)?;
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
        &self.group
    }

    /// Adds process `pid` to those for which it can hang, with all its threads and those that they
    /// start.
    ///
    /// # Errors
    /// There is no such process.
    pub fn enclose(&self, pid: u32) -> Result<()> {
        enclose(&self.group, pid)
    }

    /// Makes all further requests of the processes in its group hang.
    ///
    /// # Errors
    /// The controller refuses the limit.
    pub fn hang(&self) -> Result<()> {
        self.limit(STALLED)
    }

    /// Lets all hanging requests continue.
    ///
    /// # Errors
    /// The controller refuses the limit.
    pub fn answer(&self) -> Result<()> {
        self.limit(FREE)
    }

    fn limit(&self, bytes_per_second: &str) -> Result<()> {
        for way in ["read", "write"] {
            let file = self.group.join(format!("blkio.throttle.{way}_bps_device"));
            std::fs::write(file, format!("{} {bytes_per_second}", self.number))
                .map_err(|error| Error::io("cannot set a limit", error))?;
        }
        Ok(())
    }
}

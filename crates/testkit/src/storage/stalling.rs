//! A block device that keeps what it is asked.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::Guard;
use crate::error::{Error, Result};
use crate::requirements::HostRequirement;

/// The controller that makes it stall.
const ROOT: &str = "/sys/fs/cgroup/blkio";
/// Bytes a second while it stalls: no request ends in the life of a test.
const STALLED: &str = "1";
/// No limit, and whatever waited goes on.
const FREE: &str = "0";
/// Prints the device, waits, cleans up. `$1`: image, `$2`: group.
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

/// A loop device whose requests, reads and writes, can be made to hang for chosen processes. The
/// block layer holds them: they are with the kernel, and no thread sleeps for those that are direct.
///
/// Needs root, loop devices and the blkio controller of control groups, version 1.
#[derive(Debug)]
pub struct Stalling {
    /// First: it ends what hangs before the rest goes.
    _guard: Guard,
    device: PathBuf,
    number: String,
    group: PathBuf,
    _dir: TempDir,
}

impl Stalling {
    /// A device of `bytes`, each of them `fill`. `None`: this host has no block layer that could be
    /// told to stall, and `RINGWAY_NO_BLKIO=1` says that this is known.
    ///
    /// # Errors
    /// No root, no loop device, or no controller.
    pub fn new(bytes: usize, fill: u8) -> Result<Option<Self>> {
        let limit = Path::new(ROOT).join("blkio.throttle.write_bps_device");
        if !limit.exists() {
            let needs = format!(
                "needs root and the blkio controller of control groups, version 1, at {ROOT}"
            );
            return HostRequirement::Stalling.leave_out(&needs).map(|()| None);
        }
        let io = |what: &'static str| move |error| Error::io(what, error);
        let dir = tempfile::tempdir().map_err(io("cannot make a directory"))?;
        let image = dir.path().join("image");
        std::fs::write(&image, vec![fill; bytes]).map_err(io("cannot write an image"))?;
        // As unique as the directory.
        let name = dir.path().file_name().unwrap_or_default().to_string_lossy();
        let group = Path::new(ROOT).join(format!("ringway-{}", name.trim_start_matches('.')));
        let needs = "a device that stalls needs root and loop devices";
        let (guard, said) = Guard::start(GUARD, &[&image, &group], needs)?;
        let Some((number, device)) = said.split_once(' ') else {
            return Err(Error::io(needs, std::io::Error::other(said)));
        };
        let (device, number) = (PathBuf::from(device), number.to_owned());
        Ok(Some(Self { _guard: guard, device, number, group, _dir: dir }))
    }

    /// The block device.
    #[must_use]
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// The control group of those for whom it can hang.
    #[must_use]
    pub fn group(&self) -> &Path {
        &self.group
    }

    /// From now on it can hang for process `pid` with all its threads, and for those that they
    /// start.
    ///
    /// # Errors
    /// There is no such process.
    pub fn enclose(&self, pid: u32) -> Result<()> {
        std::fs::write(self.group.join("cgroup.procs"), pid.to_string())
            .map_err(|error| Error::io(format!("cannot enclose process {pid}"), error))
    }

    /// From now on no request of the processes in its group ends.
    ///
    /// # Errors
    /// The controller does not take it.
    pub fn hang(&self) -> Result<()> {
        self.limit(STALLED)
    }

    /// Whatever hung goes on.
    ///
    /// # Errors
    /// The controller does not take it.
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

//! Control groups that limit the requests of processes: the io controller (version 2), or blkio
//! (version 1).

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::requirements::HostRequirement;

/// Root of the blkio controller.
const BLKIO: &str = "/sys/fs/cgroup/blkio";
/// Root of all controllers of version 2.
const UNIFIED: &str = "/sys/fs/cgroup";
/// Shell function that ends the limits of a group and removes it. `$1`: group, `$2`: number of the
/// device. Processes of the group continue in the group above.
pub(super) const END_GROUP: &str = r#"
end_group() {
    if [ -e "$1/io.max" ]; then
        echo "$2 rbps=max wbps=max" >"$1/io.max"
    else
        echo "$2 0" >"$1/blkio.throttle.read_bps_device"
        echo "$2 0" >"$1/blkio.throttle.write_bps_device"
    fi
    while read -r pid; do echo "$pid" >"$1/../cgroup.procs"; done <"$1/cgroup.procs"
    rmdir "$1"
}
"#;

/// A control group whose processes read and write few bytes a second of a block device. The script that
/// owns it creates and removes it.
#[derive(Debug)]
pub(super) struct IoGroup {
    pub(super) path: PathBuf,
}

impl IoGroup {
    /// Returns a group whose name is as unique as that of the temporary directory `dir`. `None` if this
    /// host cannot limit requests, and `RINGWAY_NO_BLKIO=1` says that this is known.
    ///
    /// # Errors
    /// No controller is there, or this user may not use it.
    pub(super) fn new(dir: &Path) -> Result<Option<Self>> {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("ringway-{}", name.trim_start_matches('.'));
        if Path::new(BLKIO).join("blkio.throttle.write_bps_device").exists() {
            return Ok(Some(Self { path: Path::new(BLKIO).join(name) }));
        }
        // Children of the root have the controller from then on, until the host restarts.
        match std::fs::write(Path::new(UNIFIED).join("cgroup.subtree_control"), "+io") {
            Ok(()) => Ok(Some(Self { path: Path::new(UNIFIED).join(name) })),
            Err(error) => {
                let needs = format!(
                    "needs root and the controller io or blkio of control groups ({error})"
                );
                HostRequirement::Stalling.leave_out(&needs).map(|()| None)
            }
        }
    }

    /// Limits reads, and writes if `writes` is set, of the device with this number to some bytes a
    /// second. `None` ends the limit.
    ///
    /// # Errors
    /// The controller refuses the limit.
    pub(super) fn limit(&self, number: &str, bytes: Option<u64>, writes: bool) -> Result<()> {
        let set = |file: &str, line: String| {
            let written = std::fs::write(self.path.join(file), line);
            written.map_err(|error| Error::io("cannot set a limit", error))
        };
        if self.path.join("io.max").exists() {
            let bytes = bytes.map_or("max".to_owned(), |bytes| bytes.to_string());
            let written = if writes { &*bytes } else { "max" };
            return set("io.max", format!("{number} rbps={bytes} wbps={written}"));
        }
        let line = format!("{number} {}", bytes.unwrap_or(0));
        set("blkio.throttle.read_bps_device", line.clone())?;
        if writes { set("blkio.throttle.write_bps_device", line) } else { Ok(()) }
    }

    /// Adds a process with all its threads, and those that they start.
    ///
    /// # Errors
    /// There is no such process.
    pub(super) fn enclose(&self, pid: u32) -> Result<()> {
        std::fs::write(self.path.join("cgroup.procs"), pid.to_string())
            .map_err(|error| Error::io(format!("cannot enclose process {pid}"), error))
    }
}

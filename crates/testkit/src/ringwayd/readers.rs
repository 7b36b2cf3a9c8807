//! VMs whose guests read one slow storage with all their might.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use model::calibration::StorageDevice;
use model::report::Stats;

use super::Ringwayd;
use crate::error::{Error, Result};
use crate::guest::KERNEL_ARGS;
use crate::process::find_binary;
use crate::storage::SlowStorage;

/// Size of each disk in bytes.
const DISK_BYTES: usize = 32 << 20;
/// Memory of a guest.
const MEMORY: &str = "128MiB";
/// Script of the guests. So many reads are under way that a guest without a CPU still has some
/// waiting.
const SCRIPT: &str = "fio --name=r --filename=/dev/vda --readonly --rw=randread --bs=64k --direct=1 \
                      --ioengine=libaio --iodepth=32 --time_based --runtime=1h >/dev/null";
/// Time between two looks at the disks while the guests boot.
const LOOK: Duration = Duration::from_millis(200);

/// VMs that read one slow storage.
#[derive(Debug)]
pub struct Readers {
    /// UUIDs of the VBDs, which are the ids of the disks.
    disks: Vec<String>,
    /// Control socket of the process that serves them.
    control: PathBuf,
}

impl Readers {
    /// Starts VMs with a disk each on `slow`, and encloses the daemon, which needs a hypervisor and
    /// the configuration of [`boot_config`](crate::guest::boot_config). `identity` returns the
    /// identity of a device. Returns when each guest has read as much as the block layer lets pass
    /// at once.
    ///
    /// # Errors
    /// A call fails, or a guest reads nothing until the deadline.
    pub fn start(
        daemon: &Ringwayd,
        slow: &SlowStorage,
        identity: impl FnOnce(u64) -> StorageDevice,
        count: usize,
        deadline: Duration,
    ) -> Result<Self> {
        let io = |what: &'static str| move |error| Error::io(what, error);
        let folder = slow.place().join("sr");
        std::fs::create_dir(&folder).map_err(io("cannot make a folder"))?;
        let device = std::fs::metadata(&folder).map_err(io("cannot look at a folder"))?.dev();
        slow.store_profile(&folder, identity(device))?;
        slow.enclose(daemon.process.id())?;
        let place = format!("device-config:location={}", folder.display());
        let sr = daemon.xe_prints(&["sr-create", "type=dir", "name-label=slow", &place])?;
        // The first digits of an SR's UUID name the folder of its sockets.
        let digits = sr.get(..8).unwrap_or(&sr);
        let control = daemon.dir().join("run/io").join(digits).join("control.sock");
        let made: Vec<(String, String)> = (0..count)
            .map(|number| machine(daemon, &folder, &sr, number))
            .collect::<Result<_>>()?;
        for (machine, _) in &made {
            daemon.xe_prints(&["vm-start", &format!("uuid={machine}")])?;
        }
        let readers = Self { disks: made.into_iter().map(|(_, disk)| disk).collect(), control };
        let until = Instant::now() + deadline;
        while readers.bytes()?.into_iter().any(|bytes| bytes < 4 << 20) {
            if Instant::now() > until {
                let what = format!("reads of all guests: {:?}", readers.bytes()?);
                return Err(Error::Timeout { what, after_ms: deadline.as_millis() });
            }
            std::thread::sleep(LOOK);
        }
        Ok(readers)
    }

    /// Returns the bytes that each guest has read so far, as the disks count them.
    ///
    /// # Errors
    /// The process that serves the disks does not answer.
    pub fn bytes(&self) -> Result<Vec<u64>> {
        let text = self.ringway(&["io", "stats"])?;
        let all: Stats = serde_json::from_str(&text)
            .map_err(|error| Error::io("cannot read statistics", error))?;
        let read = |id: &String| {
            let disk = all.disks.iter().find(|disk| disk.id == *id);
            let gone = || Error::io(format!("no disk {id}"), std::io::ErrorKind::NotFound);
            disk.map(|disk| disk.bytes.read).ok_or_else(gone)
        };
        self.disks.iter().map(read).collect()
    }

    /// Returns what `ringway top` shows of the disks.
    ///
    /// # Errors
    /// It fails.
    pub fn top(&self) -> Result<String> {
        self.ringway(&["top", "--once"])
    }

    /// Sets the weight of a disk with `xe`.
    ///
    /// # Errors
    /// The call fails.
    pub fn set_weight(&self, daemon: &Ringwayd, number: usize, weight: u16) -> Result<()> {
        let disk = self.disks.get(number).map_or("", String::as_str);
        let weight = format!("qos_algorithm_params:weight={weight}");
        daemon.xe_prints(&["vbd-param-set", &format!("uuid={disk}"), &weight]).map(drop)
    }

    fn ringway(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(find_binary("ringway")?);
        crate::storage::run(command.args(words).arg("--control").arg(&self.control))
    }
}

/// Creates a VM with a disk, every byte of which is on the storage. Returns the UUIDs of VM and VBD.
fn machine(daemon: &Ringwayd, folder: &Path, sr: &str, number: usize) -> Result<(String, String)> {
    let name = format!("new-name-label=reader-{number}");
    let vm = daemon.xe_prints(&["vm-install", "template=Ringway test guest", &name])?;
    let (uuid, of) = (format!("uuid={vm}"), format!("vm-uuid={vm}"));
    let disks = daemon.xe_prints(&["vbd-list", &of, "type=Disk", "--minimal"])?;
    for disk in disks.split(',').filter(|disk| !disk.is_empty()) {
        daemon.xe_prints(&["vbd-destroy", &format!("uuid={disk}")])?;
    }
    let size = format!("virtual-size={DISK_BYTES}");
    let sr = format!("sr-uuid={sr}");
    let vdi = daemon.xe_prints(&["vdi-create", &sr, "name-label=read", "type=user", &size])?;
    let written = std::fs::write(folder.join(format!("{vdi}.raw")), vec![0xa5; DISK_BYTES]);
    written.map_err(|error| Error::io("cannot write a disk", error))?;
    let vdi = format!("vdi-uuid={vdi}");
    let vbd = daemon.xe_prints(&["vbd-create", &of, &vdi, "device=0", "mode=RW"])?;
    let script = BASE64_STANDARD.encode(SCRIPT);
    let args = format!("PV-args={KERNEL_ARGS} ringway.run={script}");
    daemon.xe_prints(&["vm-param-set", &uuid, &args])?;
    daemon.xe_prints(&["vm-memory-set", &uuid, &format!("memory={MEMORY}")])?;
    Ok((vm, vbd))
}

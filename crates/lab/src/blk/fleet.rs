//! Many disks in one process, ours or `qemu-storage-daemon`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tempfile::TempDir;
use testkit::process::{Backend, RingwayIo, find_tool};

use super::image::DISK_BYTES;
use crate::cpu;

/// Program of a backend process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendKind {
    /// `ringway-io`, or `ringway-blk` for a single disk.
    Ringway,
    /// `qemu-storage-daemon`.
    Daemon,
}

/// One disk of many.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) queues: u16,
    /// Image that is read through the page cache. `None` means a null disk, or the `backend` in `words`.
    pub(super) image: Option<PathBuf>,
    /// Additional `disk.attach` parameters for `ringway-io`.
    pub(super) words: Vec<String>,
}

/// Running process with its disks. Dropping it ends the process.
pub(super) struct Fleet {
    process: Running,
    dir: TempDir,
}

enum Running {
    Ringway(RingwayIo),
    Daemon(Backend),
}

/// Counters of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Counters {
    /// CPU time in seconds.
    pub(super) cpu_s: f64,
    /// Voluntary context switches of all threads.
    pub(super) switches: u64,
}

/// Wakeups of reactors, and turns of their loops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reactors {
    pub(super) wakeups: u64,
    pub(super) turns: u64,
}

impl Fleet {
    /// Starts a process that serves all disks. `threads` is the number of reactors or iothreads.
    /// `None` means the default.
    pub(super) fn start(
        backend_kind: BackendKind,
        disks: &[Disk],
        threads: Option<u16>,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
        let process = match backend_kind {
            BackendKind::Ringway => Running::Ringway(ringway(dir.path(), disks, threads)?),
            BackendKind::Daemon => {
                Running::Daemon(daemon(dir.path(), disks, threads.unwrap_or(1))?)
            }
        };
        Ok(Self { process, dir })
    }

    /// Returns the socket of a disk.
    pub(super) fn socket(&self, disk: usize) -> PathBuf {
        socket(self.dir.path(), disk)
    }

    fn pids(&self) -> Result<Vec<u32>> {
        match &self.process {
            Running::Ringway(io) => {
                let worker = io.process.worker_pid()?.context("ringway-io has no worker")?;
                Ok(vec![io.process.id(), worker])
            }
            Running::Daemon(backend) => Ok(vec![backend.process.id()]),
        }
    }

    /// Returns the process's CPU time in seconds.
    pub(super) fn time_s(&self) -> Result<f64> {
        self.pids()?.into_iter().map(cpu::process_time_s).sum()
    }

    /// Returns the counters of all its threads.
    pub(super) fn counters(&self) -> Result<Counters> {
        let pids = self.pids()?;
        let switches = pids.iter().map(|pid| cpu::voluntary_switches(*pid));
        Ok(Counters { switches: switches.sum::<Result<u64>>()?, cpu_s: self.time_s()? })
    }

    /// Returns the counters of its reactors, or `None` for other programs. The query wakes other
    /// threads of the process.
    pub(super) fn reactors(&self) -> Result<Option<Reactors>> {
        let Running::Ringway(io) = &self.process else { return Ok(None) };
        let text = io.ringway(&["io", "stats"])?;
        let stats: Value = serde_json::from_str(&text).context("stats is no JSON")?;
        let all = stats["reactors"].as_array().context("stats names no reactors")?;
        let sum = |name: &str| all.iter().filter_map(|one| one[name].as_u64()).sum();
        Ok(Some(Reactors { wakeups: sum("wakeups"), turns: sum("turns") }))
    }
}

fn socket(dir: &Path, disk: usize) -> PathBuf {
    dir.join(format!("{disk}.sock"))
}

fn ringway(dir: &Path, disks: &[Disk], reactors: Option<u16>) -> Result<RingwayIo> {
    let count = reactors.map(|count| count.to_string());
    let options = count.as_ref().map(|count| vec!["--reactors", count]).unwrap_or_default();
    let io = RingwayIo::start(dir, &options)?;
    for (number, Disk { queues, image, words: more }) in disks.iter().enumerate() {
        let other = more.iter().any(|word| word.starts_with("backend="));
        let backend = match image {
            Some(path) => Some(format!("backend.file={}", path.display())),
            None => (!other).then(|| format!("backend.null={DISK_BYTES}")),
        };
        let words = [
            format!("id={number}"),
            format!("socket={}", socket(dir, number).display()),
            format!("queues={queues}"),
            "cache=writeback".to_owned(),
        ];
        let words = words.iter().chain(&backend).chain(more).map(String::as_str);
        let words = ["io", "disk.attach"].into_iter().chain(words);
        io.ringway(&words.collect::<Vec<_>>())?;
    }
    Ok(io)
}

/// Starts `qemu-storage-daemon`. Assigns disks to iothreads round robin.
fn daemon(dir: &Path, disks: &[Disk], threads: u16) -> Result<Backend> {
    let tool = find_tool("qemu-storage-daemon", "qemu-system-common")?;
    // QEMU's option syntax doubles commas in values.
    let quoted = |path: &Path| path.display().to_string().replace(',', ",,");
    let mut arguments = Vec::new();
    for thread in 0..threads {
        arguments.extend(["--object".to_owned(), format!("iothread,id=io{thread}")]);
    }
    for (number, Disk { queues, image, words: _ }) in disks.iter().enumerate() {
        let disk = match image {
            Some(path) => format!(
                "driver=file,node-name=n{number},filename={},aio=io_uring,cache.direct=off",
                quoted(path)
            ),
            None => {
                format!("driver=null-co,node-name=n{number},size={DISK_BYTES},read-zeroes=off")
            }
        };
        let export = format!(
            "type=vhost-user-blk,id=e{number},node-name=n{number},addr.type=unix,addr.path={},\
             num-queues={queues},writable=on,iothread=io{}",
            quoted(&socket(dir, number)),
            number % usize::from(threads),
        );
        arguments.extend(["--blockdev".to_owned(), disk, "--export".to_owned(), export]);
    }
    Ok(Backend::by_pid_file(|_, pid_file| {
        let mut command = Command::new(tool);
        command.args(arguments).arg("--pidfile").arg(pid_file);
        command
    })?)
}

/// Raises the limit of open files to `wanted` for this process and its children. Also raises the
/// hard limit if permitted. Returns the resulting limit.
pub(crate) fn raise_open_files(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.is_none_or(|maximum| maximum >= wanted);
    let maximum = if enough { limit.maximum } else { Some(wanted) };
    // Without the privilege to raise the hard limit, the hard limit applies.
    if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

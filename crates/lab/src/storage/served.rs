//! Process that serves many disks: `ringway-io` or `qemu-storage-daemon`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;
use testkit::process::{Backend, RingwayIo, Target, find_binary, find_tool};

use super::records::Records;
use super::streams::{self, Event, Stream};
use crate::blk::client::{self, Window};
use crate::blk::fleet::raise_open_files;
use crate::cpu;
use crate::experiment::Sample;
use crate::host::HostTime;

/// Files that a disk needs open in the process that serves it, and in this one.
const FILES_PER_DISK: u64 = 40;
/// Reactors and iothreads for all disks.
const THREADS: u16 = 2;

/// Disk of `ringway-io`: its backend, and further parameters of `disk.attach`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Disk {
    pub(super) backend: Value,
    pub(super) words: Vec<String>,
}

/// Storage of the disks of `qemu-storage-daemon`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DaemonStorage {
    /// Null disks of this size and latency. Bytes; nanoseconds.
    Null { bytes: u64, latency_ns: u64 },
    /// Files by direct I/O.
    Files(Vec<PathBuf>),
}

/// Running process with its disks. Dropping it ends the process.
pub(super) struct Served {
    process: Running,
    dir: TempDir,
}

enum Running {
    Ringway(RingwayIo),
    Daemon(Backend),
}

fn folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("ringway-lab-").tempdir()?)
}

impl Served {
    /// Starts `ringway-io` with these disks, whose ids are their numbers.
    pub(super) fn ringway(disks: &[Disk]) -> Result<Self> {
        raise_open_files(1000 + FILES_PER_DISK * disks.len() as u64);
        let dir = folder()?;
        let io = RingwayIo::start(dir.path(), &["--reactors", &THREADS.to_string()])?;
        for (number, disk) in disks.iter().enumerate() {
            let words: Vec<&str> = disk.words.iter().map(String::as_str).collect();
            io.attach_target(&number.to_string(), &Target::Tree(disk.backend.clone()), &words)?;
        }
        Ok(Self { process: Running::Ringway(io), dir })
    }

    /// Starts `qemu-storage-daemon` with so many disks. `limit` is that of a throttle group of all, in
    /// bytes a second.
    pub(super) fn daemon(
        disks: usize,
        storage: &DaemonStorage,
        limit: Option<u64>,
    ) -> Result<Self> {
        raise_open_files(1000 + FILES_PER_DISK * disks as u64);
        let (dir, tool) = (folder()?, find_tool("qemu-storage-daemon", "qemu-system-common")?);
        let arguments = daemon_arguments(dir.path(), disks, storage, limit);
        let process = Backend::by_pid_file(|_, pid_file| {
            let mut command = Command::new(tool);
            command.args(arguments).arg("--pidfile").arg(pid_file);
            command
        })?;
        Ok(Self { process: Running::Daemon(process), dir })
    }

    /// Calls `ringway` with these words.
    pub(super) fn call(&self, words: &[&str]) -> Result<()> {
        match &self.process {
            Running::Ringway(io) => Ok(io.ringway(words).map(drop)?),
            Running::Daemon(_) => Ok(()),
        }
    }

    /// Starts `ringway io` with these words. The call ends with the process that is returned.
    pub(super) fn begin(&self, words: &[&str]) -> Result<Child> {
        let Running::Ringway(io) = &self.process else { bail!("only ringway-io takes calls") };
        let mut command = Command::new(find_binary("ringway")?);
        command.args(["io", "--control"]).arg(io.dir().join("io.sock")).args(words);
        command.stdout(Stdio::null()).spawn().context("cannot start ringway")
    }

    /// Returns the bytes that the present `image.convert` has copied.
    pub(super) fn converted(&self) -> Result<u64> {
        let Running::Ringway(io) = &self.process else { bail!("only ringway-io takes calls") };
        let reply: Value = serde_json::from_str(&io.ringway(&["io", "image.progress"])?)?;
        Ok(reply["converting"][0]["done_bytes"].as_u64().unwrap_or(0))
    }

    fn time_s(&self) -> Result<f64> {
        match &self.process {
            Running::Ringway(io) => {
                let worker = io.process.worker_pid()?.context("ringway-io has no worker")?;
                Ok(cpu::process_time_s(io.process.id())? + cpu::process_time_s(worker)?)
            }
            Running::Daemon(backend) => cpu::process_time_s(backend.process.id()),
        }
    }

    /// Runs streams on the disks. Each entry has a disk's streams, one for each of its queues. Returns
    /// their records, and a sample with the total and the CPU time.
    pub(super) fn run(
        &self,
        disks: &[Vec<Stream>],
        window: Window,
        events: Vec<Event<'_>>,
    ) -> Result<(Records, Sample)> {
        let mut running = Vec::new();
        for (number, streams) in disks.iter().enumerate() {
            let Some(first) = streams.first() else { continue };
            let queues = u16::try_from(streams.len()).context("too many queues")?;
            let socket = socket(self.dir.path(), number);
            let seats = client::seats(&socket, first.load, queues, None)?;
            running.extend(streams.iter().copied().zip(seats));
        }
        let times = || -> Result<[f64; 3]> {
            Ok([self.time_s()?, cpu::process_time_s(std::process::id())?, HostTime::now()?.busy_s])
        };
        let (before, start) = (times()?, std::time::Instant::now());
        let records = streams::run(running, window, events)?;
        let (after, wall_s) = (times()?, start.elapsed().as_secs_f64());
        let [backend_s, clients_s, busy_s] = [0, 1, 2].map(|at| after[at] - before[at]);
        let figures = [
            ("mib_per_s", records.total() / 1048576.0),
            ("requests", records.requests() as f64),
            ("backend_cpus", backend_s / wall_s),
            ("client_cpus", clients_s / wall_s),
            ("other_cpus", (busy_s - backend_s - clients_s).max(0.0) / wall_s),
        ];
        Ok((records, figures.map(|(name, value)| (name.to_owned(), value)).into()))
    }
}

/// Returns the window of a sample, whose warm-up takes half of a second at least: requests that were
/// sent at once must have spread.
pub(super) fn window(measure: Duration) -> Window {
    Window { warm: (measure / 4).max(Duration::from_millis(500).min(measure)), measure }
}

fn socket(dir: &Path, disk: usize) -> PathBuf {
    dir.join(format!("{disk}.sock"))
}

fn daemon_arguments(
    dir: &Path,
    disks: usize,
    storage: &DaemonStorage,
    limit: Option<u64>,
) -> Vec<String> {
    // QEMU's option syntax doubles commas in values.
    let quoted = |path: &Path| path.display().to_string().replace(',', ",,");
    let mut arguments = Vec::new();
    for thread in 0..THREADS {
        arguments.extend(["--object".to_owned(), format!("iothread,id=io{thread}")]);
    }
    if let Some(limit) = limit {
        let group = format!("throttle-group,id=tg,x-bps-total={limit}");
        arguments.extend(["--object".to_owned(), group]);
    }
    for number in 0..disks {
        let mut disk = match storage {
            DaemonStorage::Null { bytes, latency_ns } => format!(
                "driver=null-co,node-name=n{number},size={bytes},read-zeroes=off,\
                 latency-ns={latency_ns}"
            ),
            DaemonStorage::Files(paths) => format!(
                "driver=file,node-name=n{number},filename={},aio=io_uring,cache.direct=on",
                paths.get(number).map(|path| quoted(path)).unwrap_or_default()
            ),
        };
        let mut node = format!("n{number}");
        if limit.is_some() {
            arguments.extend(["--blockdev".to_owned(), disk]);
            disk = format!("driver=throttle,node-name=t{number},throttle-group=tg,file={node}");
            node = format!("t{number}");
        }
        let export = format!(
            "type=vhost-user-blk,id=e{number},node-name={node},addr.type=unix,addr.path={},\
             num-queues=4,writable=on,iothread=io{}",
            quoted(&socket(dir, number)),
            number % usize::from(THREADS),
        );
        arguments.extend(["--blockdev".to_owned(), disk, "--export".to_owned(), export]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_the_daemon_are_in_one_group() {
        let null = DaemonStorage::Null { bytes: 512, latency_ns: 5 };
        let text = |limit| daemon_arguments(Path::new("/d"), 3, &null, limit).join(" ");
        let with = text(Some(1000));
        assert_eq!(with.matches("throttle-group=tg").count(), 3);
        assert!(
            with.contains("id=tg,x-bps-total=1000") && with.contains("node-name=t2,"),
            "{with}"
        );
        let without = text(None);
        assert!(!without.contains("throttle"), "{without}");
        assert!(without.contains("id=e2,node-name=n2,") && without.contains("iothread=io0"));
        let files = DaemonStorage::Files(vec!["/a,b".into()]);
        let files = daemon_arguments(Path::new("/d"), 1, &files, None).join(" ");
        assert!(files.contains("filename=/a,,b,") && files.contains("cache.direct=on"), "{files}");
    }
}

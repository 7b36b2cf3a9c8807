//! NBD servers: how to start them, and their names.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use testkit::process::{Backend, PROCESS_DEADLINE, Process, RingwayIo, find_tool};

use super::reply_only;
use crate::blk::image::{DISK_BYTES, Images};
use crate::blk::medium::Medium;
use crate::cpu::{self, Placement};
use crate::experiment::Sample;
use crate::fio::{self, Load, To};
use crate::host::HostTime;
use crate::in_process::InProcessServer;

/// NBD server of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    /// `ringway-io` with an exported disk.
    Ringway,
    /// `qemu-storage-daemon` in one of two modes.
    Daemon {
        /// True for `read-zeroes=on` instead of off, or `aio=io_uring` instead of threads.
        other: bool,
    },
    /// `nbdkit` with its null or memory plugin.
    Nbdkit,
    /// Reply-only server, the limit of the client itself.
    ReplyOnly,
}

/// Running server.
enum Server {
    Ringway(RingwayIo, PathBuf),
    Backend(Backend),
    Thread(InProcessServer),
}

impl System {
    /// Returns the name for tables.
    pub(super) fn name(self, medium: Medium) -> &'static str {
        match (self, medium) {
            (Self::Ringway, _) => "ringway-io",
            (Self::Daemon { other: false }, Medium::Null) => "qsd read-zeroes=off",
            (Self::Daemon { other: true }, Medium::Null) => "qsd read-zeroes=on",
            (Self::Daemon { other: false }, _) => "qsd aio=threads",
            (Self::Daemon { other: true }, _) => "qsd aio=io_uring",
            (Self::Nbdkit, Medium::Null) => "nbdkit null",
            (Self::Nbdkit, _) => "nbdkit memory",
            (Self::ReplyOnly, _) => "(reply only)",
        }
    }

    /// Starts the server on its CPU, measures it, and ends it.
    pub(super) fn measure(
        self,
        medium: Medium,
        images: &Images,
        load: Load,
        window: Duration,
        placement: Placement,
    ) -> Result<Sample> {
        let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
        let start = || self.start(medium, images, dir.path(), placement.backend);
        let server = cpu::started_on(placement.backend, start)?;
        // A file needs no fill, because its image has data.
        if medium == Medium::Memory && matches!(self, Self::Ringway | Self::Nbdkit) {
            fill(&images.tmpfs, server.socket())?;
        }
        let (cpu, host, start) = (server.time_s()?, HostTime::now()?, Instant::now());
        let mut ran = {
            let to = To::Nbd(server.socket());
            fio::run(to, DISK_BYTES, dir.path(), load, window, placement.client)?
        };
        let (cpu, wall_s) = (server.time_s()? - cpu, start.elapsed().as_secs_f64());
        let busy_s = HostTime::now()?.busy_s - host.busy_s;
        let other_s = (busy_s - cpu - ran.cpu_s).max(0.0);
        let requests = ran.sample.get("requests").copied().unwrap_or(1.0);
        let more = [
            ("backend_cpus", cpu / ran.seconds),
            ("backend_cpu_us_per_request", cpu * 1e6 / requests),
            ("other_cpus", other_s / wall_s),
        ];
        ran.sample.extend(more.map(|(name, value)| (name.to_owned(), value)));
        server.finish()?;
        Ok(ran.sample)
    }

    fn start(self, medium: Medium, images: &Images, dir: &Path, cpu: usize) -> Result<Server> {
        match self {
            Self::Ringway => ringway(medium, images, dir),
            Self::Daemon { other } => daemon(medium, images, other),
            Self::Nbdkit => nbdkit(medium),
            Self::ReplyOnly => {
                let holes = medium == Medium::Null;
                Ok(Server::Thread(reply_only::start(dir, cpu, DISK_BYTES, holes)?))
            }
        }
    }
}

impl Server {
    fn socket(&self) -> &Path {
        match self {
            Self::Ringway(_, socket) => socket,
            Self::Backend(backend) => backend.socket(),
            Self::Thread(thread) => thread.socket(),
        }
    }

    /// Returns the server's CPU time in seconds.
    fn time_s(&self) -> Result<f64> {
        match self {
            Self::Ringway(io, _) => {
                let keeper = cpu::process_time_s(io.process.id())?;
                let worker = io.process.worker_pid()?.context("ringway-io has no worker")?;
                Ok(keeper + cpu::process_time_s(worker)?)
            }
            Self::Backend(backend) => cpu::process_time_s(backend.process.id()),
            Self::Thread(thread) => thread.time_s(),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Thread(thread) => thread.finish(),
            // The process is killed on drop.
            Self::Ringway(..) | Self::Backend(_) => Ok(()),
        }
    }
}

fn ringway(medium: Medium, images: &Images, dir: &Path) -> Result<Server> {
    let io = RingwayIo::start(dir, &[])?;
    let backend = match medium {
        Medium::Null => format!("backend.null={DISK_BYTES}"),
        Medium::Memory => format!("backend.memory={DISK_BYTES}"),
        Medium::Cached | Medium::Direct => format!("backend.file={}", images.disk.display()),
    };
    let disk = format!("socket={}", io.socket("d").display());
    let socket = dir.join("d.nbd");
    let export = format!("socket={}", socket.display());
    let attach =
        ["io", "disk.attach", "id=d", &disk, &backend, "cache=writeback", "activate=false"];
    io.ringway(&attach)?;
    io.ringway(&["io", "disk.export", "id=d", &export, "read_only=false"])?;
    Ok(Server::Ringway(io, socket))
}

fn daemon(medium: Medium, images: &Images, other: bool) -> Result<Server> {
    let zeroes = if other { "on" } else { "off" };
    let aio = if other { "io_uring" } else { "threads" };
    // QEMU's option syntax doubles commas in values.
    let file = |path: &Path| {
        let path = path.display().to_string().replace(',', ",,");
        format!("driver=file,node-name=n0,filename={path},aio={aio}")
    };
    let blockdev = match medium {
        Medium::Null => {
            format!("driver=null-co,node-name=n0,size={DISK_BYTES},read-zeroes={zeroes}")
        }
        Medium::Memory => file(&images.tmpfs),
        Medium::Cached | Medium::Direct => file(&images.disk),
    };
    let tool = find_tool("qemu-storage-daemon", "qemu-system-common")?;
    let backend = Backend::by_pid_file(|socket, pid_file| {
        let mut command = Command::new(tool);
        command
            .args(["--blockdev", &blockdev])
            .args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())])
            .args(["--export", "type=nbd,id=e0,node-name=n0,name=d,writable=on"])
            .arg("--pidfile")
            .arg(pid_file);
        command
    })?;
    Ok(Server::Backend(backend))
}

fn nbdkit(medium: Medium) -> Result<Server> {
    let tool = find_tool("nbdkit", "nbdkit")?;
    let plugin = if medium == Medium::Null { "null" } else { "memory" };
    let backend = Backend::by_pid_file(|socket, pid_file| {
        let mut command = Command::new(tool);
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket);
        command.arg("--pidfile").arg(pid_file).arg(plugin).arg(format!("size={DISK_BYTES}"));
        command
    })?;
    Ok(Server::Backend(backend))
}

/// Writes a whole disk once, so that its memory is allocated before a measurement.
fn fill(image: &Path, socket: &Path) -> Result<()> {
    let mut command = Command::new(find_tool("nbdcopy", "libnbd-bin")?);
    command.arg(image).arg(format!("nbd+unix:///d?socket={}", socket.display()));
    let mut copy = Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
    let status = copy.wait(PROCESS_DEADLINE)?;
    anyhow::ensure!(status.success(), copy.error(format!("ended with {status}")));
    Ok(())
}

//! Backends that the user has started.
//!
//! The lab keeps one connection for the whole run, because some backends exit when their first
//! client disconnects. Between its samples, SIGSTOP stops the process, because a spinning process
//! would take its CPU from the measured system.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use testkit::driver::Options;

use crate::blk::client::{self, ClientQueue, Load, Window};
use crate::cpu;
use crate::experiment::Sample;

/// Largest queue depth for a peer, because its driver is set up once for all loads.
const SLOTS: u16 = 64;
const SLOT_BYTES: usize = 128 << 10;
/// Queue size in descriptors: three for each request.
const QUEUE_SIZE: u16 = 256;

/// Peer as given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerArgument {
    /// Name for the reader.
    pub name: String,
    /// Path of its vhost-user socket.
    pub socket: PathBuf,
    /// Id of the process whose CPU time counts.
    pub pid: u32,
}

impl FromStr for PeerArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not NAME=SOCKET,PID, as in spdk=/tmp/vhost.0,1234");
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (socket, pid) = rest.rsplit_once(',').ok_or_else(wrong)?;
        let pid = pid.parse().map_err(|_| wrong())?;
        if name.is_empty() || socket.is_empty() || pid == 0 {
            return Err(wrong());
        }
        Ok(Self { name: name.to_owned(), socket: socket.into(), pid })
    }
}

/// Connected peer.
pub struct Peer {
    name: String,
    pid: u32,
    process: Pid,
    /// `None` only after a failed sample.
    client_queue: Option<ClientQueue>,
    /// CPUs that its threads may use, in the kernel's list format.
    cpus: String,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("name", &self.name).field("pid", &self.pid).finish()
    }
}

impl Peer {
    /// Connects to a peer and stops it until its first sample.
    ///
    /// # Errors
    /// The socket or the process does not exist, or the process does not listen on the socket. The
    /// error names the remedy.
    pub fn join(argument: &PeerArgument) -> Result<Self> {
        let PeerArgument { name, socket, pid } = argument;
        let process = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        let process = process.with_context(|| format!("--peer {name}: {pid} is no process id"))?;
        check(name, socket, *pid)?;
        let options = Options {
            queue_size: QUEUE_SIZE,
            slots: SLOTS,
            slot_bytes: SLOT_BYTES,
            ..Options::default()
        };
        let driver = client::connect(socket, options)
            .with_context(|| format!("--peer {name}: {} does not serve", socket.display()))?;
        let disk_bytes = driver.disk.bytes;
        let client_queue = ClientQueue { queue: driver.into_queue()?, disk_bytes, cpu: None };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let cpus = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
        let cpus = cpus.unwrap_or("unknown").trim().to_owned();
        let peer =
            Self { name: name.clone(), pid: *pid, process, client_queue: Some(client_queue), cpus };
        peer.signal(Signal::STOP)?;
        Ok(peer)
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the note for the reader of its figures.
    #[must_use]
    pub fn note(&self) -> String {
        format!(
            "{} was not started by the lab (process {}, CPUs {}): its disk and its CPUs \
             are those of its start. The lab stops it (SIGSTOP) while it measures other systems.",
            self.name, self.pid, self.cpus
        )
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let Self { name, pid, .. } = self;
        kill_process(self.process, signal)
            .with_context(|| format!("--peer {name}: cannot stop or continue process {pid}"))
    }

    /// Continues the peer, measures it, and stops it again.
    ///
    /// # Errors
    /// The peer fails a request, or has ended.
    pub fn measure(&mut self, load: Load, window: Window, client_cpu: usize) -> Result<Sample> {
        let (name, pid) = (self.name.clone(), self.pid);
        ensure!(load.depth <= SLOTS && load.bytes <= SLOT_BYTES, "{name}: too large a load");
        let client_queue =
            self.client_queue.take().with_context(|| format!("{name}: has failed before"))?;
        let small = client_queue.disk_bytes / (load.bytes as u64) < u64::from(load.depth);
        ensure!(!small, "{name}: its disk of {} bytes is too small", client_queue.disk_bytes);
        let client_queues = vec![ClientQueue { cpu: Some(client_cpu), ..client_queue }];
        self.signal(Signal::CONT)?;
        let measured =
            client::measure_all(client_queues, load, window, || cpu::process_time_s(pid));
        let (sample, mut client_queues) = measured.with_context(|| format!("--peer {name}"))?;
        self.client_queue = client_queues.pop();
        self.signal(Signal::STOP)?;
        Ok(sample)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Ignores the error if the process has ended.
        let _ = self.signal(Signal::CONT);
    }
}

/// Checks that the path is a socket on which the process listens.
fn check(name: &str, socket: &Path, pid: u32) -> Result<()> {
    let shown = socket.display();
    let metadata = fs::metadata(socket);
    let metadata = metadata.with_context(|| format!("--peer {name}: there is no {shown}"))?;
    ensure!(metadata.file_type().is_socket(), "--peer {name}: {shown} is no socket");
    ensure!(
        Path::new(&format!("/proc/{pid}")).exists(),
        "--peer {name}: there is no process {pid}; `ss -xlp` shows the process that serves {shown}"
    );
    let listening = listening(socket, &metadata, pid);
    let files = fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| {
        format!("--peer {name}: process {pid} has another user; run the lab as that user or root")
    })?;
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let held: Vec<String> = links.map(|link| link.display().to_string()).collect();
    if !listening.iter().any(|inode| held.contains(&format!("socket:[{inode}]"))) {
        bail!("--peer {name}: process {pid} does not listen on {shown}; `ss -xlp` shows who does");
    }
    Ok(())
}

/// Returns the inodes of the sockets bound to a path, as the process sees it.
fn listening(socket: &Path, metadata: &fs::Metadata, pid: u32) -> Vec<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    let is_it = |bound: &str| {
        let bound = Path::new(bound);
        // A relative path starts at the process's working directory, and the process may have
        // another root.
        let seen = if bound.is_absolute() {
            PathBuf::from(format!("/proc/{pid}/root{}", bound.display()))
        } else {
            Path::new(&format!("/proc/{pid}/cwd")).join(bound)
        };
        bound == socket
            || fs::metadata(seen)
                .is_ok_and(|m| (m.dev(), m.ino()) == (metadata.dev(), metadata.ino()))
    };
    let row = |line: &str| {
        // Num RefCount Protocol Flags Type St Inode Path
        let inode = line.split_whitespace().nth(6)?;
        let (_, bound) = line.split_once(&format!(" {inode} "))?;
        is_it(bound).then(|| inode.to_owned())
    };
    table.lines().skip(1).filter_map(row).collect()
}

//! A server of one disk that a test or an experiment kills and that starts again.

use std::path::PathBuf;

use tempfile::TempDir;

use super::{Backend, PROCESS_DEADLINE, Process, RingwayIo, Target, Worker};
use crate::error::{Error, Result};

/// Serial number of the disk, by which a guest finds it.
const SERIAL: &str = "RINGWAY";
/// Id of the disk in `ringway-io`.
const DISK: &str = "d";

/// Program that serves the disk, and what starts it again after its death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerProgram {
    /// Worker of `ringway-io`, by its keeper.
    Io,
    /// Worker of `ringway-blk --supervise`, by its keeper.
    SupervisedBlk,
    /// `ringway-blk`, by the test, as a service manager would.
    Blk,
}

/// Options of a [`RestartingServer`].
#[derive(Clone, Debug)]
pub struct RestartingDisk<'a> {
    /// Program that serves the disk.
    pub program: ServerProgram,
    /// Storage of the disk. [`ServerProgram::Blk`] loses [`Target::Memory`] when it dies.
    pub target: Target,
    /// Number of queues.
    pub queues: u16,
    /// Cache mode, as `--cache` of `ringway-blk` has it.
    pub cache: &'a str,
}

/// A server of one disk that is killed and starts again.
#[derive(Debug)]
pub struct RestartingServer {
    server: Server,
    /// Worker that [`Self::serving`] returned last.
    last: Option<u32>,
}

#[derive(Debug)]
enum Server {
    /// The directory has the sockets.
    Io(RingwayIo, #[expect(dead_code, reason = "it is removed on drop")] TempDir),
    SupervisedBlk(Backend),
    Blk(Backend),
}

impl RestartingServer {
    /// Starts the program. Returns when the disk's socket accepts.
    ///
    /// # Errors
    /// [`Error::Missing`] if the program is not built, [`Error::Process`] or [`Error::Reply`] with
    /// its message if it refuses the disk.
    pub fn start(disk: &RestartingDisk<'_>) -> Result<Self> {
        let server = match disk.program {
            ServerProgram::Io => start_io(disk)?,
            ServerProgram::SupervisedBlk => {
                let at_once = ["--supervise", "--restart-pause-max", "0"];
                Server::SupervisedBlk(start_blk(disk, &at_once)?)
            }
            ServerProgram::Blk => Server::Blk(start_blk(disk, &[])?),
        };
        Ok(Self { server, last: None })
    }

    /// Returns the path of the disk's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        match &self.server {
            Server::Io(io, _) => io.socket(DISK),
            Server::SupervisedBlk(backend) | Server::Blk(backend) => backend.socket().to_owned(),
        }
    }

    /// Returns the process that serves. After a kill, it waits for the successor of the process
    /// that it returned last.
    ///
    /// # Errors
    /// [`Error::Process`] if the keeper starts no successor before the deadline.
    pub fn serving(&mut self) -> Result<Worker> {
        let keeper = match &mut self.server {
            Server::Blk(backend) => return backend.process.as_worker(),
            Server::Io(io, _) => &mut io.process,
            Server::SupervisedBlk(backend) => &mut backend.process,
        };
        let worker = keeper.next_worker(self.last)?;
        self.last = Some(worker.id());
        Ok(worker)
    }

    /// Starts the program again if no keeper does. The process has died or is about to. The socket
    /// then leads to its successor.
    ///
    /// # Errors
    /// [`Error::Process`] with its message if it ends.
    pub fn start_again(&mut self) -> Result<()> {
        let Server::Blk(backend) = &mut self.server else { return Ok(()) };
        backend.process.wait(PROCESS_DEADLINE)?;
        backend.start_again()
    }

    /// Returns the process that the caller started: the keeper, or the program itself.
    pub fn process(&mut self) -> &mut Process {
        match &mut self.server {
            Server::Io(io, _) => &mut io.process,
            Server::SupervisedBlk(backend) | Server::Blk(backend) => &mut backend.process,
        }
    }
}

fn start_blk(disk: &RestartingDisk<'_>, more: &[&str]) -> Result<Backend> {
    let queues = disk.queues.to_string();
    let (option, value) = match &disk.target {
        Target::Null(bytes) => ("--null", bytes.to_string()),
        Target::Memory(bytes) => ("--memory", bytes.to_string()),
        Target::File(path) => ("--blk-file", path.display().to_string()),
        Target::Window { .. } | Target::Tree(_) => ("--backend", disk.target.backend().to_string()),
    };
    let options = [option, &value, "--num-queues", &queues, "--cache", disk.cache];
    let more = [&["--serial", SERIAL], more].concat();
    Backend::ringway_blk(&[&options[..], &more].concat())
}

fn start_io(disk: &RestartingDisk<'_>) -> Result<Server> {
    let dir = tempfile::Builder::new().prefix("ringway-test-").tempdir();
    let dir = dir.map_err(|e| Error::io("cannot create a temporary directory", e))?;
    let io = RingwayIo::start(dir.path(), &[])?;
    let options = [
        &format!("queues={}", disk.queues),
        &format!("cache={}", disk.cache),
        &format!("serial={SERIAL}"),
    ];
    io.attach_target(DISK, &disk.target, &options.map(String::as_str))?;
    Ok(Server::Io(io, dir))
}

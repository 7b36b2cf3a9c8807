//! Processes that serve one disk on one vhost-user socket.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::inotify;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PROCESS_DEADLINE, Process, find_binary, find_tool};
use crate::error::{Error, Result};
use crate::raw::guest::wait_readable;

/// Storage of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// No storage: reads return arbitrary bytes, writes are lost. Size in bytes.
    Null(u64),
    /// Memory of the backend. Size in bytes.
    Memory(u64),
    /// A file.
    File(PathBuf),
    /// Bytes from `offset` on of a file.
    Window {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Size in bytes.
        size: u64,
    },
    /// Tree of nodes, as `disk.attach` has it.
    Tree(Value),
}

impl Target {
    /// Returns the backend as `disk.attach` has it, in JSON.
    #[must_use]
    pub fn backend(&self) -> Value {
        match self {
            Self::Null(bytes) => json!({"null": bytes}),
            Self::Memory(bytes) => json!({"memory": bytes}),
            Self::File(path) => json!({"file": path}),
            Self::Window { path, offset, size } => {
                json!({"raw": {"child": {"file": path}, "offset": offset, "size": size}})
            }
            Self::Tree(tree) => tree.clone(),
        }
    }
}

/// Options of a `qemu-storage-daemon` with one vhost-user-blk export.
#[derive(Debug, Clone)]
pub struct StorageDaemon {
    /// Storage of the disk: null, a file, a tree of files and qcow2 images with paths, or an NBD export
    /// on a Unix socket.
    pub target: Target,
    /// Number of queues.
    pub queues: u16,
    /// Refuse writes.
    pub read_only: bool,
    /// Use O_DIRECT for files.
    pub direct: bool,
    /// `poll-max-ns` of its iothread. `None`: the program's default.
    pub poll_max_ns: Option<u64>,
}

impl StorageDaemon {
    /// Creates options for one queue, writable, direct, with default polling.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self { target, queues: 1, read_only: false, direct: true, poll_max_ns: None }
    }

    fn blockdev(&self) -> Result<String> {
        let read_only = if self.read_only { "on" } else { "off" };
        match &self.target {
            Target::Null(size) => Ok(format!(
                "driver=null-co,node-name=n0,size={size},read-zeroes=off,read-only={read_only}"
            )),
            Target::File(path) => {
                let direct = if self.direct { "on" } else { "off" };
                // A comma in the value of an option is written twice.
                let path = path.display().to_string().replace(',', ",,");
                Ok(format!(
                    "driver=file,node-name=n0,filename={path},aio=io_uring,cache.direct={direct},\
                     discard=unmap,read-only={read_only}"
                ))
            }
            Target::Tree(tree) => {
                let mut top = self.node(tree)?;
                top["node-name"] = "n0".into();
                top["read-only"] = self.read_only.into();
                Ok(top.to_string())
            }
            Target::Memory(_) | Target::Window { .. } => Err(cannot_serve()),
        }
    }

    /// Returns the node of QEMU for a tree as `disk.attach` has it.
    fn node(&self, tree: &Value) -> Result<Value> {
        let file = |path: &Value| {
            let path = path.as_str().ok_or_else(cannot_serve)?;
            Ok(json!({"driver": "file", "filename": path, "aio": "io_uring",
                      "cache": {"direct": self.direct}, "discard": "unmap"}))
        };
        if let Some(address) = tree.get("nbd").and_then(Value::as_str) {
            let parts =
                address.strip_prefix("nbd+unix:///").and_then(|it| it.split_once("?socket="));
            let (export, path) = parts.ok_or_else(cannot_serve)?;
            let server = json!({"type": "unix", "path": path});
            return Ok(json!({"driver": "nbd", "server": server, "export": export}));
        }
        if let Some(vhd) = tree.get("vhd") {
            return Ok(json!({"driver": "vpc", "file": file(&vhd["file"])?}));
        }
        let Some(qcow2) = tree.get("qcow2") else { return file(&tree["file"]) };
        let backing = qcow2.get("backing").map(|backing| match self.node(backing)? {
            // QEMU takes only formats as the backing of an image.
            file if file["driver"] == "file" => Ok(json!({"driver": "raw", "file": file})),
            image => Ok(image),
        });
        let backing = backing.transpose()?;
        Ok(json!({"driver": "qcow2", "file": file(&qcow2["file"])?, "backing": backing,
                  "cache": {"direct": self.direct}, "discard": "unmap"}))
    }
}

fn cannot_serve() -> Error {
    Error::Missing {
        program: "a memory disk, a window or an open file of qemu-storage-daemon".into(),
        next: "give it paths of files, VHDs and qcow2 images".into(),
    }
}

/// A running backend, with its socket in a directory of its own.
#[derive(Debug)]
pub struct Backend {
    /// Process of the backend. It is killed before the directory is removed.
    pub process: Process,
    socket: PathBuf,
    /// Path of the program that [`Backend::start_again`] starts.
    program: PathBuf,
    options: Vec<OsString>,
    dir: TempDir,
}

impl Backend {
    /// Starts `ringway-blk` with the given options besides `--socket-path` and `--ready-fd`.
    /// Returns when its socket accepts.
    ///
    /// # Errors
    /// [`Error::Missing`] if it is not built, [`Error::Process`] with its message if it ends.
    pub fn ringway_blk<S: AsRef<OsStr>>(options: &[S]) -> Result<Self> {
        Self::ringway_blk_at(&find_binary("ringway-blk")?, options)
    }

    /// Starts the `ringway-blk` at this path, for example an older build, as
    /// [`Backend::ringway_blk`] does.
    ///
    /// # Errors
    /// As [`Backend::ringway_blk`].
    pub fn ringway_blk_at<S: AsRef<OsStr>>(program: &Path, options: &[S]) -> Result<Self> {
        let (dir, socket) = socket_dir()?;
        let options: Vec<_> = options.iter().map(|option| option.as_ref().to_owned()).collect();
        let process = start_ringway_blk(program, &socket, &options)?;
        Ok(Self { process, socket, program: program.to_owned(), options, dir })
    }

    /// Starts `ringway-blk` again with the same options and socket, after the former one has ended.
    ///
    /// # Errors
    /// As [`Backend::ringway_blk`].
    pub fn start_again(&mut self) -> Result<()> {
        self.process = start_ringway_blk(&self.program, &self.socket, &self.options)?;
        Ok(())
    }

    /// Starts `qemu-storage-daemon`. Returns when its socket accepts.
    ///
    /// # Errors
    /// [`Error::Missing`] if it is not installed, [`Error::Process`] with its message if it ends.
    pub fn storage_daemon(options: &StorageDaemon) -> Result<Self> {
        let tool = find_tool("qemu-storage-daemon", "qemu-system-common")?;
        let blockdev = options.blockdev()?;
        let writable = if options.read_only { "off" } else { "on" };
        let poll = options.poll_max_ns.map(|ns| format!(",poll-max-ns={ns}")).unwrap_or_default();
        let queues = options.queues;
        Self::by_pid_file(|socket, pid_file| {
            let export = format!(
                "type=vhost-user-blk,id=e0,node-name=n0,addr.type=unix,addr.path={},\
                 num-queues={queues},writable={writable},iothread=io0",
                socket.display(),
            );
            let mut command = Command::new(tool);
            command
                .args(["--blockdev", &blockdev])
                .args(["--object", &format!("iothread,id=io0{poll}")])
                .args(["--export", &export])
                .arg("--pidfile")
                .arg(pid_file);
            command
        })
    }

    /// Starts any program that writes a pid file when it listens. `command` receives the paths of
    /// the socket and of that file.
    ///
    /// # Errors
    /// [`Error::Process`] with its message if it ends.
    pub fn by_pid_file(command: impl FnOnce(&Path, &Path) -> Command) -> Result<Self> {
        let (dir, socket) = socket_dir()?;
        let pid_file = dir.path().join("pid");
        let mut command = command(&socket, &pid_file);
        command.stdout(Stdio::null());
        let program = command.get_program().into();
        let watch = Watch::new(dir.path())?;
        let mut process = Process::start(&mut command)?;
        watch.wait_written(&pid_file, &mut process)?;
        Ok(Self { process, socket, program, options: Vec::new(), dir })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the backend's own directory, for files of the test.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

fn start_ringway_blk(program: &Path, socket: &Path, options: &[OsString]) -> Result<Process> {
    let mut command = Command::new(program);
    command.arg("--socket-path").arg(socket).args(options);
    command.args(["--ready-fd", "1"]).stdout(Stdio::piped());
    let mut process = Process::start(&mut command)?;
    wait_ready_byte(&mut process)?;
    Ok(process)
}

fn socket_dir() -> Result<(TempDir, PathBuf)> {
    let dir = tempfile::Builder::new().prefix("ringway-test-").tempdir();
    let dir = dir.map_err(|e| Error::io("cannot create a temporary directory", e))?;
    let socket = dir.path().join("disk.sock");
    Ok((dir, socket))
}

/// Waits for the byte that Ringway's programs write to `--ready-fd` when they accept. At the end of
/// the file, the program has ended.
pub(super) fn wait_ready_byte(process: &mut Process) -> Result<()> {
    let Some(stdout) = process.child().stdout.take() else {
        return Err(process.error("was started without a pipe to report on"));
    };
    if wait_readable(&[stdout.as_fd()], PROCESS_DEADLINE)?.is_none() {
        return Err(process.error("did not get ready in time"));
    }
    match rustix::io::read(&stdout, &mut [0; 64]) {
        Ok(1..) => Ok(()),
        _ => {
            let status = process.wait(PROCESS_DEADLINE)?;
            Err(process.error(format!("ended before it was ready ({status})")))
        }
    }
}

/// Watch of a directory for files that are written.
struct Watch(std::os::fd::OwnedFd);

impl Watch {
    fn new(dir: &Path) -> Result<Self> {
        let watch = || -> rustix::io::Result<_> {
            let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            let events = inotify::WatchFlags::MODIFY | inotify::WatchFlags::MOVED_TO;
            inotify::add_watch(&fd, dir, events)?;
            Ok(fd)
        };
        watch().map(Self).map_err(|e| Error::io(format!("cannot watch {}", dir.display()), e))
    }

    /// Waits for a pid file, which `qemu-storage-daemon` and `nbdkit` write once they listen.
    fn wait_written(&self, file: &Path, process: &mut Process) -> Result<()> {
        let until = Instant::now() + PROCESS_DEADLINE;
        loop {
            if file.metadata().is_ok_and(|m| m.len() > 0) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            match wait_readable(&[self.0.as_fd(), process.ended().as_fd()], left)? {
                Some(0) => {
                    // The file shows what happened; the events themselves do not matter.
                    let _ = rustix::io::read(&self.0, &mut [0; 4096]);
                }
                Some(_) => {
                    let status = process.wait(PROCESS_DEADLINE)?;
                    return Err(process.error(format!("ended before it was ready ({status})")));
                }
                None => return Err(process.error("did not get ready in time")),
            }
        }
    }
}

//! Serving processes that tests kill and that start again.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use model::rpc::{Request as Call, Response};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};
use testkit::process::{Backend, PROCESS_DEADLINE, Process, find_binary};
use testkit::raw::guest::wait_readable;

/// Small enough for a fast comparison, large enough for hundreds of concurrent requests.
const DISK_BYTES: u64 = 16 << 20;

/// A server that is killed and starts again.
pub(crate) trait Victim {
    fn socket(&self) -> &Path;
    /// Finds the process that serves now.
    fn hunt(&mut self) -> Hunter;
    /// Starts the server again if no keeper does. The process has died or is about to; the
    /// socket then leads to its successor.
    fn revive(&mut self);
    /// Returns the end of its log.
    fn log(&mut self) -> String;
}

/// Handle that kills one process, from any thread.
pub(crate) struct Hunter(OwnedFd);

impl Hunter {
    pub(crate) fn shoot(&self) {
        pidfd_send_signal(&self.0, Signal::KILL).unwrap();
    }

    /// Waits until the process is dead.
    pub(crate) fn wait(&self) {
        assert_eq!(wait_readable(&[self.0.as_fd()], PROCESS_DEADLINE).unwrap(), Some(0));
    }
}

/// A `ringway-blk`, which the test starts again.
pub(crate) struct RingwayBlk {
    backend: Backend,
    _image: tempfile::NamedTempFile,
}

fn image() -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(DISK_BYTES).unwrap();
    image
}

impl RingwayBlk {
    pub(crate) fn start(queues: u16, cache: &str) -> Self {
        let image = image();
        let (path, queues) = (image.path().to_str().unwrap(), queues.to_string());
        let options = ["--blk-file", path, "--num-queues", &queues, "--cache", cache];
        let backend = Backend::ringway_blk(&options).unwrap();
        Self { backend, _image: image }
    }
}

impl Victim for RingwayBlk {
    fn socket(&self) -> &Path {
        self.backend.socket()
    }

    fn hunt(&mut self) -> Hunter {
        Hunter(self.backend.process.ended().try_clone().unwrap())
    }

    fn revive(&mut self) {
        self.backend.process.wait(PROCESS_DEADLINE).unwrap();
        self.backend.start_again().unwrap();
    }

    fn log(&mut self) -> String {
        self.backend.process.stderr()
    }
}

/// A worker of `ringway-blk --supervise`.
pub(crate) struct Supervised {
    backend: Backend,
    dead: Option<u32>,
}

impl Supervised {
    pub(crate) fn memory(queues: u16) -> Self {
        let (size, queues) = (DISK_BYTES.to_string(), queues.to_string());
        let options = ["--memory", &size, "--num-queues", &queues, "--supervise"];
        let options = [&options[..], &["--restart-pause-max", "0"]].concat();
        Self { backend: Backend::ringway_blk(&options).unwrap(), dead: None }
    }
}

impl Victim for Supervised {
    fn socket(&self) -> &Path {
        self.backend.socket()
    }

    fn hunt(&mut self) -> Hunter {
        next_worker(&mut self.backend.process, &mut self.dead)
    }

    fn revive(&mut self) {}

    fn log(&mut self) -> String {
        self.backend.process.stderr()
    }
}

fn next_worker(keeper: &mut Process, dead: &mut Option<u32>) -> Hunter {
    let worker = keeper.next_worker(*dead).unwrap();
    *dead = Some(worker.id());
    Hunter(worker.ended().try_clone().unwrap())
}

/// A worker of `ringway-io`, which its keeper starts again.
pub(crate) struct RingwayIo {
    keeper: Process,
    socket: PathBuf,
    dead: Option<u32>,
    _image: Option<tempfile::NamedTempFile>,
    _dir: tempfile::TempDir,
}

impl RingwayIo {
    pub(crate) fn memory(queues: u16) -> Self {
        Self::start(&json!({"memory": DISK_BYTES}), queues, "none", None)
    }

    pub(crate) fn file(queues: u16, cache: &str) -> Self {
        let image = image();
        let backend = json!({"file": image.path()});
        Self::start(&backend, queues, cache, Some(image))
    }

    fn start(
        backend: &Value,
        queues: u16,
        cache: &str,
        image: Option<tempfile::NamedTempFile>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (control, socket) = (dir.path().join("control"), dir.path().join("d.sock"));
        let mut command = Command::new(find_binary("ringway-io").unwrap());
        command.arg("--control").arg(&control).args(["--restart-pause-max", "0"]);
        command.args(["--ready-fd", "1"]).stdout(Stdio::piped());
        let mut keeper = Process::start(&mut command).unwrap();
        let ready = keeper.child().stdout.take().unwrap();
        assert_eq!(wait_readable(&[ready.as_fd()], PROCESS_DEADLINE).unwrap(), Some(0));
        let spec = json!({
            "id": "d", "socket": &socket, "backend": backend, "queues": queues, "cache": cache,
        });
        let mut stream = UnixStream::connect(&control)
            .unwrap_or_else(|_| panic!("{}", keeper.error("takes no calls")));
        let mut line = serde_json::to_vec(&Call::new(1, "disk.attach", spec)).unwrap();
        line.push(b'\n');
        stream.write_all(&line).unwrap();
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).unwrap();
        serde_json::from_str::<Response>(&reply).unwrap().outcome().unwrap();
        Self { keeper, socket, dead: None, _image: image, _dir: dir }
    }
}

impl Victim for RingwayIo {
    fn socket(&self) -> &Path {
        &self.socket
    }

    fn hunt(&mut self) -> Hunter {
        next_worker(&mut self.keeper, &mut self.dead)
    }

    fn revive(&mut self) {}

    fn log(&mut self) -> String {
        self.keeper.stderr()
    }
}

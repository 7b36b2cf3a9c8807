//! Helpers that start the built programs and call them.
// Test code, of which each file uses only a part.
#![allow(clippy::unwrap_used, clippy::panic, dead_code, unreachable_pub)]

pub mod frames;
pub mod nbd;
pub mod nics;
pub mod sectors;
pub mod switch;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use model::report::DiskState;
use model::rpc::{DiskReply, Response, RpcError};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::process::{PROCESS_DEADLINE, Process, sharing_alone};

pub const BLK: &str = env!("CARGO_BIN_EXE_ringway-blk");
pub const NET: &str = env!("CARGO_BIN_EXE_ringway-net");
pub const IO: &str = env!("CARGO_BIN_EXE_ringway-io");

/// Runs a program until it ends. Returns its exit code and standard error.
pub fn ends<S: AsRef<OsStr>>(program: &str, options: &[S]) -> (i32, String) {
    let mut process =
        Process::start(Command::new(program).args(options).stdout(Stdio::null())).unwrap();
    let status = process.wait(PROCESS_DEADLINE).unwrap();
    (status.code().unwrap(), process.stderr())
}

/// Starts a program with `--ready-fd`, and waits until it is ready.
pub fn ready<S: AsRef<OsStr>>(program: &str, options: &[S]) -> Process {
    let mut command = Command::new(program);
    command.args(options).args(["--ready-fd", "1"]).stdout(Stdio::piped());
    let mut process = Process::start(&mut command).unwrap();
    let mut out = process.child().stdout.take().unwrap();
    let mut byte = [0];
    match out.read_exact(&mut byte) {
        Ok(()) => process,
        Err(_) => panic!("{}", process.error("did not get ready")),
    }
}

/// Starts `ringway-blk` on `socket`.
pub fn blk(socket: &Path, options: &[&str]) -> Process {
    let socket = socket.to_str().unwrap();
    ready(BLK, &[&["--socket-path", socket], options].concat())
}

/// Creates a file of `bytes` zeroes.
pub fn image(folder: &TempDir, name: &str, bytes: u64) -> String {
    let path = folder.path().join(name);
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path.to_str().unwrap().into()
}

pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Returns a folder that every user may write.
pub fn open_folder() -> TempDir {
    let folder = folder();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), all).unwrap();
    folder
}

/// Copies a program to a folder, where every user finds it. Returns its path.
pub fn copy_for_all(folder: &TempDir, program: &str) -> String {
    let copy = folder.path().join("program");
    testkit::process::copy_program(Path::new(program), &copy).unwrap();
    copy.to_str().unwrap().into()
}

/// Returns the arguments of `setpriv` before a program that runs as this user.
pub fn as_user(user: u32) -> Vec<String> {
    vec![format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]
}

pub fn names(folder: &TempDir) -> Vec<String> {
    let entries = folder.path().read_dir().unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(|e| name(e).into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the name of each thread of a process, and how often it slept.
pub fn sleeps(pid: u32) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let threads = entries.filter_map(|entry| {
        let path = entry.unwrap().path();
        // The thread may have ended.
        let text = std::fs::read_to_string(path.join("status")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        let id = path.file_name().unwrap().to_string_lossy().into_owned();
        let count = field("voluntary_ctxt_switches:").parse().unwrap();
        Some((format!("{} {id}", field("Name:")), count))
    });
    threads.collect()
}

/// Returns the CPU time of a process in hundredths of a second (proc_pid_stat(5), utime and stime).
/// The number of sleeps would not do: a thread that always polls sleeps as seldom as an idle one.
pub fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let times = fields.split_ascii_whitespace().skip(11).take(2);
    times.map(|time| time.parse::<u64>().unwrap()).sum()
}

/// Time without any wakeup that proves idleness. Rarer events cost less than a percent of a CPU.
pub fn stillness() -> Duration {
    Duration::from_secs(testkit::rounds(3, 10) as u64)
}

/// Ends the load of another thread, also if the test fails: a scope waits for its threads.
pub struct Ended<'a>(pub &'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the result of `work` and its duration.
pub fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    let began = Instant::now();
    (work(), began.elapsed())
}

/// Running `ringway-io`.
pub struct Io {
    pub process: Process,
    pub folder: TempDir,
    control: PathBuf,
}

impl Io {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a program that ends with the test, even if the test fails.
    pub fn start_with(options: &[&str]) -> Self {
        Self::lasting(&[options, &["--die-with-parent"]].concat())
    }

    /// Starts a program whose worker continues when its keeper is killed.
    pub fn lasting(options: &[&str]) -> Self {
        Self::lasting_in(folder(), options)
    }

    fn lasting_in(folder: TempDir, options: &[&str]) -> Self {
        let control = folder.path().join("control");
        let text = control.to_str().unwrap().to_owned();
        let words = ["--control", &text];
        let process = ready(IO, &[&words, options, sharing_alone(options)].concat());
        Self { process, folder, control }
    }

    /// Starts a program through another one, `via` with its arguments, which executes it.
    pub fn through(via: &[&str], options: &[&str]) -> Self {
        Self::through_in(folder(), via, options)
    }

    /// Starts another program in the folder of this one, which has ended.
    pub fn again(self) -> Self {
        Self::lasting_in(self.folder, &["--die-with-parent"])
    }

    /// As [`Io::through`], with this folder.
    pub fn through_in(folder: TempDir, via: &[&str], options: &[&str]) -> Self {
        let control = folder.path().join("control");
        let words = [IO, "--control", control.to_str().unwrap(), "--die-with-parent"];
        let (program, via) = via.split_first().unwrap();
        Self {
            process: ready(program, &[via, &words, options, sharing_alone(options)].concat()),
            folder,
            control,
        }
    }

    /// Starts a copy of the program as this user, who has no other processes.
    pub fn start_as(user: u32) -> Self {
        let folder = open_folder();
        let program = copy_for_all(&folder, IO);
        let control = folder.path().join("control");
        let words = [&program, "--control", control.to_str().unwrap(), "--die-with-parent"];
        let via = as_user(user);
        let via: Vec<_> = via.iter().map(String::as_str).collect();
        Self {
            process: ready("setpriv", &[&via[..], &words, sharing_alone(&[])].concat()),
            folder,
            control,
        }
    }

    pub fn caller(&self) -> Caller {
        Caller::connect(&self.control)
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the parameters of `disk.attach` for a disk `id` on a socket of the same name.
    pub fn spec(&self, id: &str, backend: Value) -> Value {
        json!({"id": id, "socket": self.socket(id), "backend": backend})
    }
}

/// Connection to a control socket.
pub struct Caller {
    reader: BufReader<UnixStream>,
    next: u64,
}

impl Caller {
    pub fn connect(control: &Path) -> Self {
        let stream = UnixStream::connect(control).unwrap();
        stream.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
        Self { reader: BufReader::new(stream), next: 1 }
    }

    pub fn send_line(&mut self, line: &[u8]) {
        self.reader.get_mut().write_all(line).unwrap();
    }

    pub fn stream(&self) -> &UnixStream {
        self.reader.get_ref()
    }

    /// Reads the next reply as text.
    pub fn read_line(&mut self, line: &mut String) {
        self.reader.read_line(line).unwrap();
    }

    /// Returns the next reply, or `None` if the other side has closed.
    pub fn receive(&mut self) -> Option<Response> {
        let mut line = String::new();
        match self.reader.read_line(&mut line).unwrap() {
            0 => None,
            _ => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    /// Sends any line and returns the error reply.
    pub fn refused_line(&mut self, line: &str) -> (Value, RpcError) {
        self.send_line(format!("{line}\n").as_bytes());
        let response = self.receive().unwrap();
        (response.id, response.error.unwrap())
    }

    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        let id = self.next;
        self.next += 1;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send_line(format!("{request}\n").as_bytes());
        let response = self.receive().unwrap();
        assert_eq!(response.id, id);
        response.outcome()
    }

    /// Attaches a disk and sends descriptors with the request.
    pub fn attach_with(&mut self, spec: Value, fds: &[BorrowedFd<'_>]) -> Result<Value, RpcError> {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "disk.attach", "params": spec});
        let line = format!("{request}\n");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        let iov = [IoSlice::new(line.as_bytes())];
        let sent = sendmsg(self.stream(), &iov, &mut control, SendFlags::empty()).unwrap();
        assert_eq!(sent, line.len());
        self.receive().unwrap().outcome()
    }

    pub fn disk(&mut self, method: &str, params: Value) -> DiskReply {
        serde_json::from_value(self.call(method, params).unwrap()).unwrap()
    }

    pub fn stats(&mut self) -> model::report::Stats {
        serde_json::from_value(self.call("stats", Value::Null).unwrap()).unwrap()
    }

    pub fn state(&mut self, id: &str) -> Option<DiskState> {
        self.stats().disks.into_iter().find(|disk| disk.id == id).map(|disk| disk.state)
    }
}

/// Returns the types of open descriptors of a process without pipes, because the pipe of
/// `--ready-fd` closes some time after its newline.
pub fn open_files(process: &Process) -> Vec<String> {
    let folder = format!("/proc/{}/fd", process.id());
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        // Socket numbers change, so drop them.
        .map(|link| link.to_string_lossy().split(':').next().unwrap_or_default().to_owned())
        .filter(|kind| kind != "pipe")
        .collect();
    names.sort();
    names
}

/// Limits the descriptors of a process to numbers below `limit`. Returns the former limit.
pub fn limit_open_files(process: u32, limit: u64) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let had: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
    let new = Rlimit { current: Some(limit), maximum: Some(had[1]) };
    let pid = Pid::from_raw(process.try_into().unwrap());
    prlimit(pid, Resource::Nofile, new).unwrap();
    had[0]
}

/// Limits the descriptors of a process and its children to numbers below `limit`, for ever.
pub fn cap_open_files(process: u32, limit: u64) {
    let pid = Pid::from_raw(process.try_into().unwrap());
    let new = Rlimit { current: Some(limit), maximum: Some(limit) };
    prlimit(pid, Resource::Nofile, new).unwrap();
}

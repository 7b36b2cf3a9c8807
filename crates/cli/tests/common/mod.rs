//! A `ringway run` under test, with directories of its own.
#![allow(dead_code, reason = "each test program uses its own part of this")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

/// The program under test.
pub(crate) const RINGWAY: &str = env!("CARGO_BIN_EXE_ringway");

/// Returns kernel and initramfs of the test guest.
pub(crate) fn guest() -> (PathBuf, PathBuf) {
    let guest = testkit::guest::artifacts().unwrap();
    (guest.kernel, guest.initramfs)
}

/// Fails with a clear message if the datapath has not been built.
pub(crate) fn need_ringway_io() {
    let beside = Path::new(RINGWAY).with_file_name("ringway-io");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there =
        beside.is_file() || std::env::split_paths(&path).any(|d| d.join("ringway-io").is_file());
    assert!(there, "{} is missing; build it with `cargo build -p iod`", beside.display());
}

/// Directory of everything in one run: images, sockets, caches. Its path is on the command line of
/// every process of the run, which identifies these processes.
pub(crate) struct World {
    dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        need_ringway_io();
        let dir = tempfile::Builder::new().prefix("rw-test-").tempdir().unwrap();
        for part in ["run", "img", "cache"] {
            std::fs::create_dir(dir.path().join(part)).unwrap();
        }
        Self { dir }
    }

    /// Creates a zero-filled image of `size` bytes and returns its path.
    pub(crate) fn image(&self, name: &str, size: u64) -> PathBuf {
        let path = self.dir.path().join("img").join(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        path
    }

    /// Creates a directory in this one.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Returns a command of `ringway` that uses this directory.
    pub(crate) fn ringway(&self) -> Command {
        let mut command = Command::new(RINGWAY);
        command
            .env("XDG_RUNTIME_DIR", self.dir.path().join("run"))
            .env("XDG_CACHE_HOME", self.dir.path().join("cache"))
            .stdin(Stdio::null());
        command
    }

    /// Returns a `ringway run` of the test guest, which executes `script`. The kernel prints its
    /// messages; the first one shows that the machine runs. The time limit is two minutes.
    pub(crate) fn run(&self, script: &str) -> Command {
        let (kernel, initrd) = guest();
        let mut command = self.ringway();
        let encoded = base64(script.as_bytes());
        let append = format!(
            "console=ttyS0 panic=-1 mitigations=off cryptomgr.notests tsc=reliable \
             no_timer_check nokaslr ringway.run={encoded}"
        );
        command.args(["run", "--accel", "tcg", "--memory", "256M", "--timeout", "120s"]);
        command.arg("--kernel").arg(kernel).arg("--initrd").arg(initrd);
        command.args(["--append", &append]);
        command
    }

    /// Returns all processes of this run.
    pub(crate) fn processes(&self) -> Vec<(Pid, String)> {
        let marker = self.dir.path().join("run").to_str().unwrap().to_owned();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let lines = ids.filter_map(|id| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
            Some((Pid::from_raw(id)?, String::from_utf8_lossy(&line).replace('\0', " ")))
        });
        lines.filter(|(_, line)| line.contains(&marker)).collect()
    }

    /// Returns the process whose program is `name`.
    pub(crate) fn process(&self, name: &str) -> Pid {
        let all = self.processes();
        let found = all
            .iter()
            .find(|(_, line)| line.split(' ').take(2).any(|word| Path::new(word).ends_with(name)));
        found.unwrap_or_else(|| panic!("no {name} in {all:?}")).0
    }

    /// Asserts that the run has left neither a process nor a file.
    pub(crate) fn assert_clean(&self) {
        let processes = self.processes();
        assert!(processes.is_empty(), "left behind: {processes:?}");
        let files: Vec<_> = std::fs::read_dir(self.dir.path().join("run")).unwrap().collect();
        assert!(files.is_empty(), "left behind: {files:?}");
    }
}

/// A started run: its console line by line, and its standard error at the end.
pub(crate) struct Running {
    child: Child,
    console: BufReader<std::process::ChildStdout>,
    /// Console output so far.
    pub(crate) seen: String,
    errors: Option<std::thread::JoinHandle<String>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let console = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        Self { child, console, seen: String::new(), errors: Some(errors) }
    }

    /// Reads the console until a line contains `text`.
    pub(crate) fn wait_for(&mut self, text: &str) {
        loop {
            let mut line = Vec::new();
            let count = self.console.read_until(b'\n', &mut line).unwrap();
            let line = String::from_utf8_lossy(&line).into_owned();
            self.seen.push_str(&line);
            if line.contains(text) {
                return;
            }
            if count == 0 {
                self.end_before(text);
            }
        }
    }

    /// Panics because the run ended without `text`. Prints only the last lines: test reports are
    /// truncated, and a guest prints hundreds before them.
    fn end_before(&mut self, text: &str) -> ! {
        let status = self.child.wait().unwrap();
        let lines: Vec<_> = self.seen.lines().collect();
        let last = lines[lines.len().saturating_sub(25)..].join("\n");
        let errors = self.errors();
        panic!("{status} before the console had {text:?}; its end:\n{last}\n\n{errors}");
    }

    /// Types `text`, then closes the input.
    pub(crate) fn type_and_close(&mut self, text: &str) {
        self.child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Reads the rest and waits. Returns the exit status, the console and standard error.
    pub(crate) fn finish(mut self) -> (ExitStatus, String, String) {
        let mut rest = Vec::new();
        self.console.read_to_end(&mut rest).unwrap();
        self.seen.push_str(&String::from_utf8_lossy(&rest));
        let status = self.child.wait().unwrap();
        (status, std::mem::take(&mut self.seen), self.errors())
    }

    /// Returns standard error, at the end of the run.
    fn errors(&mut self) -> String {
        self.errors.take().unwrap().join().unwrap()
    }
}

/// Waits at most half a minute for the end of a process that is not a child.
pub(crate) fn wait_for_end(pid: Pid) {
    // The process does not exist, so it has ended.
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let mut watched = [PollFd::new(&descriptor, PollFlags::IN)];
    let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut watched, Some(&limit)).unwrap(), 1, "{pid:?} still runs");
}

/// Returns Base64 with padding, for the guest's `base64 -d`.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, b| word << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = (word >> (18 - 6 * digit) & 63) as usize;
            text.push(if digit <= chunk.len() { char::from(DIGITS[index]) } else { '=' });
        }
    }
    text
}

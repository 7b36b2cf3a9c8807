//! A `ringway-io` with disks, and simulated guests that use them.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part of this")]

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::process::{Process, find_binary, sharing_alone};
use testkit::raw::{Guest, Setup};

/// The program under test.
pub const RINGWAY: &str = env!("CARGO_BIN_EXE_ringway");

/// A running `ringway-io`.
pub struct Served {
    pub process: Process,
    pub dir: TempDir,
    control: PathBuf,
}

impl Served {
    pub fn start(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let control = dir.path().join("control");
        Self::in_dir(dir, control, options)
    }

    /// Starts a process with this control socket, whose directory is created.
    pub fn start_at(control: PathBuf) -> Self {
        std::fs::create_dir_all(control.parent().unwrap()).unwrap();
        Self::in_dir(tempfile::tempdir().unwrap(), control, &[])
    }

    fn in_dir(dir: TempDir, control: PathBuf, options: &[&str]) -> Self {
        let mut command = Command::new(find_binary("ringway-io").unwrap());
        command.arg("--control").arg(&control).args(options);
        command.args(sharing_alone(options)).args(["--ready-fd", "1"]).stdout(Stdio::piped());
        let mut process = Process::start(&mut command).unwrap();
        let mut ready = [0];
        let result = process.child().stdout.take().unwrap().read_exact(&mut ready);
        assert!(result.is_ok(), "{}", process.error("did not get ready"));
        Self { process, dir, control }
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a command of `ringway` with these words for this `ringway-io`.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(RINGWAY);
        command.args(words).env("RINGWAY_CONTROL", &self.control);
        command.stdin(Stdio::null());
        command
    }

    /// Runs `ringway` with these words and returns its output.
    pub fn ringway(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs `ringway` with these words and returns its standard output. It must succeed.
    pub fn stdout(&self, words: &[&str]) -> String {
        let output = self.ringway(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Attaches a disk with additional fields from `more`.
    pub fn attach(&self, id: &str, backend: Value, more: Value) {
        let mut spec = json!({"id": id, "socket": self.socket(id), "backend": backend});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        self.stdout(&["io", "disk.attach", &spec.to_string()]);
    }

    pub fn guest(&self, id: &str) -> Guest {
        Guest::start(&self.socket(id), &Setup::default()).unwrap()
    }
}

//! Start of a daemon, the same way each time.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::clock::WallClock;
use crate::error::{Error, Result};
use crate::process::{PROCESS_DEADLINE, Process, find_binary};
use crate::raw::guest::wait_readable;

/// Longest line with which a daemon reports that it serves, in bytes.
const READY_BYTES_MAX: usize = 4096;

/// Options of a daemon besides its paths.
#[derive(Debug)]
pub(super) struct Setup {
    options: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Setup {
    pub(super) fn new(options: &[&str]) -> Self {
        Self { options: options.iter().map(OsString::from).collect(), environment: Vec::new() }
    }

    pub(super) fn at(self, clock: &WallClock) -> Self {
        Self { environment: clock.environment(), ..self }
    }

    /// Starts a daemon in this directory. Returns when it serves, with the line that it printed.
    pub(super) fn start(&self, dir: &Path) -> Result<(Process, String)> {
        let mut command = Command::new(find_binary("ringwayd")?);
        command
            .arg("--state")
            .arg(dir.join("state"))
            .arg("--run")
            .arg(dir.join("run"))
            .arg("--socket")
            .arg(socket_of(dir));
        if !self.has_option("--listen") {
            command.args(["--listen", "127.0.0.1:0,plain"]);
        }
        if !self.has_option("--slices") {
            command.args(["--slices", "off"]);
        }
        // A measurement takes long, and tests of other things must not wait beside it.
        if !self.has_option("--calibrate") {
            command.args(["--calibrate", "off"]);
        }
        let environment = self.environment.iter().map(|(name, value)| (name, value));
        command.args(&self.options).envs(environment).stdout(Stdio::piped());
        fs::create_dir_all(dir.join("state")).map_err(|e| Error::io("cannot make the state", e))?;
        let mut process = Process::start(&mut command)?;
        let ready_line = ready(&mut process)?;
        Ok((process, ready_line))
    }

    fn has_option(&self, option: &str) -> bool {
        self.options.iter().any(|one| one == option)
    }
}

/// Returns the path of the socket of a daemon in this directory.
pub(super) fn socket_of(dir: &Path) -> PathBuf {
    dir.join("s")
}

/// Reads the line that a daemon prints when it serves.
fn ready(process: &mut Process) -> Result<String> {
    let Some(mut stdout) = process.child().stdout.take() else {
        return Err(process.error("was started without a pipe to report on"));
    };
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && line.len() < READY_BYTES_MAX {
        if wait_readable(&[stdout.as_fd()], PROCESS_DEADLINE)?.is_none() {
            return Err(process.error("did not serve in time"));
        }
        let mut byte = [0];
        match stdout.read(&mut byte) {
            Ok(1) => line.push(byte[0]),
            _ => {
                let status = process.wait(PROCESS_DEADLINE)?;
                return Err(process.error(format!("ended before it served ({status})")));
            }
        }
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

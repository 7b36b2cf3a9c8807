//! A `ringwayd` under test, in a directory of its own, with its clients.

pub mod fleet;
mod groups;
mod leftovers;
mod readers;
mod shell;
mod slices;
mod start;

use std::fs;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use xenapi::client::{Client, ClientError};

use crate::clock::WallClock;
use crate::error::{Error, Result};
use crate::process::{PROCESS_DEADLINE, Process, find_binary};
use crate::raw::guest::wait_readable;
use crate::requirements::HostRequirement;
pub use readers::Readers;
pub use shell::Shell;
pub use slices::Slices;
use start::{Setup, socket_of};

/// File with the simulator's rules, in the daemon's directory.
const RULES: &str = "state/simulator/rules.toml";

/// A running daemon.
#[derive(Debug)]
pub struct Ringwayd {
    /// Process of the daemon. It is killed before the directory is removed.
    pub process: Process,
    setup: Setup,
    ready_line: String,
    dir: TempDir,
}

impl Ringwayd {
    /// Starts a daemon on the simulator, with these options besides the paths. Returns when it
    /// serves.
    ///
    /// # Errors
    /// [`Error::Missing`] if it is not built, [`Error::Process`] with its message if it ends.
    pub fn simulator(options: &[&str]) -> Result<Self> {
        let options = [&["--hypervisor", "simulator"], options].concat();
        Self::start(&options)
    }

    /// Starts a daemon with these options and control groups of its own. Returns when it serves.
    /// Returns `None` if this process cannot create groups, and `RINGWAY_NO_CGROUPS=1` says that
    /// this is known.
    ///
    /// # Errors
    /// As [`simulator`](Self::simulator); also if the daemon has no groups on a host that allows
    /// them.
    pub fn with_slices(options: &[&str]) -> Result<Option<Self>> {
        let mut daemon = Self::start(&[options, &["--slices", "auto"]].concat())?;
        if daemon.slices().is_some() {
            return Ok(Some(daemon));
        }
        if groups::can_be_made() {
            return Err(daemon
                .process
                .error("has no control groups, although this host permits them"));
        }
        HostRequirement::Groups.leave_out(daemon.process.stderr().trim()).map(|()| None)
    }

    /// Starts a daemon with these options besides the paths. Returns when it serves. It has no
    /// control groups unless the options request them.
    ///
    /// # Errors
    /// As [`simulator`](Self::simulator).
    pub fn start(options: &[&str]) -> Result<Self> {
        Self::begin(Setup::new(options))
    }

    /// [Starts](Self::start) a daemon that uses this clock, as do all processes that it starts.
    ///
    /// # Errors
    /// As [`simulator`](Self::simulator).
    pub fn start_at(clock: &WallClock, options: &[&str]) -> Result<Self> {
        Self::begin(Setup::new(options).at(clock))
    }

    fn begin(setup: Setup) -> Result<Self> {
        // Socket paths must be short, so the directory has a short name.
        let dir = tempfile::Builder::new().prefix("rw-").tempdir();
        let dir = dir.map_err(|e| Error::io("cannot create a temporary directory", e))?;
        let (process, ready_line) = setup.start(dir.path())?;
        Ok(Self { process, setup, ready_line, dir })
    }

    /// Starts the daemon again with the same options and state, after the former one has ended.
    ///
    /// # Errors
    /// As [`simulator`](Self::simulator).
    pub fn start_again(&mut self) -> Result<()> {
        (self.process, self.ready_line) = self.setup.start(self.dir.path())?;
        Ok(())
    }

    /// Sends SIGTERM to the daemon and waits for its end.
    ///
    /// # Errors
    /// [`Error::Process`] with its message if it does not end, or not with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.process.terminate()?;
        if status.success() { Ok(()) } else { Err(self.process.error(format!("ended ({status})"))) }
    }

    /// Kills the daemon, and waits for the end of its helper processes. VMs and every `ringway-io`
    /// outlive it, other children do not. Returns the number of helpers.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the command line of a helper that does not end.
    pub fn kill(&mut self) -> Result<usize> {
        let helpers = leftovers::helpers(self.process.id())?;
        self.process.kill()?;
        for (helper, words) in &helpers {
            if wait_readable(&[helper.ended().as_fd()], PROCESS_DEADLINE)?.is_none() {
                let what = format!("the end of `{}`, whose daemon was killed", words.trim_end());
                return Err(Error::Timeout { what, after_ms: PROCESS_DEADLINE.as_millis() });
            }
        }
        Ok(helpers.len())
    }

    /// Writes the simulator's rules for calls. The simulator detects the change by itself.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn set_rules(&self, rules: &str) -> Result<()> {
        let path = self.dir.path().join(RULES);
        let new = path.with_extension("new");
        let written = fs::write(&new, rules).and_then(|()| fs::rename(&new, &path));
        written.map_err(|e| Error::io("cannot write the simulator's rules", e))
    }

    /// Returns the line that the daemon printed when it began to serve.
    #[must_use]
    pub fn ready_line(&self) -> &str {
        &self.ready_line
    }

    /// Returns its URL without TLS, such as `http://127.0.0.1:1234`. It changes with each start.
    ///
    /// # Errors
    /// [`Error::Process`] if the daemon has no such listener.
    pub fn url(&mut self) -> Result<String> {
        let place = self.ready_line.split_whitespace().find_map(|word| word.strip_suffix(",plain"));
        match place {
            Some(place) => Ok(format!("http://{place}")),
            None => Err(self.process.error(format!("serves no plain HTTP: {}", self.ready_line))),
        }
    }

    /// Returns its TLS address, if it has one. It changes with each start.
    #[must_use]
    pub fn tls(&self) -> Option<SocketAddr> {
        self.ready_line.split_whitespace().find_map(|word| word.parse().ok())
    }

    /// Returns the password of root, which the daemon generated at its first start.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, or contains none.
    pub fn password(&self) -> Result<String> {
        let path = self.dir.path().join("state/password");
        let what = || format!("cannot read a password in {}", path.display());
        let text = fs::read_to_string(&path).map_err(|e| Error::io(what(), e))?;
        let none = || Error::io(what(), std::io::Error::other("it has one line"));
        text.lines().nth(1).map(str::to_owned).ok_or_else(none)
    }

    /// Returns the command lines of processes that belong to the daemon, without the daemon.
    #[must_use]
    pub fn processes(&self) -> Vec<String> {
        self.started().into_iter().map(|(_, words)| words).collect()
    }

    /// Returns everything that belongs to VMs and their disks, one line each: processes,
    /// directories, sockets, locks of images. Empty when all VMs are halted.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        leftovers::of_machines(self.dir.path())
    }

    /// Opens the serial line of a VM with a test guest, by its UUID.
    ///
    /// # Errors
    /// [`Error::Io`] if the VM does not run.
    pub fn shell(&self, machine: &str) -> Result<Shell> {
        Shell::open(&self.dir.path().join("run/vm").join(machine).join("console.sock"))
    }

    /// Returns the path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket_of(self.dir.path())
    }

    /// Returns its control groups, if it has created some.
    #[must_use]
    pub fn slices(&self) -> Option<Slices> {
        Slices::of(&self.socket())
    }

    /// Returns the ids and command lines of processes that belong to the daemon, without the
    /// daemon.
    #[must_use]
    pub fn started(&self) -> Vec<(u32, String)> {
        let others = leftovers::processes(self.dir.path()).into_iter();
        let others = others.filter(|one| one.pid != self.process.id());
        others.map(|one| (one.pid, one.words)).collect()
    }

    /// Returns the daemon's own directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a client that has logged in at its socket.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn client(&self) -> std::result::Result<Client, ClientError> {
        let mut client = Client::unix(self.socket())?;
        client.login("root", "", "test")?;
        Ok(client)
    }

    /// Returns a command that runs `xe` with these words for this daemon, with a home of its own.
    ///
    /// # Errors
    /// [`Error::Missing`] if it is not built.
    pub fn xe(&self, words: &[&str]) -> Result<Command> {
        let mut command = Command::new(find_binary("xe")?);
        command
            .arg("-s")
            .arg(self.socket())
            .args(words)
            .env("HOME", self.dir.path())
            .env("XDG_CACHE_HOME", self.dir.path().join("cache"))
            .env_remove("XE_EXTRA_ARGS")
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Runs `xe` with these words. Returns its output, without the end of the last line.
    ///
    /// # Errors
    /// [`Error::Io`] with its message if it fails.
    pub fn xe_prints(&self, words: &[&str]) -> Result<String> {
        let output = self.xe_output(words)?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let text = text + &String::from_utf8_lossy(&output.stdout);
            let what = format!("xe {}", words.join(" "));
            return Err(Error::io(what, std::io::Error::other(text)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_owned())
    }

    /// Runs `xe` with these words. Returns its status and output.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Io`] if it cannot be started.
    pub fn xe_output(&self, words: &[&str]) -> Result<Output> {
        self.xe(words)?.output().map_err(|e| Error::io("cannot run xe", e))
    }
}

/// Ends all processes that the daemon has started. They outlive the daemon, but not the test.
impl Drop for Ringwayd {
    fn drop(&mut self) {
        let _has_ended_already = self.process.kill();
        leftovers::end(self.dir.path());
        if let Some(slices) = self.slices() {
            slices.remove();
        }
    }
}

//! A `ringwayd` under test, in a directory of its own, with whoever calls it.

pub mod fleet;
mod groups;
mod leftovers;
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
pub use shell::Shell;
pub use slices::Slices;
use start::{Setup, socket_of};

/// What the simulator does with calls, in the daemon's directory.
const RULES: &str = "state/simulator/rules.toml";

/// A running daemon.
#[derive(Debug)]
pub struct Ringwayd {
    /// The process. It is killed before the directory goes.
    pub process: Process,
    setup: Setup,
    told: String,
    dir: TempDir,
}

impl Ringwayd {
    /// Starts one on the simulator, with these options besides those that say where everything is;
    /// returns when it serves.
    ///
    /// # Errors
    /// [`Error::Missing`] if it is not built, [`Error::Process`] with its message if it ends.
    pub fn simulator(options: &[&str]) -> Result<Self> {
        let options = [&["--hypervisor", "simulator"], options].concat();
        Self::start(&options)
    }

    /// Starts one with these options and control groups of its own; returns when it serves. `None`: this
    /// host lets nobody make groups, which was tried, and `RINGWAY_NO_CGROUPS=1` says that this is known.
    ///
    /// # Errors
    /// As [`simulator`](Self::simulator); also if it has none though others can make some.
    pub fn with_slices(options: &[&str]) -> Result<Option<Self>> {
        let mut daemon = Self::start(&[options, &["--slices", "auto"]].concat())?;
        if daemon.slices().is_some() {
            return Ok(Some(daemon));
        }
        if groups::can_be_made() {
            return Err(daemon
                .process
                .error("has no control groups, which this host lets us make"));
        }
        HostRequirement::Groups.leave_out(daemon.process.stderr().trim()).map(|()| None)
    }

    /// Starts one with these options besides those that say where everything is; returns when it
    /// serves. It has no control groups unless the options say so.
    ///
    /// # Errors
    /// As [`simulator`](Self::simulator).
    pub fn start(options: &[&str]) -> Result<Self> {
        Self::begin(Setup::new(options))
    }

    /// [Starts](Self::start) one that has this clock, and so has all that it starts.
    ///
    /// # Errors
    /// As [`simulator`](Self::simulator).
    pub fn start_at(clock: &WallClock, options: &[&str]) -> Result<Self> {
        Self::begin(Setup::new(options).at(clock))
    }

    fn begin(setup: Setup) -> Result<Self> {
        // Paths of sockets are short: everything is below a short name.
        let dir = tempfile::Builder::new().prefix("rw-").tempdir();
        let dir = dir.map_err(|e| Error::io("cannot create a temporary directory", e))?;
        let (process, told) = setup.start(dir.path())?;
        Ok(Self { process, setup, told, dir })
    }

    /// Starts it again as it was, on the same state, when the former one has ended.
    ///
    /// # Errors
    /// As [`simulator`](Self::simulator).
    pub fn start_again(&mut self) -> Result<()> {
        (self.process, self.told) = self.setup.start(self.dir.path())?;
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// [`Error::Process`] with its message if it does not, or not with 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.process.terminate()?;
        if status.success() { Ok(()) } else { Err(self.process.error(format!("ended ({status})"))) }
    }

    /// Kills it, and waits until all have ended that it had started for itself: machines and whoever serves
    /// disks and networks outlive it, nobody else does. How many those were.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the command line of one that goes on.
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

    /// Says what becomes of calls on the simulator, which notices it by itself.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn set_rules(&self, rules: &str) -> Result<()> {
        let path = self.dir.path().join(RULES);
        let new = path.with_extension("new");
        let written = fs::write(&new, rules).and_then(|()| fs::rename(&new, &path));
        written.map_err(|e| Error::io("cannot write the simulator's rules", e))
    }

    /// What it said when it began to serve.
    #[must_use]
    pub fn told(&self) -> &str {
        &self.told
    }

    /// Where it serves without TLS, as `http://127.0.0.1:1234`: another after each start.
    ///
    /// # Errors
    /// [`Error::Process`] if it does not.
    pub fn url(&mut self) -> Result<String> {
        let place = self.told.split_whitespace().find_map(|word| word.strip_suffix(",plain"));
        match place {
            Some(place) => Ok(format!("http://{place}")),
            None => Err(self.process.error(format!("serves no plain HTTP: {}", self.told))),
        }
    }

    /// Where it serves with TLS, if it was told to: another after each start.
    #[must_use]
    pub fn tls(&self) -> Option<SocketAddr> {
        self.told.split_whitespace().find_map(|word| word.parse().ok())
    }

    /// The password of root, which it has made at its first start.
    ///
    /// # Errors
    /// [`Error::Io`] if its file cannot be read, or says none.
    pub fn password(&self) -> Result<String> {
        let path = self.dir.path().join("state/password");
        let what = || format!("cannot read a password in {}", path.display());
        let text = fs::read_to_string(&path).map_err(|e| Error::io(what(), e))?;
        let none = || Error::io(what(), std::io::Error::other("it has one line"));
        text.lines().nth(1).map(str::to_owned).ok_or_else(none)
    }

    /// Command lines of processes that are there because of it, itself left out.
    #[must_use]
    pub fn processes(&self) -> Vec<String> {
        self.started().into_iter().map(|(_, words)| words).collect()
    }

    /// What is there of machines and their disks, one line each: processes, directories, sockets,
    /// locks of images. Nothing when all machines are halted.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        leftovers::of_machines(self.dir.path())
    }

    /// The serial line of a machine with a test guest, by its UUID.
    ///
    /// # Errors
    /// [`Error::Io`] if it does not run.
    pub fn shell(&self, machine: &str) -> Result<Shell> {
        Shell::open(&self.dir.path().join("run/vm").join(machine).join("console.sock"))
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket_of(self.dir.path())
    }

    /// Its control groups, if it has made some.
    #[must_use]
    pub fn slices(&self) -> Option<Slices> {
        Slices::of(&self.socket())
    }

    /// Processes that are there because of it, by their command lines, itself left out.
    #[must_use]
    pub fn started(&self) -> Vec<(u32, String)> {
        let others = leftovers::processes(self.dir.path()).into_iter();
        let others = others.filter(|one| one.pid != self.process.id());
        others.map(|one| (one.pid, one.words)).collect()
    }

    /// Its own directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Somebody who has logged in at its socket.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn client(&self) -> std::result::Result<Client, ClientError> {
        let mut client = Client::unix(self.socket())?;
        client.login("root", "", "test")?;
        Ok(client)
    }

    /// `xe` with these words, for this daemon, at a home of its own.
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

    /// What `xe` prints with these words, without the last line's end.
    ///
    /// # Errors
    /// [`Error::Io`] with what it says if it fails.
    pub fn xe_prints(&self, words: &[&str]) -> Result<String> {
        let output = self.xe_output(words)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let said = said + &String::from_utf8_lossy(&output.stdout);
            let what = format!("xe {}", words.join(" "));
            return Err(Error::io(what, std::io::Error::other(said)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_owned())
    }

    /// What `xe` does with these words.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Io`] if it cannot be started.
    pub fn xe_output(&self, words: &[&str]) -> Result<Output> {
        self.xe(words)?.output().map_err(|e| Error::io("cannot run xe", e))
    }
}

/// What it has started outlives it, but not the test.
impl Drop for Ringwayd {
    fn drop(&mut self) {
        let _has_ended_already = self.process.kill();
        leftovers::end(self.dir.path());
        if let Some(slices) = self.slices() {
            slices.remove();
        }
    }
}

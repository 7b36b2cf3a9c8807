//! Backends as child processes: found, started, ready by an event, killed on drop.
//!
//! [`Process`] is any child. It stores the child's standard error for error messages. [`Backend`]
//! serves a vhost-user socket: [`Backend::ringway_blk`] and [`Backend::storage_daemon`]. A dropped
//! process is killed by its id and reaped, and its children are killed with it.

mod backend;
mod find;
mod io;
mod net;
mod port;
mod program;
mod restarting;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{Error, Result};
use crate::raw::guest::wait_readable;

pub use backend::{Backend, StorageDaemon, Target};
pub use find::{find_binary, find_tool};
pub use io::{RingwayIo, sharing_alone};
pub use net::RingwayNet;
pub use port::Port;
pub use program::{copy_program, write_script};
pub use restarting::{RestartingDisk, RestartingServer, ServerProgram};

/// Deadline for a backend to become ready or to end. It is long, so that no test fails on a loaded
/// machine.
pub const PROCESS_DEADLINE: Duration = Duration::from_secs(20);

/// Polls until another process has reached a state that no event reports.
///
/// # Panics
/// The state is not reached within [`PROCESS_DEADLINE`].
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    eventually_by(Instant::now() + PROCESS_DEADLINE, what, is_so);
}

/// As [`eventually`], with a deadline.
///
/// # Panics
/// The state is not reached until then.
pub fn eventually_by(until: Instant, what: &str, mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the end of a file that a process writes, at most `bytes`, without the last line break.
/// It leaves the file position alone, because the process shares it.
///
/// # Errors
/// The file cannot be read.
pub fn file_tail(file: &File, bytes: u64) -> std::io::Result<String> {
    let end = file.metadata()?.len();
    let start = end.saturating_sub(bytes);
    let mut text = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut text, start)?;
    Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
}

/// Most bytes of standard error in an error message.
const STDERR_BYTES_MAX: u64 = 4096;

/// A child process.
#[derive(Debug)]
pub struct Process {
    program: String,
    child: Child,
    pidfd: OwnedFd,
    stderr: File,
}

impl Process {
    /// Starts a command. Its standard input is empty, its standard error is stored, and its
    /// standard output goes where the command says.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        Self::spawn(command.stdin(Stdio::null()))
    }

    /// Starts a command with a pipe as standard input, which [`Process::child`] contains.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn start_typed(command: &mut Command) -> Result<Self> {
        Self::spawn(command.stdin(Stdio::piped()))
    }

    fn spawn(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let at = |what: &str| format!("cannot {what} for {program}");
        let stderr = tempfile::tempfile().map_err(|e| Error::io(at("create a log"), e))?;
        let copy = stderr.try_clone().map_err(|e| Error::io(at("keep the log"), e))?;
        command.stderr(copy);
        let child = command.spawn().map_err(|e| Error::io(format!("cannot start {program}"), e))?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|e| Error::io(at("open a pidfd"), e))?;
        Ok(Self { program, child, pidfd, stderr })
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns a descriptor that becomes readable when the process ends.
    #[must_use]
    pub fn ended(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Returns the end of the process's standard error.
    pub fn stderr(&mut self) -> String {
        file_tail(&self.stderr, STDERR_BYTES_MAX)
            .unwrap_or_else(|error| format!("(its log cannot be read: {error})"))
    }

    /// Returns an error about this process, with the end of its standard error.
    pub fn error(&mut self, what: impl Into<String>) -> Error {
        let stderr = match self.stderr() {
            text if text.is_empty() => "nothing".to_owned(),
            text => text,
        };
        Error::Process { program: self.program.clone(), what: what.into(), stderr }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// [`Error::Io`] if the process has been reaped.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        pidfd_send_signal(&self.pidfd, signal)
            .map_err(|e| Error::io(format!("cannot signal {}", self.program), e))
    }

    /// Waits for the end of the process.
    ///
    /// # Errors
    /// [`Error::Process`] if it does not end before the deadline.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        if wait_readable(&[self.pidfd.as_fd()], deadline)?.is_none() {
            return Err(self.error(format!("still runs after {} ms", deadline.as_millis())));
        }
        let program = &self.program;
        self.child.wait().map_err(|e| Error::io(format!("cannot wait for {program}"), e))
    }

    /// Sends SIGTERM and waits for the end of the process.
    ///
    /// # Errors
    /// [`Error::Process`] if it does not end in time.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(PROCESS_DEADLINE)
    }

    /// Sends SIGKILL and waits for the end of the process.
    ///
    /// # Errors
    /// [`Error::Process`] if it does not end in time.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::KILL)?;
        self.wait(PROCESS_DEADLINE)
    }

    /// Returns the worker that the process has started last, by a descriptor that stays valid when
    /// the process id is used again. `None` between the death of a worker and the start of the
    /// next. After an upgrade the former worker may still be ending.
    ///
    /// # Errors
    /// [`Error::Io`] if a system call fails.
    pub fn worker(&self) -> Result<Option<Worker>> {
        let children = children(self.id()).map_err(|e| Error::io("cannot list children", e))?;
        Ok(children.into_iter().next_back())
    }

    /// Returns the process id of its worker, see [`Process::worker`].
    ///
    /// # Errors
    /// [`Error::Io`] if a system call fails.
    pub fn worker_pid(&self) -> Result<Option<u32>> {
        Ok(self.worker()?.map(|worker| worker.pid))
    }

    /// Returns the process as one that serves without a keeper.
    ///
    /// # Errors
    /// [`Error::Io`] if its descriptor cannot be duplicated.
    pub fn as_worker(&self) -> Result<Worker> {
        let pidfd = self.pidfd.try_clone();
        let pidfd = pidfd.map_err(|e| Error::io("cannot duplicate a pidfd", e))?;
        Ok(Worker { pid: self.id(), pidfd })
    }

    /// Waits until the process has a worker other than `old`.
    ///
    /// # Errors
    /// [`Error::Process`] if there is none before the deadline.
    pub fn next_worker(&mut self, old: Option<u32>) -> Result<Worker> {
        let until = std::time::Instant::now() + PROCESS_DEADLINE;
        loop {
            match self.worker()? {
                Some(worker) if Some(worker.pid) != old => return Ok(worker),
                _ if std::time::Instant::now() > until => {
                    return Err(self.error("started no other worker"));
                }
                // No event reports the children of another process.
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Returns whether the process has not ended.
    ///
    /// # Errors
    /// [`Error::Io`] if a system call fails.
    pub fn is_running(&self) -> Result<bool> {
        Ok(wait_readable(&[self.pidfd.as_fd()], Duration::ZERO)?.is_none())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process starts no other child while this searches for its children. All calls
        // fail only if the process has ended and was reaped, which is the goal.
        let _ = self.signal(Signal::STOP);
        let children = children(self.id()).unwrap_or_default();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for child in children {
            let _ = child.kill();
        }
    }
}

/// A process that serves: the child of a keeper, or a program without one.
#[derive(Debug)]
pub struct Worker {
    pid: u32,
    pidfd: OwnedFd,
}

impl Worker {
    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Returns a descriptor that becomes readable when the process ends.
    #[must_use]
    pub fn ended(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// [`Error::Io`] if the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let at = || format!("cannot signal process {}", self.pid);
        pidfd_send_signal(&self.pidfd, signal).map_err(|e| Error::io(at(), e))
    }

    /// Sends SIGKILL and waits for the end of the process.
    ///
    /// # Errors
    /// [`Error::Io`] if a system call fails.
    pub fn kill(&self) -> Result<()> {
        match self.signal(Signal::KILL) {
            Ok(()) => wait_readable(&[self.pidfd.as_fd()], PROCESS_DEADLINE).map(drop),
            gone => gone,
        }
    }
}

/// Returns the current children of a process.
pub(crate) fn children(pid: u32) -> std::io::Result<Vec<Worker>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let listed = std::fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        for number in listed.split_ascii_whitespace() {
            let Ok(pid) = number.parse::<i32>() else { continue };
            // A process that has ended meanwhile is no longer a child.
            let opened = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
            if let Some(Ok(pidfd)) = opened {
                found.push(Worker { pid: pid.unsigned_abs(), pidfd });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_in_the_error() {
        let mut command = Command::new("sh");
        let mut process = Process::start(command.args(["-c", "echo alas >&2; exit 3"])).unwrap();
        assert_eq!(process.wait(PROCESS_DEADLINE).unwrap().code(), Some(3));
        let text = process.error("ended").to_string();
        assert!(text.contains("sh ended") && text.contains("alas"), "{text}");
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let process = Process::start(Command::new("sleep").arg("1000")).unwrap();
        let ended = process.ended().try_clone().unwrap();
        assert!(process.is_running().unwrap());
        drop(process);
        assert_eq!(wait_readable(&[ended.as_fd()], Duration::ZERO).unwrap(), Some(0));
    }
}

//! A worker as its keeper sees it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::store::Store;
use crate::link::{Came, FromKeeper, FromWorker, Link, is_closed};

/// Option that makes one of our programs a worker; its standard input is the link.
pub(super) const WORKER_OPTION: &str = "--worker";

/// A process that serves.
#[derive(Debug)]
pub(super) struct Worker {
    pid: Pid,
    pidfd: OwnedFd,
    /// Absent for one that another keeper has started.
    child: Option<Child>,
    link: Link,
    /// What it has not been told yet, because the link was full.
    unsaid: VecDeque<Unsaid>,
    pub(super) since: Instant,
    /// It serves.
    pub(super) ready: bool,
    /// It has said that it ends in order.
    pub(super) ending: bool,
    /// It has closed its end of the link.
    pub(super) silent: bool,
}

/// Something to say.
#[derive(Debug)]
pub(super) enum Unsaid {
    Record(FromKeeper),
    /// What this key stands for.
    Restore(String),
    /// Where to take over from another worker.
    TakeOver(OwnedFd),
}

impl Worker {
    /// Starts the program in `file` as a worker; without one, this same program.
    pub(super) fn start(
        file: Option<&Path>,
        program: &str,
        options: &[OsString],
    ) -> io::Result<Self> {
        let (link, theirs) = Link::pair()?;
        // The file that runs here, even if another lies at its path by now.
        let mut command = Command::new(file.unwrap_or(Path::new("/proc/self/exe")));
        command.arg0(program).args(options).arg(WORKER_OPTION);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        super::notify::FOR_US.iter().for_each(|name| {
            command.env_remove(name);
        });
        let child = command.spawn()?;
        Self::new(Pid::from_child(&child), Some(child), link)
    }

    /// Takes over one that another keeper has started.
    pub(super) fn adopt(pid: Pid, link: Link) -> io::Result<Self> {
        Self::new(pid, None, link)
    }

    /// It is gone, or will not be heard again.
    pub(super) fn is_closed(&self) -> io::Result<bool> {
        self.link.is_closed()
    }

    /// Adopted, and says no more before it had said everything.
    pub(super) fn is_untold(&self) -> bool {
        self.child.is_none() && self.silent && !self.ready
    }

    fn new(pid: Pid, child: Option<Child>, link: Link) -> io::Result<Self> {
        // The keeper never sleeps but in its poll.
        rustix::io::ioctl_fionbio(&link, true)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let (unsaid, since) = (VecDeque::new(), Instant::now());
        let (ready, ending, silent) = (false, false, false);
        Ok(Self { pid, pidfd, child, link, unsaid, since, ready, ending, silent })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Readable when the process has ended.
    pub(super) fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    pub(super) fn kill(&self) {
        // Refused only when it is gone already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    pub(super) fn say(&mut self, what: Unsaid) {
        self.unsaid.push_back(what);
    }

    /// There is something that could not be said yet.
    pub(super) fn has_unsaid(&self) -> bool {
        !self.unsaid.is_empty() && !self.silent
    }

    /// Says as much as the link takes.
    pub(super) fn speak(&mut self, store: &Store) -> io::Result<()> {
        while let Some(next) = self.unsaid.front() {
            let sent = match next {
                Unsaid::Record(record) => self.link.send(record, &[]),
                Unsaid::TakeOver(fd) => self.link.send(&FromKeeper::TakeOver, &[fd.as_fd()]),
                Unsaid::Restore(key) => store.get(key).map_or(Ok(()), |holding| {
                    let (what, fds) = holding.written(key);
                    self.link.send(&FromKeeper::Restore { what }, &fds)
                }),
            };
            match sent {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // So many descriptors are under way that the worker must take some first, and
                // that it does: there is no event for it.
                Err(error) if is_crowded(&error) => break,
                // Its end is told by the pidfd.
                Err(error) if is_closed(&error) => {}
                Err(error) => return Err(error),
            }
            self.unsaid.pop_front();
        }
        Ok(())
    }

    /// The next thing that it says; `None`: nothing now.
    pub(super) fn listen(&mut self) -> io::Result<Option<Came<FromWorker>>> {
        match self.link.receive_words() {
            Ok(None) => {
                self.silent = true;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            other => other,
        }
    }

    /// It is over, and forgotten by the kernel too.
    pub(super) fn has_ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => true,
        }
    }

    /// How it ended, once it has; nobody is told of another's child.
    pub(super) fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.as_mut().map(Child::wait).transpose()
    }
}

fn is_crowded(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::TOOMANYREFS.raw_os_error())
}

/// How a process ended, in words.
pub(super) fn words(status: Option<ExitStatus>) -> String {
    let Some(status) = status else { return "ended, nobody can tell how".into() };
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, Some(signal)) => {
            let core = if status.core_dumped() { ", core dumped" } else { "" };
            format!("was killed by {}{core}", signal_name(signal))
        }
        (None, None) => "ended".into(),
    }
}

fn signal_name(number: i32) -> String {
    let name = match Signal::from_named_raw(number) {
        Some(Signal::KILL) => "SIGKILL",
        Some(Signal::SEGV) => "SIGSEGV",
        Some(Signal::BUS) => "SIGBUS",
        Some(Signal::ABORT) => "SIGABRT",
        Some(Signal::ILL) => "SIGILL",
        Some(Signal::TERM) => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_words() {
        let said = |raw| words(Some(ExitStatus::from_raw(raw)));
        assert_eq!(said(9), "was killed by SIGKILL");
        assert_eq!(said(0x80 | 11), "was killed by SIGSEGV, core dumped");
        assert_eq!(said(1 << 8), "ended with code 1");
        assert_eq!(said(64), "was killed by signal 64");
    }
}

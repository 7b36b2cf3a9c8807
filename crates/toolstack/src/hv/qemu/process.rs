//! Process that need not be a child of the daemon. A pidfd refers to it, so that a reused process
//! id causes no confusion.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::process_exit::exits_within;

/// Process, referred to by a pidfd.
#[derive(Debug)]
pub(super) struct Process {
    id: u32,
    /// The pidfd. It is readable when the process has exited, waited for or not.
    descriptor: AsyncFd<OwnedFd>,
}

impl Process {
    /// Opens the process that has this id now.
    pub(super) fn open(id: u32) -> io::Result<Self> {
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "no process id");
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw).ok_or_else(none)?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
        #[expect(
            deprecated,
            reason = "an owned descriptor stays the same and open; what replaces this is not safe"
        )]
        let descriptor = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
        Ok(Self { id, descriptor })
    }

    /// Returns the process id.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Waits until the process has exited.
    pub(super) async fn gone(&self) {
        // An error means that the runtime shuts down, and no task waits any more.
        let _readable = self.descriptor.readable().await;
    }

    /// Returns whether the process has exited.
    pub(super) fn is_gone(&self) -> bool {
        exits_within(self.descriptor.get_ref(), Duration::ZERO)
    }

    /// Sends SIGKILL. Does nothing if the process has exited.
    pub(super) fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(self.descriptor.get_ref(), Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            outcome => Ok(outcome?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_is_seen_whoever_waits_for_it() {
        let mut child = tokio::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id().unwrap()).unwrap();
        assert!(!process.is_gone());
        process.kill().unwrap();
        process.gone().await;
        assert!(process.is_gone());
        child.wait().await.unwrap();
        process.kill().unwrap();
        assert!(process.is_gone());
    }

    #[test]
    fn what_is_no_process_is_refused() {
        for id in [0, u32::MAX] {
            assert_eq!(Process::open(id).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}

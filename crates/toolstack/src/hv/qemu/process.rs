//! A process that may be nobody's child any more: held by a descriptor, so that its id cannot come
//! to mean another.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One process.
#[derive(Debug)]
pub(super) struct Process {
    id: u32,
    /// Readable when the process has ended, waited for or not.
    descriptor: AsyncFd<OwnedFd>,
}

impl Process {
    /// Takes hold of the process that has this id now.
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

    /// Its id.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Ends when it has ended.
    pub(super) async fn gone(&self) {
        // An error is that of a runtime that ends: nobody waits for this any more.
        let _readable = self.descriptor.readable().await;
    }

    /// It has ended.
    pub(super) fn is_gone(&self) -> bool {
        let mut descriptors = [PollFd::new(self.descriptor.get_ref(), PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Sends SIGKILL. Nothing happens if it has ended.
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

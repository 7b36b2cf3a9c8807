//! One-shot signal that wakes threads which wait in the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, write};

/// A signal that is given once and stays. Clones share it; any thread may use it.
#[derive(Clone, Debug)]
pub struct StopSignal {
    event: Arc<OwnedFd>,
}

/// Reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// [`StopSignal::stop`] was called, now or before.
    Stopped,
    /// The descriptor is readable.
    Readable,
    /// The timeout has passed.
    TimedOut,
}

impl StopSignal {
    /// Creates a signal that has not been given.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { event: Arc::new(eventfd(0, flags)?) })
    }

    /// Returns whether both are clones of one signal.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.event, &other.event)
    }

    /// Gives the signal: every present and future wait ends.
    pub fn stop(&self) {
        // Fails only if the counter is full, and a full counter is readable too.
        let _ = write(&self.event, &1u64.to_ne_bytes());
    }

    /// Sleeps until the signal is given, `readable` can be read, or `timeout` has passed, whichever
    /// is first. The signal has priority.
    ///
    /// # Errors
    /// The system call failed.
    pub fn wait(
        &self,
        readable: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> io::Result<Woken> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut fds = vec![PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN)];
        fds.extend(readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, left.as_ref()) {
                Ok(0) => return Ok(Woken::TimedOut),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let stopped = fds.first().is_some_and(|event| !event.revents().is_empty());
        Ok(if stopped { Woken::Stopped } else { Woken::Readable })
    }
}

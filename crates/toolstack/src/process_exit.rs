//! Exits of processes that need not be children of this one.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Returns whether the process of a pidfd has exited, or exits within `at_most`. Blocks meanwhile.
pub(crate) fn exits_within(process: &OwnedFd, at_most: Duration) -> bool {
    let until = Instant::now() + at_most;
    loop {
        let mut exit = [PollFd::new(process, PollFlags::IN)];
        let left = until.saturating_duration_since(Instant::now());
        match poll(&mut exit, Timespec::try_from(left).ok().as_ref()) {
            // A signal, for example about a child that has exited.
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

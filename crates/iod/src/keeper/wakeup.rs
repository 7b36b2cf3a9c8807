//! Events that wake a keeper.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Keeper;
use super::stop_deadline::StopDeadline;
use super::worker::Worker;

/// Reasons for a wakeup.
pub(super) struct WakeReasons {
    pub(super) signalled: bool,
    /// The worker has sent a message, or can receive one.
    pub(super) link_ready: bool,
    /// The worker has ended.
    pub(super) ended: bool,
    /// Messages and end of the successor, like the two reasons above.
    pub(super) successor: (bool, bool),
}

impl Keeper {
    /// Sleeps until an event occurs.
    pub(super) fn wait(&self) -> io::Result<WakeReasons> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.setup.signals.as_fd(), PollFlags::IN)];
        let heir = self.successor.as_ref().map(|successor| &successor.worker);
        // Each worker takes two entries: its end and its link.
        for worker in self.worker.iter().chain(heir) {
            fds.push(PollFd::from_borrowed_fd(worker.ended(), PollFlags::IN));
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, !worker.silent);
            wanted.set(PollFlags::OUT, worker.has_sendable_messages());
            // For a silent worker only the end matters.
            let fd = if wanted.is_empty() { worker.ended() } else { worker.link() };
            fds.push(PollFd::from_borrowed_fd(fd, wanted));
        }
        for worker in &self.retired {
            fds.push(PollFd::from_borrowed_fd(worker.ended(), PollFlags::IN));
        }
        let next =
            [self.start_at, self.setup.manager.next(), self.stop_deadline.map(StopDeadline::at)];
        let of_worker =
            self.worker.iter().flat_map(|one| [Some(one.check_at), one.unkillable_at()]);
        let of_both = self.worker.iter().chain(heir).map(Worker::next);
        let next = next.into_iter().chain(of_worker).chain(of_both).flatten().min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let next = if self.worker.is_some() { 3 } else { 1 };
        let (link_ready, ended) = (self.worker.is_some() && is(2), self.worker.is_some() && is(1));
        let heir = if heir.is_some() { (is(next + 1), is(next)) } else { (false, false) };
        Ok(WakeReasons { signalled: is(0), link_ready, ended, successor: heir })
    }
}

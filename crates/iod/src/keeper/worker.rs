//! The keeper's handle of a worker.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::store::Store;
use crate::keeper_link::{KeeperMessage, Link, ReceivedRecord, WorkerMessage, is_closed};

/// Option that turns a program into a worker. Its standard input is the link.
pub(super) const WORKER_OPTION: &str = "--worker";

/// Pause when the kernel accepts no more descriptors for a worker that must read some first. No
/// event reports when it has.
const CROWDED_PAUSE: Duration = Duration::from_millis(20);

/// Process that serves.
#[derive(Debug)]
pub(super) struct Worker {
    pid: Pid,
    pidfd: OwnedFd,
    /// `None` for a worker that another keeper has started.
    child: Option<Child>,
    link: Link,
    /// Messages that are not sent yet, because the link was full.
    queued_message: VecDeque<QueuedMessage>,
    pub(super) since: Instant,
    /// True if the worker serves.
    pub(super) ready: bool,
    /// True if the worker has reported an orderly end.
    pub(super) ending: bool,
    /// True if the worker has closed its end of the link.
    pub(super) silent: bool,
    /// Deadline until which the worker must serve, after it was allowed to use disks.
    pub(super) ready_by: Option<Instant>,
    /// Time when the worker was killed or found to be ending. It runs no code any more.
    pub(super) dying: Option<Instant>,
    /// Time of the next check ([`super::unkillable`]).
    pub(super) check_at: Instant,
    /// Time of the next send, if too many descriptors are in flight to the worker.
    crowded: Option<Instant>,
}

/// Queued message to a worker.
#[derive(Debug)]
pub(super) enum QueuedMessage {
    Record(KeeperMessage),
    /// The entry of this key.
    Restore(String),
    /// The link from which to take over another worker.
    TakeOver(OwnedFd),
}

impl Worker {
    /// Starts the program in `file` as a worker, or this program if `file` is `None`.
    pub(super) fn start(
        file: Option<&Path>,
        program: &str,
        options: &[OsString],
    ) -> io::Result<Self> {
        let (link, theirs) = Link::pair()?;
        // The running program's file, even if another file is at its path by now.
        let mut command = Command::new(file.unwrap_or(Path::new("/proc/self/exe")));
        command.arg0(program).args(options).arg(WORKER_OPTION);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        super::service_manager::FOR_US.iter().for_each(|name| {
            command.env_remove(name);
        });
        let child = command.spawn()?;
        Self::new(Pid::from_child(&child), Some(child), link)
    }

    /// Adopts a worker that another keeper has started.
    pub(super) fn adopt(pid: Pid, link: Link) -> io::Result<Self> {
        Self::new(pid, None, link)
    }

    /// Returns whether the worker is gone or its link is closed.
    pub(super) fn is_closed(&self) -> io::Result<bool> {
        self.link.is_closed()
    }

    /// Returns whether an adopted worker closed its link before it had sent everything.
    pub(super) fn is_partially_adopted(&self) -> bool {
        self.child.is_none() && self.silent && !self.ready
    }

    fn new(pid: Pid, child: Option<Child>, link: Link) -> io::Result<Self> {
        // The keeper sleeps only in its poll.
        rustix::io::ioctl_fionbio(&link, true)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let (queued_message, since) = (VecDeque::new(), Instant::now());
        Ok(Self {
            pid,
            pidfd,
            child,
            link,
            queued_message,
            since,
            ready: false,
            ending: false,
            silent: false,
            ready_by: None,
            dying: None,
            check_at: since,
            crowded: None,
        })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Returns the descriptor that is readable when the process has ended.
    pub(super) fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    pub(super) fn kill(&mut self) {
        self.dying.get_or_insert_with(Instant::now);
        // This fails only if the process is gone already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    pub(super) fn queue_message(&mut self, what: QueuedMessage) {
        self.queued_message.push_back(what);
    }

    /// Returns whether queued messages can be sent as soon as the link has room.
    pub(super) fn has_sendable_messages(&self) -> bool {
        !self.queued_message.is_empty() && !self.silent && self.crowded.is_none()
    }

    /// Returns the time of the next action that no event triggers.
    pub(super) fn next(&self) -> Option<Instant> {
        [self.crowded, self.ready_by.filter(|_| !self.ready && self.dying.is_none())]
            .into_iter()
            .flatten()
            .min()
    }

    /// Sends as many messages as the link accepts.
    pub(super) fn flush_messages(&mut self, store: &Store) -> io::Result<()> {
        if self.crowded.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        self.crowded = None;
        while let Some(next) = self.queued_message.front() {
            let sent = match next {
                QueuedMessage::Record(record) => self.link.send(record, &[]),
                QueuedMessage::TakeOver(fd) => {
                    self.link.send(&KeeperMessage::TakeOver, &[fd.as_fd()])
                }
                QueuedMessage::Restore(key) => store.get(key).map_or(Ok(()), |preserved_entry| {
                    let (what, fds) = preserved_entry.written(key);
                    self.link.send(&KeeperMessage::Restore { what }, &fds)
                }),
            };
            match sent {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_crowded(&error) => {
                    self.crowd();
                    break;
                }
                // The pidfd reports the end of the worker.
                Err(error) if is_closed(&error) => {}
                Err(error) => return Err(error),
            }
            self.queued_message.pop_front();
        }
        Ok(())
    }

    /// Pauses sending. The worker must first read some of the descriptors in flight. Meanwhile the
    /// link is writable, which must not wake the keeper.
    fn crowd(&mut self) {
        self.crowded = Some(Instant::now() + CROWDED_PAUSE);
    }

    /// Returns the next message of the worker, or `None` if there is none now.
    pub(super) fn receive(&mut self) -> io::Result<Option<ReceivedRecord<WorkerMessage>>> {
        match self.link.receive_words() {
            Ok(None) => {
                self.silent = true;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            other => other,
        }
    }

    /// Returns whether the process ends within `patience`, and reaps it.
    pub(super) fn has_ended(&mut self, patience: Duration) -> bool {
        let mut ended = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
        let patience = Timespec::try_from(patience).ok();
        let over = matches!(retry_on_intr(|| poll(&mut ended, patience.as_ref())), Ok(1..));
        over && self.reap().is_ok()
    }

    /// Returns the exit status once the process has ended. It is unknown for children of other
    /// processes, and for own children if the parent set SIGCHLD to be ignored. Never waits.
    pub(super) fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        match self.child.as_mut().map_or(Ok(None), Child::try_wait) {
            Err(error) if error.raw_os_error() == Some(Errno::CHILD.raw_os_error()) => Ok(None),
            other => other,
        }
    }
}

fn is_crowded(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::TOOMANYREFS.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowded_link_does_not_keep_its_keeper_awake() {
        let (link, theirs) = Link::pair().unwrap();
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut worker = Worker::new(Pid::from_child(&child), Some(child), link).unwrap();
        worker.queue_message(QueuedMessage::Record(KeeperMessage::Ping));
        worker.crowd();
        worker.flush_messages(&Store::default()).unwrap();
        assert!(!worker.has_sendable_messages(), "room in the link is no event for it");
        let until = worker.next().unwrap();
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        worker.flush_messages(&Store::default()).unwrap();
        assert_eq!((worker.has_sendable_messages(), worker.next()), (false, None));
        let received = Link::new(theirs).receive::<KeeperMessage>().unwrap().unwrap().0;
        assert!(matches!(received, KeeperMessage::Ping));
        worker.kill();
        assert!(worker.has_ended(Duration::from_secs(60)));
    }
}

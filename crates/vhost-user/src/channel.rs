//! Requests from the backend to the front-end.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, retry_on_intr, write};
use rustix::net::{SendFlags, send};

use crate::error::Refusal;
use crate::fds;
use crate::message::VERSION;

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;

/// Channel for requests to a front-end. Clones share it; any thread may use it.
#[derive(Clone, Debug)]
pub struct BackendChannel {
    fd: Arc<OwnedFd>,
}

impl BackendChannel {
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, Refusal> {
        Ok(Self { fd: Arc::new(fds::channel(fd)?) })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Asks the front-end to read the configuration space again. Never waits: the message requests
    /// no reply, and a full channel already contains such a message unread.
    ///
    /// # Errors
    /// The front-end has closed the channel.
    pub fn config_changed(&self) -> Result<(), Errno> {
        let message = [CONFIG_CHANGE, VERSION, 0].map(u32::to_ne_bytes).concat();
        // The front-end shares the open file and may make it blocking again.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = retry_on_intr(|| send(&self.fd, &message, flags));
        // Some front-ends pass a pipe.
        let sent = match sent {
            Err(Errno::NOTSOCK) => retry_on_intr(|| write_now(self.as_fd(), &message)),
            other => other,
        };
        match sent {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Writes without waiting. Before Linux 6.5 the kernel cannot do that with a pipe, so this
/// function first polls the pipe for room. The front-end can fill the pipe between both calls.
fn write_now(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    // The largest offset means the current position: a pipe has no other.
    match pwritev2(fd, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::INVAL) => {
            let mut room = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
            match poll(&mut room, Some(&Timespec::default()))? {
                0 => Err(Errno::AGAIN),
                _ => write(fd, bytes),
            }
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::io::ioctl_fionbio;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// Tests that a write returns although the front-end has filled its end and made it blocking.
    fn is_not_kept(ours: OwnedFd) {
        let theirs = ours.try_clone().unwrap();
        let way = BackendChannel::new(ours).unwrap();
        way.config_changed().unwrap();
        ioctl_fionbio(&theirs, true).unwrap();
        while write(&theirs, &[0; 64]).is_ok() {}
        while write(&theirs, &[0]).is_ok() {}
        ioctl_fionbio(&theirs, false).unwrap();
        let (done, wait) = channel();
        std::thread::spawn(move || done.send(way.config_changed()));
        let result = wait.recv_timeout(Duration::from_secs(20));
        assert!(matches!(result, Ok(Ok(()))), "it waits for its front-end");
    }

    #[test]
    fn a_front_end_that_reads_nothing_keeps_nobody() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let (ours, _theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        is_not_kept(ours);
        let (_read, ours) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        is_not_kept(ours);
    }
}

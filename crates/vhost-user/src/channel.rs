//! Requests from us to the front-end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, retry_on_intr, write};
use rustix::net::{SendFlags, send};

use crate::error::Refusal;
use crate::fds;
use crate::message::VERSION;

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;

/// The channel on which a front-end takes requests. Clones share it; usable from any thread.
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

    /// Tells the front-end to read the configuration space anew. Never waits: no answer is asked
    /// for, and a full channel already holds such a message unread.
    ///
    /// # Errors
    /// The front-end has closed the channel.
    pub fn config_changed(&self) -> Result<(), Errno> {
        let message = [CONFIG_CHANGE, VERSION, 0].map(u32::to_ne_bytes).concat();
        let sent = retry_on_intr(|| send(&self.fd, &message, SendFlags::NOSIGNAL));
        // Some front-ends hand over a pipe.
        let sent = match sent {
            Err(Errno::NOTSOCK) => retry_on_intr(|| write(&self.fd, &message)),
            other => other,
        };
        match sent {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

//! Bytes and descriptors from a caller.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use model::spec::MAX_TREE_FILES;
use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Receiving side of a caller's connection. Descriptors belong to the line with whose bytes they
/// come, so a caller waits for its reply before it sends another line with descriptors.
pub(super) struct Incoming<'a> {
    stream: &'a UnixStream,
    /// Descriptors since the last [`Self::take_fds`], at most [`MAX_TREE_FILES`].
    fds: Vec<OwnedFd>,
}

impl<'a> Incoming<'a> {
    pub(super) fn new(stream: &'a UnixStream) -> Self {
        Self { stream, fds: Vec::new() }
    }

    /// Returns the descriptors that have come, in order. The kernel drops those for which the
    /// process has no room.
    pub(super) fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }
}

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_TREE_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut iov = [IoSliceMut::new(buffer)];
            recvmsg(self.stream, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                let room = MAX_TREE_FILES.saturating_sub(self.fds.len());
                self.fds.extend(fds.take(room));
            }
        }
        Ok(received.bytes)
    }
}

//! Link between a keeper and its worker, which carries whole records with descriptors.
//!
//! A record is one JSON object in one message of a SEQPACKET pair. So neither side ever sees half a
//! record, and its descriptors cannot belong to another one. Keeper and worker may have
//! neighbouring versions after an upgrade. So a record never changes its meaning, and new records
//! are sent only when a caller requests something new. The keeper does not parse preserved data,
//! except sockets, whose files it removes after everything has ended.

mod entry;
mod messages;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recvmsg, sendmsg, shutdown, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use entry::{PreservedEntry, PreservedEntryData, duplicate};
pub(crate) use messages::{KeeperInfo, KeeperMessage, WorkerMessage};

/// Longest record in bytes. A spec is a few kilobytes, and two records fit in a socket's default
/// buffer.
pub(crate) const MAX_RECORD_BYTES: usize = 64 << 10;
/// Most descriptors of one record: two for a socket, one for memory, two for each export.
pub(crate) const MAX_DESCRIPTORS: usize = 64;

/// Record with its descriptors.
pub(crate) type ReceivedRecord<T> = (T, Result<Vec<OwnedFd>, MissingFds>);

/// Error: the descriptors of a record could not be received.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the process has no descriptors left; raise its limit of open files")]
pub(crate) struct MissingFds;

/// One end of a link.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
}

impl Link {
    /// Creates a link and returns both ends.
    ///
    /// # Errors
    /// The process cannot open more descriptors.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok((Self { socket: ours }, theirs))
    }

    /// Wraps an end that another process has created.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Limits the wait of each send for room.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn limit_waits(&self, time: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.socket, Timeout::Send, Some(time))?)
    }

    /// Returns whether the other end is closed.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn is_closed(&self) -> io::Result<bool> {
        // The kernel always reports hang-up, without a request.
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::empty())];
        retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))?;
        Ok(fds.iter().any(|fd| fd.revents().contains(PollFlags::HUP)))
    }

    /// Shuts the link down, even if other descriptors of this end are open.
    pub(crate) fn shut(&self) {
        // This fails only if the other end is gone.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Sends a record.
    ///
    /// # Errors
    /// The record is too long, the other end is gone, or a non-blocking end is full.
    pub(crate) fn send(&self, record: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(record)?;
        if bytes.len() > MAX_RECORD_BYTES || fds.len() > MAX_DESCRIPTORS {
            return Err(io::Error::other("record is too long to be preserved"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let iov = [IoSlice::new(&bytes)];
        loop {
            match sendmsg(&self.socket, &iov, &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives the next record. Returns `None` if the other end is gone.
    ///
    /// # Errors
    /// The message is not a complete record, or a non-blocking end has no message.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        match self.receive_words()? {
            Some((record, fds)) => Ok(Some((record, fds.map_err(io::Error::other)?))),
            None => Ok(None),
        }
    }

    /// Receives the next record, even if its descriptors could not be received.
    ///
    /// # Errors
    /// As [`Self::receive`], except for [`MissingFds`].
    pub(crate) fn receive_words<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<ReceivedRecord<T>>> {
        let mut bytes = vec![0; MAX_RECORD_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut iov = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::Error::other("a record is too long"));
        }
        bytes.truncate(received.bytes);
        let whole = !received.flags.contains(ReturnFlags::CTRUNC);
        Ok(Some((serde_json::from_slice(&bytes)?, if whole { Ok(fds) } else { Err(MissingFds) })))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns whether an error means that the other end is gone.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

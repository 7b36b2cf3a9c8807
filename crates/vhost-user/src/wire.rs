//! Receives and sends whole messages.
//!
//! A read never goes past the end of a message. So descriptors stay with their message, whatever
//! pieces it arrives in.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::error::SessionError;
use crate::message::{HEADER_BYTES, Header, MAX_PAYLOAD_BYTES, MAX_TABLE_REGIONS, REPLY, VERSION};

/// Most descriptors that one `sendmsg` can carry (`SCM_MAX_FD`). With space for all, surplus
/// descriptors are received and closed instead of being reported as lost.
const SCM_MAX_FD: usize = 253;

/// A received message of bounded size, not parsed yet.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// The kernel dropped some descriptors, because this process may open no more.
    pub(crate) fds_lost: bool,
}

/// Receives the next message. `None`: the front-end closed the connection between messages.
pub(crate) fn receive(socket: &UnixStream) -> Result<Option<Message>, SessionError> {
    let mut fds = Collected::default();
    let mut head = [0; HEADER_BYTES];
    match fill(socket, &mut head, &mut fds)? {
        0 => return Ok(None),
        HEADER_BYTES => {}
        got => return Err(SessionError::Truncated { got, need: HEADER_BYTES }),
    }
    let header = Header::parse(head);
    if !header.is_request() {
        return Err(SessionError::BadHeader { flags: header.flags });
    }
    let size = usize::try_from(header.size).ok().filter(|size| *size <= MAX_PAYLOAD_BYTES);
    let Some(size) = size else {
        let (code, size) = (header.code, header.size);
        return Err(SessionError::Oversized { code, size, max: MAX_PAYLOAD_BYTES });
    };
    let mut payload = vec![0; size];
    let got = fill(socket, &mut payload, &mut fds)?;
    if got < size {
        return Err(SessionError::Truncated { got: HEADER_BYTES + got, need: HEADER_BYTES + size });
    }
    Ok(Some(Message { header, payload, fds: fds.kept, fds_lost: fds.lost }))
}

/// Sends the reply to request `code`. Blocks while the front-end does not read.
pub(crate) fn reply(socket: &UnixStream, code: u32, payload: &[u8]) -> Result<(), SessionError> {
    reply_with(socket, code, payload, None)
}

/// Sends a reply like [`reply`], with a descriptor.
pub(crate) fn reply_with(
    socket: &UnixStream,
    code: u32,
    payload: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> Result<(), SessionError> {
    // Bounded by MAX_PAYLOAD_BYTES, so the length fits.
    let size = payload.len() as u32;
    let mut bytes = [code, VERSION | REPLY, size].map(u32::to_ne_bytes).concat();
    bytes.extend_from_slice(payload);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = &fd {
        // The buffer has space for one descriptor.
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let iov = [IoSlice::new(rest)];
        let sent = retry_on_intr(|| sendmsg(socket, &iov, &mut control, SendFlags::NOSIGNAL));
        let sent = sent.map_err(|source| SessionError::Os { action: "write to", source })?;
        // The descriptor was sent with the first byte.
        control.clear();
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Descriptors received with one message.
#[derive(Default)]
struct Collected {
    kept: Vec<OwnedFd>,
    lost: bool,
}

impl Collected {
    /// Stores one more than any request carries, so that a surplus is detected. Closes the others.
    fn push(&mut self, fd: OwnedFd) {
        if self.kept.len() <= MAX_TABLE_REGIONS {
            self.kept.push(fd);
        }
    }
}

/// Reads until `buffer` is full or the connection ends. Returns the number of bytes read.
fn fill(
    socket: &UnixStream,
    buffer: &mut [u8],
    fds: &mut Collected,
) -> Result<usize, SessionError> {
    let mut got = 0;
    while let Some(rest) = buffer.get_mut(got..).filter(|rest| !rest.is_empty()) {
        match receive_some(socket, rest, fds) {
            Ok(0) => break,
            Ok(bytes) => got += bytes,
            Err(Errno::INTR) => {}
            // The front-end died with unread replies.
            Err(Errno::CONNRESET) => break,
            Err(source) => return Err(SessionError::Os { action: "read from", source }),
        }
    }
    Ok(got)
}

fn receive_some(socket: &UnixStream, rest: &mut [u8], fds: &mut Collected) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(rest)];
    let received = recvmsg(socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(|fd| fds.push(fd));
        }
    }
    fds.lost |= received.flags.contains(ReturnFlags::CTRUNC);
    Ok(received.bytes)
}

//! Socket of a front-end: bytes and descriptors in both directions, every wait with a deadline.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::wire::{HEADER_BYTES, Message, Request, flags};
use crate::error::{Error, Result};

/// Default deadline for a reply. It is long, so that no test fails on a loaded machine.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Most descriptors in one message. The kernel's limit is higher; the protocol needs 8.
const FDS_MAX: usize = 32;

/// Largest reply that is read, in bytes. The protocol's replies are far smaller.
const ANSWER_BYTES_MAX: u32 = 64 * 1024;

/// A message that the backend sent.
#[derive(Debug)]
pub struct BackendReply {
    /// Number of the request to which this is the reply, or of a request on the backend channel.
    pub request: Request,
    /// Flags field.
    pub flags: u32,
    /// Payload.
    pub payload: Vec<u8>,
    /// Descriptors received with the message.
    pub fds: Vec<OwnedFd>,
}

impl BackendReply {
    /// Returns the payload as one 64-bit value.
    ///
    /// # Errors
    /// [`Error::Reply`] if the payload has another size.
    pub fn u64(&self) -> Result<u64> {
        match <[u8; 8]>::try_from(self.payload.as_slice()) {
            Ok(bytes) => Ok(u64::from_ne_bytes(bytes)),
            Err(_) => Err(Error::Reply {
                request: self.request.name(),
                what: format!("payload of {} bytes where 8 are due", self.payload.len()),
            }),
        }
    }

    /// Returns whether the reply flag is set.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        self.flags & flags::REPLY != 0
    }
}

/// A connected socket.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    deadline: Duration,
}

impl Connection {
    /// Connects to a listening backend.
    ///
    /// # Errors
    /// [`Error::Io`] if no process listens there.
    pub fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path)
            .map_err(|e| Error::io(format!("cannot connect to {}", path.display()), e))?;
        Self::from_stream(stream)
    }

    /// Wraps a socket that is already connected.
    ///
    /// # Errors
    /// [`Error::Io`] if no deadline can be set on it.
    pub fn from_stream(stream: UnixStream) -> Result<Self> {
        let mut connection = Self { stream, deadline: ANSWER_DEADLINE };
        connection.set_deadline(ANSWER_DEADLINE)?;
        Ok(connection)
    }

    /// Changes the deadline for replies.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses (a zero duration).
    pub fn set_deadline(&mut self, deadline: Duration) -> Result<()> {
        self.deadline = deadline;
        self.stream
            .set_read_timeout(Some(deadline))
            .and_then(|()| self.stream.set_write_timeout(Some(deadline)))
            .map_err(|e| Error::io("cannot set the socket's deadline", e))
    }

    /// Sends a message unchanged.
    ///
    /// # Errors
    /// [`Error::Io`] if the socket does not accept it.
    pub fn send(&mut self, message: &Message<'_>) -> Result<()> {
        self.send_bytes(&message.encode(), &message.fds)
    }

    /// Sends any bytes with any descriptors, which go with the first byte.
    ///
    /// # Errors
    /// [`Error::Io`] if the socket does not accept them, [`Error::Full`] for more than 32
    /// descriptors.
    pub fn send_bytes(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::Full { what: format!("{} descriptors in one message", fds.len()) });
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let iov = [IoSlice::new(rest)];
            let sent = sendmsg(&self.stream, &iov, &mut ancillary, SendFlags::NOSIGNAL)
                .map_err(|e| Error::io("cannot send to the backend", e))?;
            ancillary.clear();
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Receives the next message.
    ///
    /// # Errors
    /// [`Error::Timeout`] past the deadline, [`Error::Closed`] at the end of the stream,
    /// [`Error::Reply`] if it is not version 1 or is absurdly large.
    pub fn recv(&mut self, what: &str) -> Result<BackendReply> {
        let mut header = [0; HEADER_BYTES];
        let fds = self.recv_exact(&mut header, what)?;
        let word = |i: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&header[i * 4..i * 4 + 4]);
            u32::from_ne_bytes(bytes)
        };
        let (request, flags, size) = (Request(word(0)), word(1), word(2));
        let bad = |what: String| Error::Reply { request: request.name(), what };
        if flags & flags::VERSION_MASK != flags::VERSION {
            return Err(bad(format!("flags {flags:#x} are not version 1")));
        }
        if size > ANSWER_BYTES_MAX {
            return Err(bad(format!("payload of {size} bytes")));
        }
        let mut payload = vec![0; size as usize];
        let more = self.recv_exact(&mut payload, what)?;
        Ok(BackendReply { request, flags, payload, fds: fds.into_iter().chain(more).collect() })
    }

    fn recv_exact(&mut self, buffer: &mut [u8], what: &str) -> Result<Vec<OwnedFd>> {
        let mut fds = Vec::new();
        let mut filled = 0;
        while filled < buffer.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut iov = [IoSliceMut::new(&mut buffer[filled..])];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let got = match recvmsg(&self.stream, &mut iov, &mut ancillary, flags) {
                Ok(message) => message.bytes,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return Err(self.timeout(what)),
                Err(rustix::io::Errno::CONNRESET) => 0,
                Err(e) => return Err(Error::io(format!("cannot receive during {what}"), e)),
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    fds.extend(passed);
                }
            }
            if got == 0 {
                return Err(Error::Closed { what: what.to_owned() });
            }
            filled += got;
        }
        Ok(fds)
    }

    fn timeout(&self, what: &str) -> Error {
        Error::Timeout { what: what.to_owned(), after_ms: self.deadline.as_millis() }
    }

    /// Waits until the backend closes the connection. Discards replies that arrive before.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it stays open.
    pub fn wait_closed(&mut self) -> Result<()> {
        let mut rest = [0; 4096];
        loop {
            match (&self.stream).read(&mut rest) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(self.timeout("the backend to close the connection"));
                }
                Err(e) => return Err(Error::io("cannot read from the backend", e)),
            }
        }
    }

    /// Shuts down the sending side. The backend reads an end of file; the test can still receive.
    ///
    /// # Errors
    /// [`Error::Io`] if the socket is no longer connected.
    pub fn finish_sending(&self) -> Result<()> {
        self.stream
            .shutdown(std::net::Shutdown::Write)
            .map_err(|e| Error::io("cannot shut down the sending side", e))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

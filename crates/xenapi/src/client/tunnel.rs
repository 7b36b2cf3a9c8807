//! Bytes both ways, as consoles have them.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::stream::Link;
use super::{ANSWER_DEADLINE, CONNECT_DEADLINE, Client, ClientError, http};

/// A connection to something of the server that is no call. Reads and writes do not wait: they end
/// with [`io::ErrorKind::WouldBlock`].
#[derive(Debug)]
pub struct Tunnel {
    link: Link,
}

impl Client {
    /// Connects to what is at this path of the server, which begins with a slash. The session is
    /// shown, but not in the path, which servers write into their logs.
    ///
    /// # Errors
    /// There is nothing at the path, or it refuses.
    pub fn tunnel(&mut self, path: &str) -> Result<Tunnel, ClientError> {
        let mut asked = self.ask(path)?;
        if asked.as_ref().is_err_and(http::HttpError::wants_session) && self.own.is_some() {
            self.login_as_root()?;
            asked = self.ask(path)?;
        }
        let mut link =
            asked.map_err(|http_error| self.failed("CONNECT", http_error, ANSWER_DEADLINE))?;
        link.set_deadline(None);
        let lost = |source| self.failed("CONNECT", http::HttpError::Io(source), ANSWER_DEADLINE);
        rustix::io::ioctl_fionbio(&link, true).map_err(|errno| lost(errno.into()))?;
        Ok(Tunnel { link })
    }

    fn ask(&self, path: &str) -> Result<Result<Link, http::HttpError>, ClientError> {
        let mut link = Link::open(&self.address, Instant::now() + CONNECT_DEADLINE)?;
        link.set_deadline(Some(Instant::now() + ANSWER_DEADLINE));
        let session = self.session().unwrap_or_default();
        Ok(http::connect(&mut link, &self.address, path, session).map(|()| link))
    }
}

impl Tunnel {
    /// Whether something can be read that the socket itself does not show any more.
    ///
    /// # Errors
    /// What came is not of the encryption that was agreed on.
    pub fn holds_bytes(&mut self) -> io::Result<bool> {
        self.link.holds_bytes()
    }
}

impl Read for Tunnel {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.link.reader.read(buffer)
    }
}

impl Write for Tunnel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.link.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.writer().flush()
    }
}

impl AsFd for Tunnel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

//! Byte streams in both directions, for consoles.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::stream::Link;
use super::{ANSWER_DEADLINE, CONNECT_DEADLINE, Client, ClientError, http};

/// Connection to a resource of the server that is no call. Reads and writes do not block: they fail
/// with [`io::ErrorKind::WouldBlock`].
#[derive(Debug)]
pub struct Tunnel {
    link: Link,
}

impl Client {
    /// Connects to the resource at this path, which begins with a slash. Sends the session in a
    /// cookie, not in the path, because servers write paths into their logs.
    ///
    /// # Errors
    /// The path does not exist, or the server refuses.
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
    /// Returns whether buffered bytes can be read that polling the socket does not show.
    ///
    /// # Errors
    /// The received bytes are not valid TLS.
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

//! Resources of any length that are read from the server, or sent to it.

use std::io::{self, Read, Write as _};
use std::time::{Duration, Instant};

use super::stream::Link;
use super::{ANSWER_DEADLINE, CONNECT_DEADLINE, Client, ClientError, http};

/// Longest time in which the server sends or takes no byte.
const STALL_DEADLINE: Duration = Duration::from_secs(600);
/// Longest wait for the response to a resource that was sent. The server may convert it first.
const STORE_DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes that are sent together.
const PIECE_BYTES: usize = 256 << 10;

/// Resource that arrives. A read fails if the connection ends before the resource does.
#[derive(Debug)]
pub struct Download {
    link: Link,
    left: Option<u64>,
}

impl Client {
    /// Requests the resource at this path, which begins with a slash, on a connection of its own.
    ///
    /// # Errors
    /// The path does not exist, or the server refuses.
    pub fn get(&mut self, path: &str) -> Result<Download, ClientError> {
        let mut link = self.open_transfer(STORE_DEADLINE)?;
        let session = self.session().unwrap_or_default();
        let left = http::get(&mut link, &self.address, path, session);
        let left = left.map_err(|http_error| self.failed("GET", http_error, STORE_DEADLINE))?;
        Ok(Download { link, left })
    }

    /// Sends a resource to this path, on a connection of its own. Without a `length`, the server
    /// learns its end from the stream. `sent` is called with the number of bytes so far.
    ///
    /// # Errors
    /// The resource cannot be read, the server refuses, or the connection fails.
    pub fn put(
        &mut self,
        path: &str,
        length: Option<u64>,
        resource: &mut dyn Read,
        sent: &mut dyn FnMut(u64),
    ) -> Result<(), ClientError> {
        let mut link = self.open_transfer(ANSWER_DEADLINE)?;
        let session = self.session().unwrap_or_default();
        let begun = http::put(&mut link, &self.address, path, session, length);
        begun.map_err(|http_error| self.failed("PUT", http_error, ANSWER_DEADLINE))?;
        let written = write_body(&mut link, length, resource, sent);
        // A server that rejects a resource early responds before it has read all of it.
        link.set_deadline(Some(Instant::now() + STORE_DEADLINE));
        let answer = match (http::accepted(&mut link), written) {
            (Err(http::HttpError::Io(_)), Err(error)) => Err(http::HttpError::Io(error)),
            (Ok(_), Err(error)) => Err(http::HttpError::Io(error)),
            (answer, _) => answer,
        };
        answer.map(drop).map_err(|http_error| self.failed("PUT", http_error, STORE_DEADLINE))
    }

    fn open_transfer(&self, within: Duration) -> Result<Link, ClientError> {
        let mut link = Link::open(&self.address, Instant::now() + CONNECT_DEADLINE)?;
        link.set_deadline(Some(Instant::now() + within));
        Ok(link)
    }
}

fn write_body(
    link: &mut Link,
    length: Option<u64>,
    resource: &mut dyn Read,
    sent: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0_u64;
    loop {
        let found = resource.read(&mut piece)?;
        let bytes = piece.get(..found).unwrap_or_default();
        link.set_deadline(Some(Instant::now() + STALL_DEADLINE));
        let to = link.writer();
        if length.is_none() {
            to.write_all(format!("{found:x}\r\n").as_bytes())?;
        }
        to.write_all(bytes)?;
        if length.is_none() {
            to.write_all(b"\r\n")?;
        }
        done += found as u64;
        sent(done);
        if found == 0 {
            return to.flush();
        }
    }
}

impl Download {
    /// Returns the bytes that are left, if the server has told.
    pub fn left(&self) -> Option<u64> {
        self.left
    }
}

impl Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.left.map_or(buffer.len(), |left| {
            usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len())
        });
        if most == 0 {
            // A read of nothing would wait for more than the resource.
            return Ok(0);
        }
        self.link.set_deadline(Some(Instant::now() + STALL_DEADLINE));
        let found = self.link.reader.read(buffer.get_mut(..most).unwrap_or_default())?;
        if let Some(left) = &mut self.left {
            *left -= found as u64;
            if found == 0 && *left > 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(found)
    }
}

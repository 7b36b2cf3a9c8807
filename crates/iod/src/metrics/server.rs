//! The part of HTTP/1.1 that scrapes need.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use vhost_user::{Access, Listener, StopSignal, Woken};

use super::Address;
use crate::accept_gate::AcceptGate;

/// Most connections at a time: a scraper has one, and a person another.
pub(super) const CONNECTIONS_MAX: usize = 8;
/// Most bytes of a request with its headers. Requests of browsers fit.
const HEADER_MAX: usize = 8 << 10;
/// Longest time from the accept of a connection until the last byte is sent.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for a scraper to close after it has its reply.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Pause after the process could not open more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Function that formats the page of one scrape.
pub(crate) type ScrapeHandler = Arc<dyn Fn() -> String + Send + Sync>;

/// Listening socket for scrapers.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(Listener),
    Tcp(TcpListener),
}

impl Socket {
    /// Closes this descriptor and leaves the address to other processes that share the socket.
    pub(crate) fn leave(self) {
        if let Self::Unix(listener) = self {
            listener.close_keep_files();
        }
    }
}

/// Listens at `address`.
///
/// # Errors
/// The address is in use, or this process may not use it.
pub(crate) fn bind(address: &Address) -> anyhow::Result<Socket> {
    match address {
        Address::Unix(path) => {
            let access = Access { mode: None, group: None };
            Listener::bind(path, &access).map(Socket::Unix).context("--metrics")
        }
        Address::Tcp(address) => {
            let listener = TcpListener::bind(address);
            let listener = listener
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .with_context(|| format!("--metrics: cannot listen on {address}"))?;
            Ok(Socket::Tcp(listener))
        }
    }
}

/// Serves scrapers until the gate is stopped. At the limit of connections, further scrapers wait in
/// the backlog. Each connection has a bounded time.
pub(crate) fn serve(socket: &Socket, gate: &Arc<AcceptGate>, scraped: &ScrapeHandler) {
    while let Some(accept_permit) = gate.enter() {
        while accept_permit.has_room(CONNECTIONS_MAX) {
            match accept(socket, accept_permit.wake()) {
                Ok(Some(stream)) => begin(stream, gate, scraped),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("cannot accept a scraper: {error}");
                    if !matches!(
                        accept_permit.wake().wait(None, Some(ACCEPT_PAUSE)),
                        Ok(Woken::TimedOut)
                    ) {
                        break;
                    }
                }
            }
        }
    }
}

/// Answers a request on its own thread.
fn begin(stream: Stream, gate: &Arc<AcceptGate>, scraped: &ScrapeHandler) {
    let (scraped, connection_guard) = (Arc::clone(scraped), gate.admit());
    let work = move || {
        if let Err(error) = answer(stream, &scraped) {
            tracing::debug!("scrape failed: {error}");
        }
        drop(connection_guard);
    };
    if let Err(error) = std::thread::Builder::new().name("metrics".into()).spawn(work) {
        tracing::warn!("cannot serve a scraper: {error}");
    }
}

fn accept(socket: &Socket, stop: &StopSignal) -> io::Result<Option<Stream>> {
    match socket {
        Socket::Unix(listener) => {
            Ok(listener.accept(stop).map_err(io::Error::other)?.map(Stream::Unix))
        }
        Socket::Tcp(listener) => loop {
            if stop.wait(Some(listener.as_fd()), None)? == Woken::Stopped {
                return Ok(None);
            }
            match listener.accept() {
                Ok((stream, _)) => return Ok(Some(Stream::Tcp(stream))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        },
    }
}

/// Connection with a deadline.
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Sets the timeout of the next operation to the time that is left.
    fn until(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.set_write_timeout(Some(left))
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.set_write_timeout(Some(left))
            }
        }
    }

    /// Makes a call within the time that is left, and again if it is interrupted: a socket with a
    /// timeout reports that to a process that was stopped and goes on (`signal(7)`).
    fn within<T>(
        &mut self,
        deadline: Instant,
        mut call: impl FnMut(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            self.until(deadline)?;
            match call(self) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                ended => return ended,
            }
        }
    }

    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(out),
            Self::Tcp(stream) => stream.read(out),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn close(&self) {
        // The other side may have closed already.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

/// Answers one request. The connection ends with the reply.
fn answer(mut stream: Stream, scraped: &ScrapeHandler) -> io::Result<()> {
    if let Stream::Tcp(tcp) = &stream {
        tcp.set_nonblocking(false)?;
    }
    let deadline = Instant::now() + CONNECTION_DEADLINE;
    let Some(head) = read_head(&mut stream, deadline)? else { return Ok(()) };
    let (status, kind, body) = match wanted(&head) {
        ScrapeTarget::Page | ScrapeTarget::HeadOfPage => ("200 OK", TEXT, scraped()),
        ScrapeTarget::Other(status, why) => {
            (status, "text/plain; charset=utf-8", format!("{why}\n"))
        }
    };
    let header = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if wanted(&head) == ScrapeTarget::HeadOfPage { "" } else { &body };
    for part in [header.as_str(), body] {
        let mut rest = part.as_bytes();
        while !rest.is_empty() {
            let count = stream.within(deadline, |stream| stream.write(rest))?;
            rest = rest.get(count..).unwrap_or_default();
        }
    }
    stream.close();
    // Closing with unread bytes would reset the connection and could lose the reply.
    let deadline = Instant::now() + CLOSE_GRACE;
    let mut rest = [0; 1024];
    while matches!(stream.within(deadline, |stream| stream.read(&mut rest)), Ok(1..)) {}
    Ok(())
}

/// Reads up to the empty line. Returns `None` if the client sent nothing.
fn read_head(stream: &mut Stream, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > HEADER_MAX {
            return Ok(Some(head));
        }
        match stream.within(deadline, |stream| stream.read(&mut chunk))? {
            0 if head.is_empty() => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(chunk.get(..count).unwrap_or_default()),
        }
    }
    Ok(Some(head))
}

/// Target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScrapeTarget {
    Page,
    HeadOfPage,
    /// Other status, with its reason.
    Other(&'static str, &'static str),
}

fn wanted(head: &[u8]) -> ScrapeTarget {
    if head.len() > HEADER_MAX {
        let status = "431 Request Header Fields Too Large";
        return ScrapeTarget::Other(status, "at most 8 KiB of headers are accepted");
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(b"HTTP/1.1" | b"HTTP/1.0"), None) =
        (method, target, version, words.next())
    else {
        return ScrapeTarget::Other("400 Bad Request", "this is not HTTP/1.1");
    };
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET", b"/metrics") => ScrapeTarget::Page,
        (b"HEAD", b"/metrics") => ScrapeTarget::HeadOfPage,
        (b"GET" | b"HEAD", _) => {
            ScrapeTarget::Other("404 Not Found", "the metrics are at /metrics")
        }
        _ => ScrapeTarget::Other("405 Method Not Allowed", "only GET and HEAD are served"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_served() {
        let status = |head: &str| match wanted(head.as_bytes()) {
            ScrapeTarget::Page => "page",
            ScrapeTarget::HeadOfPage => "head",
            ScrapeTarget::Other(status, _) => status.split(' ').next().unwrap(),
        };
        for (head, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "page"),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "page"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "head"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics HTTP/2\r\n\r\n", "400"),
            ("GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
        ] {
            assert_eq!(status(head), expected, "{head:?}");
        }
        assert_eq!(status(&"x".repeat(HEADER_MAX + 1)), "431");
    }
}

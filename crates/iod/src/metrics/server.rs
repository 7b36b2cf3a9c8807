//! Just enough of HTTP/1.1 to be scraped.

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

/// Connections at a time: a scraper has one, and a person another.
pub(super) const CONNECTIONS_MAX: usize = 8;
/// Bytes of a request with its headers: what browsers send fits.
const HEADER_MAX: usize = 8 << 10;
/// Longest time from the first byte expected to the last byte sent.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for a scraper to close after it has its answer.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Pause after the process could have no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Makes the page of one scrape.
pub(crate) type ScrapeHandler = Arc<dyn Fn() -> String + Send + Sync>;

/// A socket that listens for scrapers.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(Listener),
    Tcp(TcpListener),
}

impl Socket {
    /// Closes our side and leaves the address to whoever else has it.
    pub(crate) fn leave(self) {
        if let Self::Unix(listener) = self {
            listener.leave();
        }
    }
}

/// Listens at `address`.
///
/// # Errors
/// Somebody else has it, or it is not ours to have.
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

/// Serves scrapers until the gate is stopped. Whoever comes when as many are connected as may be
/// waits in the backlog: each of them has but so much time.
pub(crate) fn serve(socket: &Socket, gate: &Arc<AcceptGate>, scraped: &ScrapeHandler) {
    while let Some(accept_permit) = gate.enter() {
        while accept_permit.has_room(CONNECTIONS_MAX) {
            match accept(socket, accept_permit.wake()) {
                Ok(Some(stream)) => begin(stream, gate, scraped),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("cannot take a scraper: {error}");
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

/// Answers on a thread of its own.
fn begin(stream: Stream, gate: &Arc<AcceptGate>, scraped: &ScrapeHandler) {
    let (scraped, connection_guard) = (Arc::clone(scraped), gate.admit());
    let work = move || {
        if let Err(error) = answer(stream, &scraped) {
            tracing::debug!("scraper lost: {error}");
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

/// A connection, with time left.
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Gives the next operation what is left of the time.
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

/// One request and its answer; the connection ends with it.
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
            stream.until(deadline)?;
            let count = stream.write(rest)?;
            rest = rest.get(count..).unwrap_or_default();
        }
    }
    stream.close();
    // To close with bytes unread would reset the connection, and could take the answer with it.
    let deadline = Instant::now() + CLOSE_GRACE;
    let mut rest = [0; 1024];
    while stream.until(deadline).is_ok() && matches!(stream.read(&mut rest), Ok(1..)) {}
    Ok(())
}

/// Everything up to the empty line; `None`: the other side said nothing.
fn read_head(stream: &mut Stream, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > HEADER_MAX {
            return Ok(Some(head));
        }
        stream.until(deadline)?;
        match stream.read(&mut chunk)? {
            0 if head.is_empty() => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(chunk.get(..count).unwrap_or_default()),
        }
    }
    Ok(Some(head))
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScrapeTarget {
    Page,
    HeadOfPage,
    /// A status and a reason.
    Other(&'static str, &'static str),
}

fn wanted(head: &[u8]) -> ScrapeTarget {
    if head.len() > HEADER_MAX {
        let status = "431 Request Header Fields Too Large";
        return ScrapeTarget::Other(status, "8 KiB of headers are taken");
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

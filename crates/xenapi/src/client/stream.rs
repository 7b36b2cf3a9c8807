//! Connections with a deadline.

use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustls::{ClientConnection, StreamOwned};

use super::{Address, ClientError, Fingerprint, KnownServers, tls};

/// Transport of a connection.
#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn set_timeouts(&self, left: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(left)?;
                stream.set_write_timeout(left)
            }
            Self::Plain(stream) => tcp_timeouts(stream, left),
            Self::Tls(stream) => tcp_timeouts(&stream.sock, left),
        }
    }
}

fn tcp_timeouts(stream: &TcpStream, left: Option<Duration>) -> io::Result<()> {
    stream.set_read_timeout(left)?;
    stream.set_write_timeout(left)
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Plain(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.sock.as_fd(),
        }
    }
}

/// Stream whose reads and writes end with [`io::ErrorKind::TimedOut`] at the deadline.
#[derive(Debug)]
pub(super) struct DeadlineStream {
    stream: Stream,
    until: Option<Instant>,
}

impl DeadlineStream {
    /// Sets the socket's timeouts to the time left. Called before each read and write.
    fn allow(&self) -> io::Result<()> {
        let left = match self.until {
            None => None,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Some(left)
            }
        };
        self.stream.set_timeouts(left)
    }

    /// Converts the error of a socket. With a timeout set, `WouldBlock` means that the timeout has
    /// passed.
    fn convert_error(&self, error: io::Error) -> io::Error {
        let waited = self.until.is_some() && error.kind() == io::ErrorKind::WouldBlock;
        if waited { io::ErrorKind::TimedOut.into() } else { error }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.allow()?;
        let read = match &mut self.stream {
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        };
        read.map_err(|error| self.convert_error(error))
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.allow()?;
        let written = match &mut self.stream {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        };
        written.map_err(|error| self.convert_error(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.allow()?;
        let flushed = match &mut self.stream {
            Stream::Unix(stream) => stream.flush(),
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        };
        flushed.map_err(|error| self.convert_error(error))
    }
}

/// Connection to a server, with a read buffer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) reader: BufReader<DeadlineStream>,
    newly_trusted: Option<Fingerprint>,
}

impl Link {
    /// Connects. Fails at `until`.
    pub(super) fn open(address: &Address, until: Instant) -> Result<Self, ClientError> {
        let not_there = |source| ClientError::Unreachable { at: address.to_string(), source };
        let (stream, newly_trusted) = match address {
            Address::Unix(path) => (Stream::Unix(unix(path, until).map_err(not_there)?), None),
            Address::Plain(host, port) => {
                (Stream::Plain(tcp(host, *port, until).map_err(not_there)?), None)
            }
            Address::Tls(host, port, known_servers) => {
                let socket = tcp(host, *port, until).map_err(not_there)?;
                encrypted(socket, host, &address.to_string(), known_servers, until)?
            }
        };
        let reader = BufReader::new(DeadlineStream { stream, until: Some(until) });
        Ok(Self { reader, newly_trusted })
    }

    /// Returns whether no byte has arrived since the last response and the server has not closed.
    /// Data between two responses is a close or a TLS message, so the connection is not reused.
    pub(super) fn is_open(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut one = [0];
        let received = net::recv(&self.reader.get_ref().stream, &mut one, flags);
        self.reader.buffer().is_empty() && matches!(received, Err(Errno::WOULDBLOCK))
    }

    /// Sets the deadline of reads and writes. `None` means no deadline.
    pub(super) fn set_deadline(&mut self, until: Option<Instant>) {
        self.reader.get_mut().until = until;
    }

    /// Returns the stream for writing.
    pub(super) fn writer(&mut self) -> &mut DeadlineStream {
        self.reader.get_mut()
    }

    /// Returns the fingerprint that this connection was the first to see.
    pub(super) fn newly_trusted(&self) -> Option<&Fingerprint> {
        self.newly_trusted.as_ref()
    }

    /// Returns whether the read buffer or the TLS layer holds unread bytes.
    pub(super) fn holds_bytes(&mut self) -> io::Result<bool> {
        let ahead = !self.reader.buffer().is_empty();
        let decrypted = match &mut self.reader.get_mut().stream {
            Stream::Tls(stream) => {
                let state = stream.conn.process_new_packets().map_err(io::Error::other)?;
                state.plaintext_bytes_to_read() > 0
            }
            Stream::Unix(_) | Stream::Plain(_) => false,
        };
        Ok(ahead || decrypted)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.get_ref().stream.as_fd()
    }
}

/// Completes the TLS handshake and checks that the server is the trusted one.
fn encrypted(
    socket: TcpStream,
    host: &str,
    at: &str,
    known_servers: &KnownServers,
    until: Instant,
) -> Result<(Stream, Option<Fingerprint>), ClientError> {
    let mut through = DeadlineStream { stream: Stream::Plain(socket), until: Some(until) };
    let (connection, found) = tls::begin(&mut through, host, at)?;
    let newly_trusted = known_servers.verify(at, found)?;
    let stream = match through.stream {
        Stream::Plain(socket) => Stream::Tls(Box::new(StreamOwned::new(connection, socket))),
        other => other,
    };
    Ok((stream, newly_trusted))
}

/// Returns the time left, but never zero, which sockets treat as no timeout.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Connects to a Unix socket. If the backlog of the server is full, `connect` blocks until the
/// deadline.
fn unix(path: &Path, until: Instant) -> io::Result<UnixStream> {
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        set_socket_timeout(&socket, Timeout::Send, Some(left(until)))?;
        match net::connect(&socket, &address) {
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            // This process was stopped meanwhile, and goes on.
            Err(Errno::INTR) => {}
            connected => return Ok(connected.map(|()| UnixStream::from(socket))?),
        }
    }
}

/// Connects to the first address of a name that accepts.
fn tcp(host: &str, port: u16, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

//! Connections to servers, with a deadline for each request.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use model::spec::HostPort;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Time of a request, and of a connection attempt.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Stream whose reads and writes fail at a deadline, however slowly the peer sends.
#[derive(Debug)]
pub(super) struct DeadlineStream {
    socket: Socket,
    deadline: Instant,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl DeadlineStream {
    /// Connects. The resolver of names has its own deadlines (`resolv.conf(5)`).
    pub(super) fn tcp(server: &HostPort) -> io::Result<Self> {
        let deadline = Instant::now() + DEADLINE;
        let mut last = io::Error::other("the name has no address");
        for address in (server.host.as_str(), server.port).to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Self { socket: Socket::Tcp(stream), deadline });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub(super) fn unix(path: &Path) -> io::Result<Self> {
        let deadline = Instant::now() + DEADLINE;
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The kernel waits so long for a place in the listener's backlog.
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(DEADLINE))?;
        net::connect(&socket, &SocketAddrUnix::new(path)?)
            .map_err(|error| timed_out(error.into()))?;
        Ok(Self { socket: Socket::Unix(socket.into()), deadline })
    }

    /// Begins the time of a request.
    pub(super) fn begin(&mut self) {
        self.deadline = Instant::now() + DEADLINE;
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// Returns the error of a deadline for what the kernel reports as "would block".
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {DEADLINE:?}"))
        }
        _ => error,
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.left().map_err(timed_out)?;
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(out)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(out)
            }
        }
        .map_err(timed_out)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let left = self.left().map_err(timed_out)?;
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_write_timeout(Some(left))?;
                stream.write(data)
            }
            Socket::Unix(stream) => {
                stream.set_write_timeout(Some(left))?;
                stream.write(data)
            }
        }
        .map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_with_a_full_backlog_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        net::listen(&socket, 0).unwrap();
        let _first = DeadlineStream::unix(&path).unwrap();
        let error = DeadlineStream::unix(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}

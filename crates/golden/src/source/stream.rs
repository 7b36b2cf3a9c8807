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
        let address = SocketAddrUnix::new(path)?;
        within(deadline, |left| {
            // The kernel waits so long for a place in the listener's backlog.
            sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left))?;
            Ok(net::connect(&socket, &address)?)
        })?;
        Ok(Self { socket: Socket::Unix(socket.into()), deadline })
    }

    /// Begins the time of a request.
    pub(super) fn begin(&mut self) {
        self.deadline = Instant::now() + DEADLINE;
    }
}

/// Makes a call with the time that is left until `deadline`, and again if it is interrupted: a
/// socket with a timeout reports that to a process that was stopped and goes on (`signal(7)`).
fn within<T>(deadline: Instant, mut call: impl FnMut(Duration) -> io::Result<T>) -> io::Result<T> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(timed_out(io::ErrorKind::TimedOut.into()));
        }
        match call(left) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ended => return ended.map_err(timed_out),
        }
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
        within(self.deadline, |left| match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(out)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(out)
            }
        })
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        within(self.deadline, |left| match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_write_timeout(Some(left))?;
                stream.write(data)
            }
            Socket::Unix(stream) => {
                stream.set_write_timeout(Some(left))?;
                stream.write(data)
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;

    use rustix::thread::{Pid, gettid};

    use super::*;

    /// Waits until a thread of this process sleeps.
    fn until_asleep(thread: Pid) {
        let stat = format!("/proc/self/task/{thread}/stat");
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_listener_with_a_full_backlog_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        net::listen(&socket, 0).unwrap();
        let _first = DeadlineStream::unix(&path).unwrap();
        let (sender, thread) = channel();
        let second = std::thread::spawn(move || {
            sender.send(gettid()).unwrap();
            DeadlineStream::unix(&path).unwrap_err()
        });
        until_asleep(thread.recv().unwrap());
        // This process is stopped meanwhile, as by Ctrl-Z, and goes on.
        let script = "kill -STOP $PPID
            until grep -q '^State:.T' /proc/$PPID/status; do :; done
            kill -CONT $PPID";
        assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
        let error = second.join().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}

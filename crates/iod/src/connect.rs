//! Connections to a control socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Returns the time left until `deadline`, but never zero, which sockets treat as no timeout.
pub(crate) fn timeout_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Connects to `path`. Each wait on the connection, including the connect itself, ends after
/// `limit`. Without a limit, a stopped or hanging server whose backlog is full would block its
/// callers for ever.
///
/// # Errors
/// No process listens, or the server does not accept the connection in time.
pub(crate) fn dial(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = socket_with(kind.0, kind.1, kind.2, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(limit))?;
    let deadline = Instant::now() + limit;
    loop {
        set_socket_timeout(&socket, Timeout::Send, Some(timeout_until(deadline)))?;
        match connect(&socket, &address) {
            // This process was stopped meanwhile, and goes on.
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let seconds = limit.as_secs_f64();
                let what = format!("server did not accept the connection within {seconds} s");
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            connected => {
                connected?;
                set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
                return Ok(socket.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::net::{bind, listen};

    use super::*;

    #[test]
    fn nobody_who_takes_no_connections_is_waited_for_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        let flags = SocketFlags::CLOEXEC;
        let full = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&full, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&full, 0).unwrap();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut waiting = Vec::new();
            let error = loop {
                match dial(&path, Duration::from_millis(50)) {
                    Ok(stream) => waiting.push(stream),
                    Err(error) => break error,
                }
            };
            sender.send((waiting.len(), error)).unwrap();
        });
        let (waiting, error) = receiver.recv_timeout(Duration::from_secs(60)).expect("it waits");
        assert!(waiting > 0 && error.kind() == io::ErrorKind::TimedOut, "{waiting} {error}");
    }
}

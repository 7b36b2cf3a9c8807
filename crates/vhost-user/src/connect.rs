//! Client role: connects to a socket on which the front-end listens.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SocketAddrUnix, SocketFlags};

use crate::address::check_length;
use crate::error::SocketError;
use crate::listener::{errno, os, stream_socket};
use crate::stop_signal::{StopSignal, Woken};

/// First pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause between two attempts. A front-end that starts later is served within a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Connects to a listening front-end. Retries with growing pauses until the front-end listens.
/// Returns `None` after `stop`.
///
/// # Errors
/// The path can never work: it is too long, not a socket, or forbidden.
pub fn connect(path: &Path, stop: &StopSignal) -> Result<Option<UnixStream>, SocketError> {
    check_length(path)?;
    let address = SocketAddrUnix::new(path).map_err(errno("name", path))?;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(stream) = attempt(path, &address)? {
            return Ok(Some(stream));
        }
        match stop.wait(None, Some(pause)).map_err(|error| os("wait for", path, error))? {
            Woken::Stopped => return Ok(None),
            Woken::Readable | Woken::TimedOut => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
}

/// Makes one attempt. `None`: a later attempt may succeed.
fn attempt(path: &Path, address: &SocketAddrUnix) -> Result<Option<UnixStream>, SocketError> {
    // Non-blocking: with a full backlog the kernel would wait as long as the front-end likes, and
    // the stop signal would not end that wait.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = stream_socket(flags).map_err(errno("open", path))?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => {
            // Blocking again: a session sleeps in its reads.
            ioctl_fionbio(&socket, false).map_err(errno("make blocking", path))?;
            Ok(Some(socket.into()))
        }
        // The kernel gives this error for every file without a listener, whatever its kind.
        Err(Errno::CONNREFUSED) if is_other_file(path) => {
            Err(SocketError::NotASocket { path: path.into() })
        }
        // No socket yet, no listener, or a full backlog.
        Err(error @ (Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR)) => {
            tracing::debug!(path = %path.display(), "front-end does not listen yet: {error}");
            Ok(None)
        }
        Err(error) => Err(os("connect to", path, error.into())),
    }
}

/// Returns whether the path leads to something other than a socket.
fn is_other_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| !meta.file_type().is_socket())
}

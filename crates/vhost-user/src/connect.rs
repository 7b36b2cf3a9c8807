//! The other socket role: the front-end listens and we connect.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::address::check_length;
use crate::error::SocketError;
use crate::stop::{Stop, Woken};

/// First pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause: a front-end that starts later is served within a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Connects to a listening front-end, trying again with growing pauses until it is there.
/// `None`: told to stop.
///
/// # Errors
/// A path that can never work: too long, not a socket, or forbidden.
pub fn connect(path: &Path, stop: &Stop) -> Result<Option<UnixStream>, SocketError> {
    check_length(path)?;
    let os = |action, source| SocketError::Os { action, path: path.into(), source };
    let mut pause = FIRST_PAUSE;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(Some(stream)),
            // Nobody there yet, or nobody listens, or a full backlog.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound
                        | ErrorKind::ConnectionRefused
                        | ErrorKind::WouldBlock
                        | ErrorKind::Interrupted
                ) =>
            {
                tracing::debug!(path = %path.display(), "front-end is not there yet: {error}");
            }
            Err(error) => return Err(os("connect to", error)),
        }
        match stop.wait(None, Some(pause)).map_err(|error| os("wait for", error))? {
            Woken::Stopped => return Ok(None),
            Woken::Readable | Woken::TimedOut => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
}

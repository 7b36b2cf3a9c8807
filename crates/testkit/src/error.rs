//! Errors on the guest's side of a test.

use std::io;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a front-end or of a started process. Each names its cause, and the remedy if there
/// is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{what}")]
    Io {
        /// Failed action and its object.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// Nothing happened before the deadline.
    #[error("waited {after_ms} ms in vain for {what}")]
    Timeout {
        /// Event that the test waited for.
        what: String,
        /// Length of the wait, in milliseconds.
        after_ms: u128,
    },
    /// The backend closed the connection.
    #[error("the backend closed the connection during {what}; see its log for the reason")]
    Closed {
        /// Action of the test at that time.
        what: String,
    },
    /// The backend refused a message (REPLY_ACK, value not 0).
    #[error("the backend refused {request} with code {code}")]
    Refused {
        /// Name of the message.
        request: String,
        /// Value of the acknowledgement.
        code: u64,
    },
    /// The backend's reply violates the protocol.
    #[error("bad answer to {request}: {what}")]
    Reply {
        /// Name of the message.
        request: String,
        /// Problem with the reply.
        what: String,
    },
    /// The test itself accessed memory outside the shared memory.
    #[error("guest range {addr:#x}+{len:#x} is outside the shared memory")]
    Outside {
        /// Guest address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Shared memory, descriptors or buffers are used up.
    #[error("no room left for {what}; ask for more in the set-up")]
    Full {
        /// Object that did not fit.
        what: String,
    },
    /// A program is not installed or not built.
    #[error("{program} was not found; {next}")]
    Missing {
        /// Name of the program.
        program: String,
        /// Remedy.
        next: String,
    },
    /// The host cannot provide what a test needs, and no variable allows the test to be left out.
    #[error("{why}; on a host without it {variable}=1 leaves this out")]
    Absent {
        /// Reason, with what the host lacks.
        why: String,
        /// Environment variable that allows the test to be left out.
        variable: &'static str,
    },
    /// A started program ended, or did not end.
    #[error("{program} {what}; it wrote: {stderr}")]
    Process {
        /// Name of the program.
        program: String,
        /// Event, such as its exit status.
        what: String,
        /// End of its standard error.
        stderr: String,
    },
}

impl Error {
    /// Returns whether the other side has disconnected, or does not listen yet.
    #[must_use]
    pub fn is_hang_up(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
        match self {
            Self::Closed { .. } => true,
            Self::Io { source, .. } => {
                [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound].contains(&source.kind())
            }
            _ => false,
        }
    }

    /// Wraps a system error with the failed action.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }
}

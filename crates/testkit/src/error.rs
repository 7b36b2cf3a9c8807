//! What can go wrong on the guest's side of a test.

use std::io;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a front-end or of a started process. Each names the cause, and the next step where
/// there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed; `what` says what it was meant to do.
    #[error("{what}")]
    Io {
        /// The action and its object.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Nothing happened before the deadline.
    #[error("waited {after_ms} ms in vain for {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, in milliseconds.
        after_ms: u128,
    },
    /// The backend closed the connection.
    #[error("the backend closed the connection during {what}; see its log for the reason")]
    Closed {
        /// What we were doing.
        what: String,
    },
    /// The backend answered a message with a refusal (REPLY_ACK, value not 0).
    #[error("the backend refused {request} with code {code}")]
    Refused {
        /// Name of the message.
        request: String,
        /// The value of the acknowledgement.
        code: u64,
    },
    /// The backend's answer is not what the protocol says.
    #[error("bad answer to {request}: {what}")]
    Reply {
        /// Name of the message.
        request: String,
        /// What is wrong with the answer.
        what: String,
    },
    /// An access of the test itself lies outside the shared memory.
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
        /// What did not fit.
        what: String,
    },
    /// A program is not installed or not built.
    #[error("{program} was not found; {next}")]
    Missing {
        /// Name of the program.
        program: String,
        /// What to do about it.
        next: String,
    },
    /// The host cannot give what a test needs, and nobody has said that this is known.
    #[error("{why}; on a host without it {variable}=1 leaves this out")]
    Absent {
        /// What is not there.
        why: String,
        /// The variable that says that it is known.
        variable: &'static str,
    },
    /// A started program ended, or would not end.
    #[error("{program} {what}; it wrote: {stderr}")]
    Process {
        /// Name of the program.
        program: String,
        /// What happened to it.
        what: String,
        /// The end of its standard error.
        stderr: String,
    },
}

impl Error {
    /// The other side is gone, or not there yet.
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

    /// Wraps a system error with what was attempted.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }
}

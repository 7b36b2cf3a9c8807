//! What goes wrong between a client and its server.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::Fingerprint;
use crate::ApiError;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The API refused.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// There is no connection.
    #[error("cannot reach the server at {at}: is ringwayd running there?")]
    NotThere {
        /// Where.
        at: String,
        /// Why.
        source: io::Error,
    },
    /// There is a connection, but TLS does not come about.
    #[error("no TLS with {at}: {why}")]
    Tls {
        /// Where.
        at: String,
        /// Why.
        why: String,
    },
    /// The server shows another certificate than the one that is trusted.
    #[error(
        "the certificate of {at} is not the one that is trusted: it was {known} and is {found}. \
         Nothing was sent. If it was replaced on purpose: sed -i '\\|^{} |d' {}",
        .at.replace('[', "\\["), .file.display()
    )]
    Changed {
        /// Where.
        at: String,
        /// What is trusted.
        known: Fingerprint,
        /// What is shown.
        found: Fingerprint,
        /// The file that says what is trusted.
        file: PathBuf,
    },
    /// Nobody has met the server, and who is unknown is not to be trusted.
    #[error("{at} is unknown to {}: nothing was sent", .file.display())]
    Unknown {
        /// Where.
        at: String,
        /// The file that says what is trusted.
        file: PathBuf,
    },
    /// The file that says what is trusted cannot be used.
    #[error("cannot tell whether {at} is to be trusted: {}", .file.display())]
    Trust {
        /// Where.
        at: String,
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The connection ended before the answer: the call may have been done, or not.
    #[error("the server at {at} went away during {method}: look whether it was done")]
    Lost {
        /// Where.
        at: String,
        /// What was called.
        method: String,
        /// Why.
        source: io::Error,
    },
    /// What answers does not serve the API.
    #[error("{at} answers with the HTTP status {status}: is that ringwayd?")]
    Http {
        /// Where.
        at: String,
        /// The status.
        status: u16,
    },
    /// The server does not give what is no call, for example a console.
    #[error("{at} refuses: {why}")]
    Refused {
        /// Where.
        at: String,
        /// What it says, in a sentence.
        why: String,
    },
    /// No answer in time.
    #[error("no end of {what} within {} s: it may go on", .after.as_secs())]
    Late {
        /// What was called, or the task that carries it out.
        what: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// An answer that makes no sense.
    #[error("{at} answers {method} with what is no answer: {why}")]
    Nonsense {
        /// Where.
        at: String,
        /// What was called.
        method: String,
        /// Why it is none.
        why: String,
    },
}

impl ClientError {
    /// The code that the API answered, if it did.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Api(error) => Some(&error.code),
            _ => None,
        }
    }
}

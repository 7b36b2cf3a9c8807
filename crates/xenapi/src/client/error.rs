//! Errors between a client and its server.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::Fingerprint;
use crate::ApiError;

/// Reason why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with an API error.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The client cannot connect.
    #[error("cannot reach the server at {at}: is ringwayd running there?")]
    Unreachable {
        /// Address of the server.
        at: String,
        /// Cause.
        source: io::Error,
    },
    /// The TLS handshake failed.
    #[error("no TLS with {at}: {why}")]
    Tls {
        /// Address of the server.
        at: String,
        /// Cause.
        why: String,
    },
    /// The server's certificate differs from the trusted one.
    #[error(
        "the certificate of {at} is not the trusted one: it was {known} and is {found}. Nothing \
         was sent. If it was replaced on purpose: sed -i '\\|^{} |d' {}",
        .at.replace('[', "\\["), .file.display()
    )]
    Changed {
        /// Address of the server.
        at: String,
        /// Trusted fingerprint.
        known: Fingerprint,
        /// Fingerprint of the server's certificate.
        found: Fingerprint,
        /// File with the trusted fingerprints.
        file: PathBuf,
    },
    /// The server is unknown, and only known servers are trusted.
    #[error("{at} is unknown to {}: nothing was sent", .file.display())]
    Unknown {
        /// Address of the server.
        at: String,
        /// File with the trusted fingerprints.
        file: PathBuf,
    },
    /// The file with the trusted fingerprints cannot be used.
    #[error("cannot check whether {at} is trusted: {}", .file.display())]
    Trust {
        /// Address of the server.
        at: String,
        /// File with the trusted fingerprints.
        file: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The connection ended before the response. The server may have carried out the call.
    #[error("the server at {at} disconnected during {method}: check whether the call was done")]
    Lost {
        /// Address of the server.
        at: String,
        /// Called method.
        method: String,
        /// Cause.
        source: io::Error,
    },
    /// The server answered with an HTTP error, so it may not serve the API.
    #[error("{at} answers with the HTTP status {status}: is that ringwayd?")]
    Http {
        /// Address of the server.
        at: String,
        /// HTTP status.
        status: u16,
    },
    /// The server refused a request that is no call, for example for a console.
    #[error("{at} refuses: {why}")]
    Refused {
        /// Address of the server.
        at: String,
        /// Reason from the server, in a sentence.
        why: String,
    },
    /// The response did not arrive in time.
    #[error("{what} did not end within {} s: it may still run", .after.as_secs())]
    Late {
        /// Called method, or the method and its task.
        what: String,
        /// Time after which the client stopped waiting.
        after: Duration,
    },
    /// The response is invalid.
    #[error("{at} sent an invalid answer to {method}: {why}")]
    InvalidResponse {
        /// Address of the server.
        at: String,
        /// Called method.
        method: String,
        /// Reason why the response is invalid.
        why: String,
    },
}

impl ClientError {
    /// Returns the API error code, if the server answered with one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Api(error) => Some(&error.code),
            _ => None,
        }
    }
}

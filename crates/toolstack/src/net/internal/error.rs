//! Errors of internal networks.

use std::path::PathBuf;

use super::super::NetError;
use super::spec::DIRECTORY_BYTES_MAX;
use super::{Name, Subnet};

/// Error of creating or removing an internal network.
#[derive(Debug, thiserror::Error)]
pub enum InternalError {
    /// The name is invalid.
    #[error(
        "`{0}`: a network's name has 1 to 11 small letters, digits, `-` or `_`, the first a letter"
    )]
    Name(String),
    /// The subnet is invalid.
    #[error("subnet `{text}`: {why}")]
    Subnet {
        /// Given subnet.
        text: String,
        /// Reason, with the valid form.
        why: String,
    },
    /// A program is missing.
    #[error("{name} is missing; install it: apt-get install {package}")]
    Missing {
        /// Name of the program.
        name: &'static str,
        /// Debian package that contains it.
        package: &'static str,
    },
    /// The network exists with other settings.
    #[error("network {name} exists with {has}; destroy it first, or leave the options out")]
    Differs {
        /// Name of the network.
        name: Name,
        /// Present setting.
        has: String,
    },
    /// The subnet overlaps another one.
    #[error("subnet {subnet} overlaps {with}; choose another one with --subnet")]
    Overlaps {
        /// Requested subnet.
        subnet: Subnet,
        /// Overlapping subnet or network.
        with: String,
    },
    /// No free subnet is left.
    #[error("the host has routes to all of 10.213.0.0/16; choose addresses with --subnet")]
    NoneFree,
    /// The network is in use.
    #[error("network {name} is in use by {by}; --force removes it anyway")]
    InUse {
        /// Name of the network.
        name: Name,
        /// User of the network.
        by: String,
    },
    /// A step failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The path cannot be used for network records.
    #[error(
        "directory {0:?}: dnsmasq cannot use it; its path must be UTF-8 of at most \
         {DIRECTORY_BYTES_MAX} bytes without control characters, `\"` or `#`"
    )]
    Directory(PathBuf),
    /// A file operation failed.
    #[error("cannot {doing} {}", path.display())]
    State {
        /// Operation that failed.
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
}

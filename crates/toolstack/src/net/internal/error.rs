//! Why a network could not be made or removed.

use std::path::PathBuf;

use super::super::NetError;
use super::spec::DIRECTORY_BYTES_MAX;
use super::{Name, Subnet};

/// Why an internal network could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum InternalError {
    /// No network can have this name.
    #[error(
        "`{0}`: a network's name has 1 to 11 small letters, digits, `-` or `_`, the first a letter"
    )]
    Name(String),
    /// That are no addresses for a network.
    #[error("subnet `{text}`: {why}")]
    Subnet {
        /// What was given.
        text: String,
        /// What would be right.
        why: String,
    },
    /// A program is not there.
    #[error("{name} is not there; install it: apt-get install {package}")]
    Missing {
        /// The program.
        name: &'static str,
        /// Its Debian package.
        package: &'static str,
    },
    /// The network is there, as another one.
    #[error("network {name} is there with {has}; destroy it first, or leave the options out")]
    Differs {
        /// Its name.
        name: Name,
        /// What it has.
        has: String,
    },
    /// Its addresses are others' too.
    #[error("subnet {subnet} overlaps {with}; choose another one with --subnet")]
    Overlaps {
        /// What was asked for.
        subnet: Subnet,
        /// What is there.
        with: String,
    },
    /// There is no room for another network.
    #[error("the host has routes to all of 10.213.0.0/16; choose addresses with --subnet")]
    NoneFree,
    /// Somebody uses it.
    #[error("network {name} is in use by {by}; --force removes it all the same")]
    InUse {
        /// Its name.
        name: Name,
        /// By whom.
        by: String,
    },
    /// A step was refused.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Nothing can be kept in a directory of this path.
    #[error(
        "directory {0:?}: dnsmasq cannot be told of it; its path must be UTF-8 of at most \
         {DIRECTORY_BYTES_MAX} bytes without control characters, `\"` or `#`"
    )]
    Directory(PathBuf),
    /// Files could not be used.
    #[error("cannot {doing} {}", path.display())]
    State {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

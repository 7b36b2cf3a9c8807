//! Who somebody is, and what that one may do.
//!
//! # Model
//! A name and a password are right when [`Users`] says so: the host's own users, asked by PAM in a
//! process of its own ([`pam`]), or a file ([`passwords`]). Whoever fails waits before hearing of it,
//! the longer the more often ([`throttle`]), and nobody else does.
//!
//! # Invariants
//! No password is in a message, a log, a record or the arguments of a process.

pub mod pam;
pub mod passwords;
pub mod source;
pub mod throttle;
mod users;
pub mod watch;

use xenapi::table::Role;

pub use users::{AuthOutcome, PasswordRejected, Users, UsersError};

/// Somebody who has shown who he is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub name: String,
    /// What this user may do.
    pub role: Role,
}

/// The user of the Unix socket, and the first in every file of passwords.
pub const ROOT: &str = "root";

//! Authenticates users and determines their roles.
//!
//! # Model
//! [`Users`] checks names and passwords, either against the host's own users or against a file. PAM
//! checks host users in a separate process ([`pam`]). [`passwords`] reads the file. A client that
//! fails waits for its answer, longer after each failure ([`throttle`]). Other clients do not wait.
//!
//! # Invariants
//! No password appears in a message, a log, a record or the arguments of a process.

pub mod pam;
pub mod passwords;
pub mod source;
pub mod throttle;
mod users;
pub mod watch;

use xenapi::table::Role;

pub use users::{AuthOutcome, PasswordRejected, Users, UsersError};

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the user.
    pub name: String,
    /// Role that limits the user's calls.
    pub role: Role,
}

/// User of the Unix socket, and first user in every password file.
pub const ROOT: &str = "root";

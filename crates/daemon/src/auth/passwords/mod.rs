//! Password file: users with their passwords and roles.
//!
//! ```text
//! root
//! 3Yx...
//!
//! watcher
//! its password
//! read-only
//! ```
//! Each user takes a line each for name, password and [role](xenapi::table::Role). An empty line
//! separates users. The first user is root, whose role may be omitted. So `xe -pwf` can read a file
//! that names only root. The daemon reads the file at each login and after each change. Changes
//! apply at once. A session ends if its user could no longer log in with the same password and
//! role.

#[cfg(test)]
mod tests;
mod users;
mod write;

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Identity;
use users::User;

pub use write::{change, fits, make};

/// Mode of the file: access for its owner only.
const OWNER: u32 = 0o600;
/// Permission bits of group and others, which must be clear.
const OTHERS: u32 = 0o077;
/// Longest file in bytes, enough for some hundred users.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Longest password or name that is compared, in bytes.
const WORD_BYTES_MAX: usize = 1024;

/// Reason why a password file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordsError {
    /// The file cannot be read or written.
    #[error("cannot {doing} the password file {}: check its path and permissions", .path.display())]
    Os {
        /// Attempted action, "read" or "write".
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Other users can read the file.
    #[error("the password file {} can be read by others (mode {mode:o}): chmod 600 it, and change \
             the passwords", .path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
    },
    /// The file has a syntax error.
    #[error("the password file {} is invalid at line {line}: expected {why}", .path.display())]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// Line of the error, counted from 1.
        line: usize,
        /// Description of the error.
        why: &'static str,
    },
}

/// Returns the user with this name and password, if there is one.
///
/// # Errors
/// [`PasswordsError`] if the file cannot be used, so no login is possible.
pub fn check(path: &Path, name: &str, password: &str) -> Result<Option<Identity>, PasswordsError> {
    if name.len().max(password.len()) > WORD_BYTES_MAX {
        return Ok(None);
    }
    let mut found = None;
    for user in users(path)?.1 {
        let right = same(password.as_bytes(), user.password.as_bytes());
        if user.identity.name == name && right {
            found = Some(user.identity);
        }
    }
    Ok(found)
}

/// Keyed hash of name, password and role at a login. The session stays valid while the file
/// contains credentials with the same stamp. Only the holder of the keys can compute stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CredentialStamp(u64);

impl CredentialStamp {
    /// Computes the stamp of these credentials.
    pub fn of(keys: &RandomState, identity: &Identity, password: &str) -> Self {
        Self(keys.hash_one((&identity.name, password, identity.role.name())))
    }
}

/// Returns the stamps of all users in the file.
///
/// # Errors
/// [`PasswordsError`] if the file cannot be used.
pub fn stamps(
    path: &Path,
    keys: &RandomState,
) -> Result<BTreeSet<CredentialStamp>, PasswordsError> {
    let users = users(path)?.1.into_iter();
    Ok(users.map(|user| CredentialStamp::of(keys, &user.identity, &user.password)).collect())
}

/// Checks that the file can be used for logins.
///
/// # Errors
/// [`PasswordsError`] if the file cannot be used, so no login is possible.
pub fn usable(path: &Path) -> Result<(), PasswordsError> {
    check(path, "", "").map(drop)
}

/// Reads the file and returns its text and its users.
fn users(path: &Path) -> Result<(String, Vec<User>), PasswordsError> {
    let text = read(path)?;
    let users = users::parse(&text).map_err(|(line, why)| PasswordsError::Wrong {
        path: path.to_owned(),
        line,
        why,
    })?;
    Ok((text, users))
}

fn read(path: &Path) -> Result<String, PasswordsError> {
    let to_error = |source| PasswordsError::Os { doing: "read", path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(to_error)?;
    let mode = file.metadata().map_err(to_error)?.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(PasswordsError::Open { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(to_error)?;
    if read as u64 > FILE_BYTES_MAX {
        let why = format!("it is longer than {FILE_BYTES_MAX} bytes");
        return Err(to_error(io::Error::other(why)));
    }
    Ok(text)
}

/// Compares in a time that does not depend on where the texts differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    let longest = one.len().max(other.len());
    let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or_default();
    let differs = (0..longest).fold(one.len() ^ other.len(), |differs, at| {
        differs | usize::from(byte(one, at) ^ byte(other, at))
    });
    std::hint::black_box(differs) == 0
}

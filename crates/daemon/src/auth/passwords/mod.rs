//! The file of users and passwords.
//!
//! ```text
//! root
//! 3Yx...
//!
//! watcher
//! its password
//! read-only
//! ```
//! A user is a name, a password and a [role](xenapi::table::Role) on a line each; an empty line comes between two.
//! The first is root, whose role need not be said. So a file of root alone is what `xe -pwf` reads
//! as well. It is read at each login, and when it has changed: what is written there holds from then
//! on, and sessions of whoever could not log in again with the same password and role end.

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

/// For its owner only.
const OWNER: u32 = 0o600;
/// What others may do with it, which must be nothing.
const OTHERS: u32 = 0o077;
/// Longest file, in bytes: some hundred users.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Longest password or name that is compared, in bytes.
const WORD_BYTES_MAX: usize = 1024;

/// Why a file of passwords cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordsError {
    /// It cannot be read or written.
    #[error("cannot {doing} the passwords {}: see to its path and permissions", .path.display())]
    Os {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others can read it.
    #[error("the passwords {} can be read by others (mode {mode:o}): chmod 600 it, and change \
             the passwords", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is not as it should be.
    #[error("the passwords {} are wrong at line {line}: {why}", .path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where, from 1 on.
        line: usize,
        /// What should be there.
        why: &'static str,
    },
}

/// Who has this name and this password, if anybody has.
///
/// # Errors
/// [`PasswordsError`]: nobody can log in.
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

/// What was right at a login, told from everything else by whoever has the keys: as long as the file
/// has it, the session may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CredentialStamp(u64);

impl CredentialStamp {
    /// Of somebody who has logged in with this password.
    pub fn of(keys: &RandomState, identity: &Identity, password: &str) -> Self {
        Self(keys.hash_one((&identity.name, password, identity.role.name())))
    }
}

/// Stamps of all who could log in with this file.
///
/// # Errors
/// [`PasswordsError`]: it cannot be told who could.
pub fn stamps(
    path: &Path,
    keys: &RandomState,
) -> Result<BTreeSet<CredentialStamp>, PasswordsError> {
    let users = users(path)?.1.into_iter();
    Ok(users.map(|user| CredentialStamp::of(keys, &user.identity, &user.password)).collect())
}

/// Somebody could log in with this file.
///
/// # Errors
/// [`PasswordsError`]: nobody can.
pub fn usable(path: &Path) -> Result<(), PasswordsError> {
    check(path, "", "").map(drop)
}

/// What is written there, and what that means.
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
    let told = |source| PasswordsError::Os { doing: "read", path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(told)?;
    let mode = file.metadata().map_err(told)?.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(PasswordsError::Open { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(told)?;
    if read as u64 > FILE_BYTES_MAX {
        let why = format!("it is longer than {FILE_BYTES_MAX} bytes");
        return Err(told(io::Error::other(why)));
    }
    Ok(text)
}

/// Takes as long whatever differs.
fn same(one: &[u8], other: &[u8]) -> bool {
    let longest = one.len().max(other.len());
    let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or_default();
    let differs = (0..longest).fold(one.len() ^ other.len(), |differs, at| {
        differs | usize::from(byte(one, at) ^ byte(other, at))
    });
    std::hint::black_box(differs) == 0
}

//! Creates the password file and changes passwords in it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use super::{OWNER, PasswordsError, WORD_BYTES_MAX, users};
use crate::auth::ROOT;

/// Creates the file with this password for root unless it exists. Returns whether it was created.
///
/// # Errors
/// [`PasswordsError`] if the file does not exist and cannot be created.
pub fn make(path: &Path, random: [u8; 16]) -> Result<bool, PasswordsError> {
    let to_error = |source| PasswordsError::Os { doing: "write", path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(to_error(error)),
    }
    let password: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    replace(path, &format!("{ROOT}\n{password}\n"), None).map_err(to_error)?;
    Ok(true)
}

/// Changes the password of a user in the file. Returns whether the file names the user. All other
/// lines stay unchanged.
///
/// # Errors
/// [`PasswordsError`] if the file is invalid or cannot be read or written. The file stays
/// unchanged.
pub fn change(path: &Path, name: &str, password: &str) -> Result<bool, PasswordsError> {
    let to_error = |source| PasswordsError::Os { doing: "write", path: path.to_owned(), source };
    // A symbolic link must survive, so replace its target.
    let path = &fs::canonicalize(path).map_err(to_error)?;
    let (text, users) = users(path)?;
    let Some(user) = users.iter().find(|user| user.identity.name == name) else { return Ok(false) };
    let lines = text.lines().enumerate().map(|(at, line)| {
        let line = if at + 1 == user.password_at { password } else { line };
        format!("{line}\n")
    });
    let owner = fs::metadata(path).map_err(to_error)?;
    replace(path, &lines.collect::<String>(), Some(&owner)).map_err(to_error)?;
    Ok(true)
}

/// Checks that a line of the file can hold this password. The error says why it cannot.
pub fn fits(password: &str) -> Result<(), &'static str> {
    if password.is_empty() {
        return Err("a password must not be empty");
    }
    if password.len() > WORD_BYTES_MAX {
        return Err("the password is too long: take 1024 bytes at most");
    }
    match password.contains(char::is_control) {
        true => Err("a password is a line of text: take no control characters"),
        false => Ok(()),
    }
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str, owner: Option<&Metadata>) -> io::Result<()> {
    let draft = path.with_added_extension("new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWNER).open(&draft)?;
    if let Some(owner) = owner {
        fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    // Makes the rename durable.
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

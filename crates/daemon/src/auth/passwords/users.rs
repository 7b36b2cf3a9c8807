//! Parser of the password file.

use xenapi::table::Role;

use crate::auth::{Identity, ROOT};

/// A user with a password.
pub(super) struct User {
    pub(super) identity: Identity,
    pub(super) password: String,
    /// Line of the password, counted from 1.
    pub(super) password_at: usize,
}

/// Returns the users of a file. The error holds the line and its problem.
pub(super) fn parse(text: &str) -> Result<Vec<User>, (usize, &'static str)> {
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line)).peekable();
    let mut users: Vec<User> = Vec::new();
    while lines.peek().is_some() {
        let mut user = Vec::new();
        while let Some((_, line)) = lines.peek()
            && !line.is_empty()
        {
            user.extend(lines.next());
        }
        let end = lines.next().map_or(text.lines().count() + 1, |(at, _)| at);
        let (name, password, role) = match user.as_slice() {
            [] => continue,
            [(_, ROOT), password] => (ROOT, password, Role::PoolAdmin),
            [(_, name), password, (at, role)] => {
                let role = role.parse().map_err(|_| (*at, "a role, as pool-admin or read-only"))?;
                (*name, password, role)
            }
            [_] => return Err((end, "a password, below the name")),
            [_, _] => return Err((end, "a role, below the password")),
            [_, _, _, (at, _), ..] => return Err((*at, "an empty line between two users")),
        };
        let first = user.first().map_or(end, |(at, _)| *at);
        if users.iter().any(|other| other.identity.name == name) {
            return Err((first, "a name that is not used above"));
        }
        if name == ROOT && role != Role::PoolAdmin {
            return Err((first, "root as pool-admin: the Unix socket has that role anyway"));
        }
        let identity = Identity { name: name.to_owned(), role };
        let (password_at, password) = *password;
        users.push(User { identity, password: password.to_owned(), password_at });
    }
    Ok(users)
}

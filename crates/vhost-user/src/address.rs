//! Socket paths and socket groups.

use std::path::Path;

use crate::error::SocketError;

/// Longest path of a Unix socket, in bytes. `sun_path` has 108 bytes; the last is a terminator.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

pub(crate) fn check_length(path: &Path) -> Result<(), SocketError> {
    let len = path.as_os_str().len();
    if len > MAX_SOCKET_PATH_BYTES {
        return Err(SocketError::PathTooLong {
            path: path.into(),
            len,
            max: MAX_SOCKET_PATH_BYTES,
        });
    }
    Ok(())
}

/// Returns the id of a group that is given by name or number.
pub(crate) fn group_id(name: &str) -> Result<u32, SocketError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let path = Path::new("/etc/group");
    let text = std::fs::read_to_string(path).map_err(|source| SocketError::Os {
        action: "read the groups in",
        path: path.into(),
        source,
    })?;
    let missing = SocketError::NoSuchGroup { name: name.into() };
    find_group(&text, name).ok_or(missing)
}

/// Finds the id in `text`, whose lines read `name:password:number:members`.
fn find_group(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_by_name_and_number() {
        let text = "root:x:0:\nkvm:x:104:alice,bob\nbad:x:\nbroken\n";
        assert_eq!(find_group(text, "kvm"), Some(104));
        assert_eq!(find_group(text, "root"), Some(0));
        for absent in ["bad", "broken", "kv", "alice", ""] {
            assert_eq!(find_group(text, absent), None, "{absent}");
        }
        assert_eq!(group_id("42").unwrap(), 42);
        assert!(matches!(group_id("no such group"), Err(SocketError::NoSuchGroup { .. })));
    }
}

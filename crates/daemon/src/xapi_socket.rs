//! Link at the path where programs for XenServer expect the daemon's Unix socket.
//!
//! The link exists while the daemon serves, if the path is free. Other files there stay untouched,
//! so Ringway and XenServer's own daemon do not disturb each other.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

/// Path of the socket in XenServer.
pub const XAPI: &str = "/var/lib/xcp/xapi";
/// Mode of the directory. It contains only the link; the socket has its own mode.
const DIRECTORY_MODE: u32 = 0o755;

/// Link to the socket. Dropping it removes the link.
#[derive(Debug)]
pub struct XapiSocketLink {
    link: PathBuf,
    socket: PathBuf,
    /// Directory, if it was created for the link.
    made: Option<PathBuf>,
}

impl XapiSocketLink {
    /// Creates a link from `link` to `socket`. An existing link to the same socket is adopted.
    /// Returns `None` if the path is in use or the system refuses. Clients can still name the
    /// socket.
    pub fn begin(link: &Path, socket: &Path) -> Option<Self> {
        let made = match link.parent().map(make) {
            Some(Ok(made)) => made,
            Some(Err(error)) => {
                tracing::warn!("cannot create the link {}: {error}", link.display());
                return None;
            }
            None => None,
        };
        let xapi_socket_link = Self { link: link.into(), socket: socket.into(), made };
        match symlink(socket, link) {
            Ok(()) => Some(xapi_socket_link),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                tracing::warn!("cannot create the link {}: {error}", link.display());
                None
            }
            Err(_) if xapi_socket_link.is_ours() => Some(xapi_socket_link),
            Err(_) => {
                tracing::info!("{} is not a link to this socket; left as it is", link.display());
                None
            }
        }
    }

    fn is_ours(&self) -> bool {
        fs::read_link(&self.link).is_ok_and(|to| to == self.socket)
    }
}

impl Drop for XapiSocketLink {
    fn drop(&mut self) {
        let removed = match self.is_ours() {
            true => fs::remove_file(&self.link),
            false => Ok(()),
        };
        if let Err(error) = removed {
            tracing::warn!("cannot remove {}: {error}", self.link.display());
        }
        if let Some(made) = &self.made {
            // The directory may contain other files by now.
            let _in_use = fs::remove_dir(made);
        }
    }
}

/// Creates a directory. Returns its path if it did not exist.
fn make(dir: &Path) -> io::Result<Option<PathBuf>> {
    match DirBuilder::new().mode(DIRECTORY_MODE).create(dir) {
        Ok(()) => Ok(Some(dir.into())),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a root directory and returns the paths of the link and the socket in it.
    fn root() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let (link, socket) = (root.path().join("lib/xcp/xapi"), root.path().join("run/socket"));
        fs::create_dir(root.path().join("lib")).unwrap();
        (root, link, socket)
    }

    #[test]
    fn the_link_is_there_for_as_long_as_it_is_held() {
        let (root, link, socket) = root();
        let xapi_socket_link = XapiSocketLink::begin(&link, &socket).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), socket);
        drop(xapi_socket_link);
        assert_eq!(fs::read_dir(root.path().join("lib")).unwrap().count(), 0, "nothing is left");
        // An existing directory stays.
        fs::create_dir(link.parent().unwrap()).unwrap();
        drop(XapiSocketLink::begin(&link, &socket).unwrap());
        assert_eq!(fs::read_dir(link.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn what_an_earlier_daemon_has_left_is_taken_over() {
        let (_root, link, socket) = root();
        std::mem::forget(XapiSocketLink::begin(&link, &socket).unwrap());
        assert!(!link.exists() && link.is_symlink(), "it leads nowhere");
        let xapi_socket_link = XapiSocketLink::begin(&link, &socket).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), socket);
        drop(xapi_socket_link);
        assert!(!link.is_symlink());
    }

    #[test]
    fn what_is_somebody_elses_stays() {
        let (root, link, socket) = root();
        let dir = link.parent().unwrap();
        fs::create_dir(dir).unwrap();
        let other = root.path().join("other");
        let is_left = || {
            assert!(XapiSocketLink::begin(&link, &socket).is_none());
            link.symlink_metadata().unwrap()
        };
        // The link belongs to another daemon, which may come back.
        symlink(&other, &link).unwrap();
        assert!(is_left().is_symlink());
        assert_eq!(fs::read_link(&link).unwrap(), other);
        fs::remove_file(&link).unwrap();
        let _served = std::os::unix::net::UnixListener::bind(&link).unwrap();
        is_left();
        fs::remove_file(&link).unwrap();
        fs::write(&link, "precious").unwrap();
        is_left();
        assert_eq!(fs::read_to_string(&link).unwrap(), "precious");
        fs::remove_file(&link).unwrap();
        fs::create_dir(&link).unwrap();
        assert!(is_left().is_dir());
    }

    #[test]
    fn one_that_was_replaced_is_not_removed() {
        let (root, link, socket) = root();
        let xapi_socket_link = XapiSocketLink::begin(&link, &socket).unwrap();
        fs::remove_file(&link).unwrap();
        symlink(root.path(), &link).unwrap();
        drop(xapi_socket_link);
        assert!(link.is_symlink() && link.parent().unwrap().is_dir());
    }

    #[test]
    fn without_a_place_for_it_there_is_none() {
        let (root, _, socket) = root();
        assert!(XapiSocketLink::begin(&root.path().join("no/such/place"), &socket).is_none());
        assert!(!root.path().join("no").exists());
    }
}

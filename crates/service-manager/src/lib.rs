//! Notifications to the service manager (sd_notify(3)).
//!
//! # Design
//! **The client is not the `sd-notify` crate.** That crate sends with a blocking socket, so a
//! service manager that does not read would block the sender. It also knows no abstract socket
//! names, and ends each message with a newline.
//!
//! # Errors
//! The name of the socket is invalid, or the socket takes no notification now.
//!
//! # How to test
//! [`NotifySocket::at`] takes the path of any datagram socket.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Environment variable with the name of the socket. The name of an abstract socket begins with
/// `@`.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Socket on which the service manager receives notifications.
#[derive(Debug)]
pub struct NotifySocket {
    socket: UnixDatagram,
    manager: SocketAddr,
}

impl NotifySocket {
    /// Opens the socket that [`NOTIFY_SOCKET`] names. The result is `None` if the variable is not
    /// set or empty: there is no service manager.
    ///
    /// # Errors
    /// The name is not a valid socket address.
    pub fn from_environment() -> io::Result<Option<Self>> {
        Self::at(std::env::var_os(NOTIFY_SOCKET).as_deref())
    }

    /// Opens the socket with this name. The result is `None` without a name or if it is empty.
    ///
    /// # Errors
    /// The name is not a valid socket address.
    pub fn at(name: Option<&OsStr>) -> io::Result<Option<Self>> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
        let manager = match name.as_bytes().strip_prefix(b"@") {
            Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A service manager that does not read must not block the sender.
        socket.set_nonblocking(true)?;
        Ok(Some(Self { socket, manager }))
    }

    /// Sends a notification in one datagram, for example `READY=1`.
    ///
    /// # Errors
    /// The service manager does not exist, or its socket is full.
    pub fn notify(&self, state: &str) -> io::Result<()> {
        self.socket.send_to_addr(state.as_bytes(), &self.manager)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(from: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = from.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn paths_and_abstract_names_are_notified() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let far = UnixDatagram::bind(&path).unwrap();
        let socket = NotifySocket::at(Some(path.as_os_str())).unwrap().unwrap();
        socket.notify("READY=1").unwrap();
        assert_eq!(receive(&far), "READY=1");

        let name = format!("ringway-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let far = UnixDatagram::bind_addr(&address).unwrap();
        let socket = NotifySocket::at(Some(OsStr::new(&format!("@{name}")))).unwrap().unwrap();
        socket.notify("STOPPING=1").unwrap();
        assert_eq!(receive(&far), "STOPPING=1");
    }

    #[test]
    fn a_service_manager_that_does_not_read_blocks_no_sender() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let _far = UnixDatagram::bind(&path).unwrap();
        let socket = NotifySocket::at(Some(path.as_os_str())).unwrap().unwrap();
        let full = (0..100_000).find_map(|_| socket.notify("WATCHDOG=1").err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}

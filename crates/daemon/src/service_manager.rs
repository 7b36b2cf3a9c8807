//! What a service manager is told (sd_notify(3)): a datagram when we serve, one when we stop.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager, if there is one.
#[derive(Debug, Default)]
pub struct ServiceManager(Option<(UnixDatagram, SocketAddr)>);

impl ServiceManager {
    /// The one at this socket, as `NOTIFY_SOCKET` has it; without a name there is none.
    ///
    /// # Errors
    /// It is the name of no socket.
    pub fn at(name: Option<&OsStr>) -> io::Result<Self> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(Self(None)) };
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // One that does not read must not hold us up.
        socket.set_nonblocking(true)?;
        Ok(Self(Some((socket, address))))
    }

    /// We serve.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// We serve no more, and end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, what: &str) {
        if let Some((socket, manager)) = &self.0
            && let Err(error) = socket.send_to_addr(what.as_bytes(), manager)
        {
            tracing::warn!("the service manager cannot be told {what}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let far = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::at(Some(path.as_os_str())).unwrap();
        manager.ready();
        manager.stopping();
        let mut told = Vec::new();
        for _ in 0..2 {
            let mut buffer = [0; 64];
            let length = far.recv(&mut buffer).unwrap();
            told.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        }
        assert_eq!(told, ["READY=1", "STOPPING=1"]);
    }

    #[test]
    fn without_one_nothing_happens() {
        for name in [None, Some(OsStr::new(""))] {
            ServiceManager::at(name).unwrap().ready();
        }
        assert!(ServiceManager::at(Some(OsStr::new(&"x".repeat(200)))).is_err());
    }
}

//! Notifications to the service manager (sd_notify(3)): one datagram when ready, one when stopping.

use std::ffi::OsStr;
use std::io;

use service_manager::NotifySocket;

/// Client of the service manager. Empty if there is none.
#[derive(Debug, Default)]
pub struct ServiceManager(Option<NotifySocket>);

impl ServiceManager {
    /// Connects to the socket in `NOTIFY_SOCKET`. Without a name there is no service manager.
    ///
    /// # Errors
    /// The name is not a valid socket address.
    pub fn at(name: Option<&OsStr>) -> io::Result<Self> {
        Ok(Self(NotifySocket::at(name)?))
    }

    /// Reports that the daemon serves.
    pub fn ready(&self) {
        self.notify("READY=1");
    }

    /// Reports that the daemon is stopping.
    pub fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    fn notify(&self, what: &str) {
        if let Some(socket) = &self.0
            && let Err(error) = socket.notify(what)
        {
            tracing::warn!("cannot notify the service manager of {what}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn it_is_told_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let far = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::at(Some(path.as_os_str())).unwrap();
        manager.ready();
        manager.stopping();
        let mut received = Vec::new();
        for _ in 0..2 {
            let mut buffer = [0; 64];
            let length = far.recv(&mut buffer).unwrap();
            received.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        }
        assert_eq!(received, ["READY=1", "STOPPING=1"]);
    }

    #[test]
    fn without_one_nothing_happens() {
        for name in [None, Some(OsStr::new(""))] {
            ServiceManager::at(name).unwrap().ready();
        }
        assert!(ServiceManager::at(Some(OsStr::new(&"x".repeat(200)))).is_err());
    }
}

//! Sockets whose files are watched, and their replacement in the preserved entries.

use std::io;
use std::sync::{PoisonError, RwLockReadGuard};

use vhost_user::{Access, FilesState, Listener, ListenerParts, SocketError, SocketFiles};

use super::KeeperClient;
use crate::keeper_link::{WorkerMessage, duplicate};
use crate::socket_watch::SocketWatch;

impl KeeperClient {
    /// Watches the files of a preserved socket from now on. They are put back with these access
    /// rights.
    pub(crate) fn watch_socket(&self, listener: &Listener, access: Access) {
        self.shared.socket_watch.add(listener.files(access));
    }

    pub(crate) fn socket_watch(&self) -> &SocketWatch {
        &self.shared.socket_watch
    }

    /// Keeps all sockets as they are until the guard is dropped: between duplicating a socket and
    /// preserving it, it must not be replaced. A thread has one guard at a time.
    pub(crate) fn fix_sockets(&self) -> RwLockReadGuard<'_, ()> {
        self.shared.sockets.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts missing files of a socket back and preserves the new socket.
    ///
    /// # Errors
    /// As [`SocketFiles::restore`].
    pub(crate) fn restore_socket(&self, files: &SocketFiles) -> Result<FilesState, SocketError> {
        let _replacing = self.shared.sockets.write().unwrap_or_else(PoisonError::into_inner);
        if self.state().retired {
            // Another process has taken over the sockets.
            return Ok(FilesState::Ended);
        }
        files.restore(|parts| self.preserve_socket(parts))
    }

    /// Replaces a socket in the preserved entry that contains its path. The rest of the entry stays.
    fn preserve_socket(&self, parts: ListenerParts) -> io::Result<()> {
        let key = {
            let state = self.state();
            let mut entries = state.holdings.iter();
            entries.find(|(_, entry)| entry.has_socket(&parts.path)).map(|(key, _)| key.clone())
        };
        // Without an entry, the socket is about to be preserved or removed.
        let Some(key) = key else { return Ok(()) };
        let exchanged = self.exchange_with(|state, link, seq| {
            let gone = || io::Error::other("the keeper has no record of the socket");
            let mut entry = state.holdings.get(&key).ok_or_else(gone)?.try_clone()?;
            entry.replace_socket(duplicate(&parts)?);
            let (what, fds) = entry.written(&key);
            link.send(&WorkerMessage::Hold { seq, what }, &fds)
        });
        let mut state = exchanged.map_err(io::Error::other)?;
        if let Some(entry) = state.holdings.get_mut(&key) {
            entry.replace_socket(parts);
        }
        Ok(())
    }
}

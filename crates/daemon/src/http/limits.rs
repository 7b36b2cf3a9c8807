//! How many may be connected.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::source::ClientSource;

/// Most connections at once: each costs some memory and two open files at most.
pub const CONNECTIONS_MAX: usize = 1024;
/// Those of them that only the Unix socket gives: whoever holds all others locks nobody out of the
/// host itself.
pub const KEPT_FOR_UNIX: usize = 64;

/// Those of them that one address of the network may hold: no single one locks the others out.
pub const OF_SOURCE_MAX: usize = 256;

/// The permission to be connected, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    _everybody: OwnedSemaphorePermit,
    _tcp: Option<OwnedSemaphorePermit>,
}

/// All places.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter {
    everybody: Arc<Semaphore>,
    tcp: Arc<Semaphore>,
    of_source: usize,
    sources: Arc<Mutex<BTreeMap<ClientSource, usize>>>,
}

/// One more connection of a source, until it is dropped.
#[derive(Debug)]
pub(super) struct SourcePermit {
    connection_limiter: ConnectionLimiter,
    source: ClientSource,
}

impl Default for ConnectionLimiter {
    fn default() -> Self {
        Self::new(CONNECTIONS_MAX, KEPT_FOR_UNIX, OF_SOURCE_MAX)
    }
}

impl ConnectionLimiter {
    pub(super) fn new(all: usize, kept: usize, of_source: usize) -> Self {
        let tcp = Arc::new(Semaphore::new(all.saturating_sub(kept)));
        let everybody = Arc::new(Semaphore::new(all));
        Self { everybody, tcp, of_source, sources: Arc::default() }
    }

    /// Waits for a place. Who comes over TCP waits before it is accepted, so that the kernel's
    /// queue fills and no memory of ours.
    pub(super) async fn take(&self, tcp: bool) -> Option<ConnectionPermit> {
        let tcp = match tcp {
            true => Some(Arc::clone(&self.tcp).acquire_owned().await.ok()?),
            false => None,
        };
        let everybody = Arc::clone(&self.everybody).acquire_owned().await.ok()?;
        Some(ConnectionPermit { _everybody: everybody, _tcp: tcp })
    }

    /// Counts a connection that has come; none if its source has too many. Who may open the Unix
    /// socket is not counted.
    pub(super) fn hold(&self, source: ClientSource) -> Option<SourcePermit> {
        let mut sources = self.sources();
        let held = sources.entry(source).or_default();
        if source != ClientSource::Unix && *held >= self.of_source {
            return None;
        }
        *held += 1;
        Some(SourcePermit { connection_limiter: self.clone(), source })
    }

    fn sources(&self) -> MutexGuard<'_, BTreeMap<ClientSource, usize>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SourcePermit {
    fn drop(&mut self) {
        let mut sources = self.connection_limiter.sources();
        let Some(held) = sources.get_mut(&self.source) else { return };
        *held = held.saturating_sub(1);
        if *held == 0 {
            sources.remove(&self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// What is there without waiting.
    fn now(connection_limiter: &ConnectionLimiter, tcp: bool) -> Option<ConnectionPermit> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(connection_limiter.take(tcp)).as_mut().poll(&mut context) {
            std::task::Poll::Ready(connection_permit) => connection_permit,
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn tcp_leaves_places_to_the_unix_socket() {
        let connection_limiter = ConnectionLimiter::new(5, 2, 5);
        let mut tcp: Vec<_> = (0..3).map(|_| now(&connection_limiter, true).unwrap()).collect();
        assert!(now(&connection_limiter, true).is_none());
        let unix: Vec<_> = (0..2).map(|_| now(&connection_limiter, false).unwrap()).collect();
        assert!(now(&connection_limiter, false).is_none());
        tcp.pop();
        assert!(now(&connection_limiter, true).is_some());
        drop((tcp, unix));
        let unix: Vec<_> = (0..5).map_while(|_| now(&connection_limiter, false)).collect();
        assert_eq!(unix.len(), 5, "what TCP leaves, the Unix socket may take");
        assert!(now(&connection_limiter, true).is_none());
    }

    #[test]
    fn a_source_has_a_bound_and_another_has_its_own() {
        let connection_limiter = ConnectionLimiter::new(9, 2, 2);
        let [one, other] = [1, 2].map(|last| ClientSource::Address([10, 0, 0, last].into()));
        let source_permit =
            [connection_limiter.hold(one).unwrap(), connection_limiter.hold(one).unwrap()];
        assert!(connection_limiter.hold(one).is_none());
        assert!(connection_limiter.hold(other).is_some());
        let unix: Vec<_> =
            (0..5).map_while(|_| connection_limiter.hold(ClientSource::Unix)).collect();
        assert_eq!(unix.len(), 5);
        let [first, second] = source_permit;
        drop(first);
        let again = connection_limiter.hold(one).unwrap();
        assert!(connection_limiter.hold(one).is_none());
        drop((second, again, unix));
        assert!(connection_limiter.sources().is_empty(), "nothing is remembered of who has gone");
    }
}

//! Limits of connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::source::ClientSource;

/// Most connections at once. Each uses some memory and at most two file descriptors. A low limit on
/// open files allows fewer.
pub const CONNECTIONS_MAX: usize = 1024;
/// Connections reserved for the Unix socket. Remote clients cannot lock the host's own users out.
pub const KEPT_FOR_UNIX: usize = 64;

/// Most connections of one network address. One address cannot lock the others out.
pub const OF_SOURCE_MAX: usize = 256;

/// File descriptors of a connection with an open console.
const DESCRIPTORS: u64 = 2;
/// Least file descriptors left for everything else: the database, VMs, storage.
const OWN_DESCRIPTORS_MIN: u64 = 32;

/// Permit of a connection. Dropping it releases it.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    _everybody: OwnedSemaphorePermit,
    _tcp: Option<OwnedSemaphorePermit>,
}

/// Limiter of all connections.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter {
    everybody: Arc<Semaphore>,
    tcp: Arc<Semaphore>,
    of_source: usize,
    sources: Arc<Mutex<BTreeMap<ClientSource, usize>>>,
}

/// Connection counted for its source. Dropping it releases it.
#[derive(Debug)]
pub(super) struct SourcePermit {
    connection_limiter: ConnectionLimiter,
    source: ClientSource,
}

impl Default for ConnectionLimiter {
    fn default() -> Self {
        Self::of_descriptors(getrlimit(Resource::Nofile).current)
    }
}

impl ConnectionLimiter {
    /// Creates the limiter of a process that may have so many descriptors open. `None` for any
    /// number. A quarter of them, or more, is left for everything else.
    fn of_descriptors(most: Option<u64>) -> Self {
        let most = most.unwrap_or(u64::MAX);
        let own = OWN_DESCRIPTORS_MIN.max(most / 4);
        let all = most.saturating_sub(own) / DESCRIPTORS;
        let all = usize::try_from(all).unwrap_or(CONNECTIONS_MAX).clamp(2, CONNECTIONS_MAX);
        Self::new(all, KEPT_FOR_UNIX.min(all.div_ceil(4)), OF_SOURCE_MAX.min(all.div_ceil(2)))
    }

    pub(super) fn new(all: usize, kept: usize, of_source: usize) -> Self {
        let tcp = Arc::new(Semaphore::new(all.saturating_sub(kept)));
        let everybody = Arc::new(Semaphore::new(all));
        Self { everybody, tcp, of_source, sources: Arc::default() }
    }

    /// Waits for a permit. For TCP this wait is before the accept, so that connections queue in the
    /// kernel and use no memory of the daemon.
    pub(super) async fn take(&self, tcp: bool) -> Option<ConnectionPermit> {
        let tcp = match tcp {
            true => Some(Arc::clone(&self.tcp).acquire_owned().await.ok()?),
            false => None,
        };
        let everybody = Arc::clone(&self.everybody).acquire_owned().await.ok()?;
        Some(ConnectionPermit { _everybody: everybody, _tcp: tcp })
    }

    /// Counts an accepted connection. Returns `None` if its source has too many. The Unix socket
    /// has no such limit.
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

    /// Takes a permit without waiting.
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
    fn few_descriptors_allow_few_connections() {
        let places = |most| {
            let connection_limiter = ConnectionLimiter::of_descriptors(most);
            let all = connection_limiter.everybody.available_permits();
            (all, all - connection_limiter.tcp.available_permits(), connection_limiter.of_source)
        };
        let usual = (CONNECTIONS_MAX, KEPT_FOR_UNIX, OF_SOURCE_MAX);
        assert_eq!((places(None), places(Some(1 << 20))), (usual, usual));
        assert_eq!(places(Some(64)), (16, 4, 8));
        assert_eq!(places(Some(1024)), (384, 64, 192));
        assert_eq!(places(Some(0)), (2, 1, 1), "root has a place in any case");
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

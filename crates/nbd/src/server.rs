//! NBD export of one disk.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disk::Disk;
use memory::MemoryError;
use reactor::{Context, Handle, PollerId, Stopped};

use crate::connection::Connection;
use crate::extents::{self, ExtentQuery};
use crate::negotiation::ExportInfo;
use crate::stats::{Counts, Shared as SharedCounts};

/// Options of an export.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the export. Clients that send an empty name get this export too.
    pub name: String,
    /// Description for human readers.
    pub description: String,
    /// True to refuse writes even if the disk allows them.
    pub read_only: bool,
    /// Most connections at a time.
    pub connections: usize,
}

/// Reason why a client is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The connection limit is reached.
    #[error(
        "{limit} clients are connected, which is the limit; end some of them, or export the disk \
         with more \"connections\""
    )]
    TooMany {
        /// Most connections at a time.
        limit: usize,
    },
    /// The export is shutting down.
    #[error("the export is ending")]
    Ending,
    /// The kernel has no memory for the connection's buffers.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// State shared by a server and its connections.
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: Options,
    pub(crate) counts: SharedCounts,
    registry: Mutex<Registry>,
    /// Notified when a connection has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Registry {
    /// Connections by id, the oldest first.
    connections: BTreeMap<u64, ConnectionEntry>,
    next_id: u64,
    ending: bool,
}

#[derive(Debug, Default)]
struct ConnectionEntry {
    /// `None` while the connection is being set up.
    place: Option<(Handle, PollerId)>,
    /// True once the client has finished its handshake.
    served: bool,
    /// True if the connection was told to end. It does not count any more.
    displaced: bool,
}

impl Registry {
    /// Returns the number of connections that count.
    fn len(&self) -> usize {
        self.connections.values().filter(|one| !one.displaced).count()
    }

    /// Ends the oldest connection whose client has not finished its handshake. Returns false if
    /// there is none.
    fn displace(&mut self) -> bool {
        let mut waiting = self.connections.values_mut().filter(|one| !one.served && !one.displaced);
        let Some((entry, (reactor, id))) = waiting.find_map(|entry| {
            let place = entry.place.clone()?;
            Some((entry, place))
        }) else {
            return false;
        };
        entry.displaced = true;
        close(&reactor, id);
        true
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Each change is a single step, so a panic elsewhere leaves the registry consistent.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the export information for a client that connects now.
    pub(crate) fn offer(&self) -> ExportInfo {
        let geometry = self.disk.geometry();
        ExportInfo {
            name: self.options.name.clone(),
            description: self.options.description.clone(),
            size: geometry.size,
            block_size: geometry.block_size,
            read_only: self.options.read_only || geometry.read_only,
        }
    }
}

/// Slot among a server's connections, released on drop.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    pub(crate) shared: Arc<Shared>,
    id: u64,
}

impl ConnectionPermit {
    /// Records that the client has finished its handshake: the connection keeps its place.
    pub(crate) fn mark_served(&self) {
        if let Some(entry) = self.shared.registry().connections.get_mut(&self.id) {
            entry.served = true;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.shared.registry().connections.remove(&self.id);
        self.shared.ended.notify_all();
    }
}

/// NBD server for one disk under one export name.
#[derive(Debug)]
pub struct NbdServer {
    shared: Arc<Shared>,
    questions: Sender<ExtentQuery>,
}

impl NbdServer {
    /// Creates an export of `disk`. A writable disk must stay active while connections exist.
    ///
    /// # Errors
    /// The process cannot start another thread.
    pub fn new(disk: Arc<dyn Disk>, options: Options) -> io::Result<Self> {
        let questions = extents::start(Arc::clone(&disk))?;
        let shared = Arc::new(Shared {
            disk,
            options,
            counts: SharedCounts::default(),
            registry: Mutex::default(),
            ended: Condvar::new(),
        });
        Ok(Self { shared, questions })
    }

    /// Serves the client at the other end of a stream socket on `reactor`. Drops `keep` when the
    /// connection has ended. At the limit of connections, the oldest client that has not finished
    /// its handshake is disconnected: one that never speaks locks no other out.
    ///
    /// # Errors
    /// [`AcceptError`]; the socket is closed.
    pub fn accept(
        &self,
        socket: OwnedFd,
        reactor: &Handle,
        keep: impl Any + Send,
    ) -> Result<(), AcceptError> {
        let member = self.admit()?;
        let (id, handle, ask) = (member.id, reactor.clone(), self.questions.clone());
        let keep: Box<dyn Any + Send> = Box::new(keep);
        let poller_id = reactor.call(move |context| {
            context.add_poller(None, |context: &mut Context<'_>| {
                Connection::new(context, socket, member, handle, ask, keep)
            })
        })??;
        let mut registry = self.shared.registry();
        let ending = registry.ending;
        if let Some(entry) = registry.connections.get_mut(&id) {
            entry.place = Some((reactor.clone(), poller_id));
            if ending || entry.displaced {
                // The connection was told to end before the poller's id was registered.
                close(reactor, poller_id);
            }
        }
        Ok(())
    }

    fn admit(&self) -> Result<ConnectionPermit, AcceptError> {
        let mut registry = self.shared.registry();
        let limit = self.shared.options.connections;
        if registry.ending {
            return Err(AcceptError::Ending);
        }
        if registry.len() >= limit {
            if !registry.displace() {
                return Err(AcceptError::TooMany { limit });
            }
            tracing::info!(
                export = self.shared.options.name,
                "client disconnected: its handshake is not finished, and another client connects \
                 at the limit of {limit} connections"
            );
        }
        let id = registry.next_id;
        registry.next_id += 1;
        registry.connections.insert(id, ConnectionEntry::default());
        Ok(ConnectionPermit { shared: Arc::clone(&self.shared), id })
    }

    /// Returns the number of connected clients.
    pub fn connections(&self) -> usize {
        self.shared.registry().len()
    }

    /// Returns the counters since the export was created.
    pub fn counts(&self) -> Counts {
        self.shared.counts.counts()
    }

    /// Starts to close all connections and accepts no more. Does not wait.
    pub fn hang_up(&self) {
        let mut registry = self.shared.registry();
        registry.ending = true;
        for (reactor, id) in registry.connections.values().filter_map(|one| one.place.as_ref()) {
            close(reactor, *id);
        }
    }

    /// Starts to close all connections. Clients may connect again. Does not wait.
    pub fn disconnect(&self) {
        for entry in self.shared.registry().connections.values_mut() {
            entry.displaced = true;
            if let Some((reactor, id)) = &entry.place {
                close(reactor, *id);
            }
        }
    }

    /// Waits up to `time` until no connection is left. Returns whether none is left.
    pub fn wait_ended(&self, time: Duration) -> bool {
        let registry = self.shared.registry();
        let some_left = |registry: &mut Registry| !registry.connections.is_empty();
        let waited = self.shared.ended.wait_timeout_while(registry, time, some_left);
        let (registry, _) = waited.unwrap_or_else(PoisonError::into_inner);
        registry.connections.is_empty()
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.hang_up();
    }
}

fn close(reactor: &Handle, id: PollerId) {
    // A reactor that has ended has dropped its connections.
    let _ = reactor.send(move |context| {
        context.with_poller(id, |connection: &mut Connection, context| connection.close(context));
    });
}

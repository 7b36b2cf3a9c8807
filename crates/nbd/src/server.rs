//! One disk offered over NBD.

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

/// How a disk is offered.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the export; clients that give none get it too.
    pub name: String,
    /// What people read about it.
    pub description: String,
    /// Refuse writes, whatever the disk allows.
    pub read_only: bool,
    /// Connections at a time.
    pub connections: usize,
}

/// Why a client is not served.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// As many as may be are connected.
    #[error("{limit} clients are connected, which is the limit; give the export more connections")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The export is being ended.
    #[error("the export is ending")]
    Ending,
    /// No memory for its buffers.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// What a server and its connections share.
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: Options,
    pub(crate) counts: SharedCounts,
    registry: Mutex<Registry>,
    /// A connection has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Registry {
    /// Connections by number; without a place while they are being made.
    live: BTreeMap<u64, Option<(Handle, PollerId)>>,
    next: u64,
    ending: bool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Changed in single steps: a panic elsewhere leaves it whole.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The export as a client that connects now is told.
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

/// A place among the connections of a server; given back when dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) shared: Arc<Shared>,
    number: u64,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.registry().live.remove(&self.number);
        self.shared.ended.notify_all();
    }
}

/// One disk offered under one name.
#[derive(Debug)]
pub struct NbdServer {
    shared: Arc<Shared>,
    questions: Sender<ExtentQuery>,
}

impl NbdServer {
    /// Offers a disk. What writes needs it to be activated as long as there are connections.
    ///
    /// # Errors
    /// The process can have no more threads.
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

    /// Serves the client at the other end of a stream socket on `reactor`. `keep` is dropped when
    /// the connection has ended.
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
        let (number, handle, ask) = (member.number, reactor.clone(), self.questions.clone());
        let keep: Box<dyn Any + Send> = Box::new(keep);
        let id = reactor.call(move |context| {
            context.add_poller(None, |context: &mut Context<'_>| {
                Connection::new(context, socket, member, handle, ask, keep)
            })
        })??;
        let mut registry = self.shared.registry();
        if let Some(place) = registry.live.get_mut(&number) {
            *place = Some((reactor.clone(), id));
        }
        if registry.ending {
            // Told to end before its place was known.
            close(reactor, id);
        }
        Ok(())
    }

    fn admit(&self) -> Result<Membership, AcceptError> {
        let mut registry = self.shared.registry();
        let limit = self.shared.options.connections;
        if registry.ending {
            return Err(AcceptError::Ending);
        }
        if registry.live.len() >= limit {
            return Err(AcceptError::TooMany { limit });
        }
        let number = registry.next;
        registry.next += 1;
        registry.live.insert(number, None);
        Ok(Membership { shared: Arc::clone(&self.shared), number })
    }

    /// Clients that are connected now.
    pub fn connections(&self) -> usize {
        self.shared.registry().live.len()
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.shared.counts.counts()
    }

    /// Ends all connections and takes no others. Does not wait.
    pub fn hang_up(&self) {
        let mut registry = self.shared.registry();
        registry.ending = true;
        for (reactor, id) in registry.live.values().flatten() {
            close(reactor, *id);
        }
    }

    /// Waits until no connection is left, at most for `time`; true when none is.
    pub fn wait_ended(&self, time: Duration) -> bool {
        let registry = self.shared.registry();
        let some_left = |registry: &mut Registry| !registry.live.is_empty();
        let waited = self.shared.ended.wait_timeout_while(registry, time, some_left);
        let (registry, _) = waited.unwrap_or_else(PoisonError::into_inner);
        registry.live.is_empty()
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

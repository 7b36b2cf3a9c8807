//! The hubs of all reactors, and how the rest of the program speaks to them.
//!
//! What is said to the fabric is said to every hub, one after the other, and has been heard by all
//! when a call returns. So two calls are never seen in another order by one reactor than by another.

use std::collections::HashMap;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memory::MemoryError;
use net::port::{Policy, PortId};
use net::switch::{NetworkId, NetworkPolicy, SwitchError};
use reactor::{Context, Handle, PollerId, Stopped};
use rustix::event::{EventfdFlags, eventfd};

use crate::counts::{Counts, PortCounts};
use crate::hub::Hub;
use crate::link::{Door, Reader, Shared, Writer};
use crate::node::Node;

/// Why the hubs cannot be as they were asked to.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The switch takes no such port or network.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// There is no memory for links.
    #[error("cannot link the reactors")]
    Memory(#[from] MemoryError),
    /// There are no descriptors for links.
    #[error("cannot make an eventfd")]
    Os(#[source] std::io::Error),
}

/// A reactor with its hub.
#[derive(Debug)]
pub(crate) struct At {
    pub(crate) handle: Handle,
    pub(crate) node: PollerId,
}

/// The hubs of all reactors. They live as long as these.
#[derive(Debug)]
pub struct Fabric {
    nodes: Box<[At]>,
    counts: Mutex<HashMap<PortId, Vec<Arc<Counts>>>>,
    /// Of the last policy that a port was given.
    term: AtomicU32,
}

/// How a reactor is woken by others.
struct Reachable {
    handle: Handle,
    door: Arc<Door>,
    event: Arc<OwnedFd>,
}

/// What a hub gets.
#[derive(Default)]
struct Ends {
    readers: Vec<Arc<Shared>>,
    /// To the reactor of this number, and the event that wakes it.
    writers: Vec<(usize, Arc<Shared>, Arc<OwnedFd>)>,
}

impl Fabric {
    /// Gives each reactor a hub, and links them all.
    ///
    /// # Errors
    /// A reactor has ended, or there is no memory or no descriptor.
    pub fn new<'a>(
        reactors: impl IntoIterator<Item = &'a Handle>,
    ) -> Result<Arc<Self>, FabricError> {
        let mut all = Vec::new();
        for handle in reactors {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let event = Arc::new(event.map_err(|errno| FabricError::Os(errno.into()))?);
            all.push(Reachable { handle: handle.clone(), door: Arc::default(), event });
        }
        let mut nodes = Vec::new();
        for (one, ends) in all.iter().zip(links(&all)?) {
            let (handle, event) = (one.handle.clone(), one.event.clone());
            let node = handle.call(move |context| settle(context, ends, event))?;
            nodes.push(At { handle, node });
        }
        Ok(Arc::new(Self {
            nodes: nodes.into(),
            counts: Mutex::default(),
            term: AtomicU32::new(0),
        }))
    }

    /// Makes a network, or changes one.
    ///
    /// # Errors
    /// [`FabricError::Switch`], [`FabricError::Stopped`].
    pub fn set_network(&self, id: NetworkId, policy: NetworkPolicy) -> Result<(), FabricError> {
        for at in &self.nodes {
            at.with(move |hub| hub.set_network(id, policy))??;
        }
        Ok(())
    }

    /// Removes a network. Its ports must be unplugged.
    ///
    /// # Errors
    /// [`FabricError::Stopped`].
    pub fn remove_network(&self, id: NetworkId) -> Result<(), FabricError> {
        for at in &self.nodes {
            at.with(move |hub| hub.remove_network(id))?;
        }
        Ok(())
    }

    /// Plugs a port in, or changes it.
    ///
    /// # Errors
    /// [`FabricError::Switch`], [`FabricError::Stopped`].
    pub fn set_port(&self, id: PortId, policy: &Policy) -> Result<(), FabricError> {
        let make = || self.nodes.iter().map(|_| Arc::default()).collect();
        let counts: Vec<_> = self.counters().entry(id).or_insert_with(make).clone();
        let term = self.term.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        for (at, counts) in self.nodes.iter().zip(counts) {
            let policy = policy.clone();
            at.with(move |hub| hub.set_port(id, policy, counts, term))??;
        }
        Ok(())
    }

    /// Unplugs a port. Its queues must be stopped.
    ///
    /// # Errors
    /// [`FabricError::Stopped`].
    pub fn remove_port(&self, id: PortId) -> Result<(), FabricError> {
        for at in &self.nodes {
            at.with(move |hub| hub.remove_port(id))?;
        }
        self.counters().remove(&id);
        Ok(())
    }

    /// What a port has sent and got since it was plugged in.
    pub fn counts(&self, id: PortId) -> PortCounts {
        let mut sum = PortCounts::default();
        if let Some(all) = self.counters().get(&id) {
            all.iter().for_each(|one| sum.add(one));
        }
        sum
    }

    fn counters(&self) -> MutexGuard<'_, HashMap<PortId, Vec<Arc<Counts>>>> {
        // Every change is a whole step.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reactors, by number.
    pub(crate) fn nodes(&self) -> &[At] {
        &self.nodes
    }

    /// The number of a reactor among these.
    pub(crate) fn number(&self, handle: &Handle) -> Option<usize> {
        self.nodes.iter().position(|at| at.handle.number() == handle.number())
    }

    /// All reactors but that of this number.
    pub(crate) fn others(&self, number: usize) -> impl Iterator<Item = &At> {
        self.nodes.iter().enumerate().filter(move |(one, _)| *one != number).map(|(_, at)| at)
    }
}

impl At {
    /// Has the hub do something, and waits for it.
    pub(crate) fn with<R: Send + 'static>(
        &self,
        with: impl FnOnce(&mut Hub) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let node = self.node;
        let done = self.handle.call(move |context| in_hub(context, node, with))?;
        done.ok_or(Stopped)
    }

    /// Has the hub do something, soon.
    pub(crate) fn send(&self, with: impl FnOnce(&mut Hub) + Send + 'static) {
        let node = self.node;
        // A reactor that has ended has dropped its hub.
        let _ = self.handle.send(move |context| {
            in_hub(context, node, with);
        });
    }
}

/// Has a hub of this reactor do something.
pub(crate) fn in_hub<R>(
    context: &mut Context<'_>,
    node: PollerId,
    with: impl FnOnce(&mut Hub) -> R,
) -> Option<R> {
    context.with_poller(node, |node: &mut Node, _| with(&mut node.hub.borrow_mut()))
}

/// A link from each to each other.
fn links(all: &[Reachable]) -> Result<Vec<Ends>, FabricError> {
    let mut ends: Vec<_> = all.iter().map(|_| Ends::default()).collect();
    for from in 0..all.len() {
        for (to, reader) in all.iter().enumerate().filter(|(to, _)| *to != from) {
            let link = Shared::new(reader.door.clone())?;
            if let Some(writer) = ends.get_mut(from) {
                writer.writers.push((to, link.clone(), reader.event.clone()));
            }
            if let Some(reader) = ends.get_mut(to) {
                reader.readers.push(link);
            }
        }
    }
    Ok(ends)
}

/// Gives this reactor its hub.
fn settle(context: &mut Context<'_>, ends: Ends, event: Arc<OwnedFd>) -> PollerId {
    let settled = context.add_poller(Some(event), |context| {
        let mut hub = Hub::default();
        for (number, link, event) in ends.writers {
            hub.add_link(number, Writer::new(link), context.open_bell(event));
        }
        Ok::<_, Infallible>(Node::new(hub, ends.readers.into_iter().map(Reader::new).collect()))
    });
    let Ok(id) = settled;
    id
}

//! The hubs of all reactors, and how the rest of the program speaks to them.
//!
//! What is said to the fabric is said to every hub, one after the other, and has been heard by all
//! when a call returns. So two calls are never seen in another order by one reactor than by another.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use memory::MemoryError;
use net::control::ControlSettings;
use net::flow::TopFlow;
use net::port::{PortId, PortPolicy};
use net::switch::{NetworkId, NetworkPolicy, SwitchError};
use reactor::{Context, Handle, PollControl, PollPolicy, PollerId, Stopped, clock_ns};
use rustix::event::{EventfdFlags, eventfd};

use crate::control::PendingAck;
use crate::counts::PortCounts;
use crate::hub::Hub;
use crate::hub_poller::HubPoller;
use crate::link::{Reader, ReaderSleep, Shared, Writer};
use crate::port_counters::PortCounters;
use crate::queue_counts::{PairStats, QueueCounts};
use crate::transmit::Transmit;

/// Longest wait for what reactors say of flows: one that is held up keeps nobody else waiting.
const FLOWS_WAIT: Duration = Duration::from_millis(100);

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
pub(crate) struct HubHandle {
    pub(crate) handle: Handle,
    pub(crate) node: PollerId,
    /// How the hub waits for frames of other reactors.
    poll_control: Arc<PollControl>,
}

/// The hubs of all reactors. They live as long as these.
#[derive(Debug)]
pub struct Fabric {
    nodes: Box<[HubHandle]>,
    port_counters: Mutex<PortCounters>,
    /// Of the last policy that a port was given.
    term: AtomicU32,
}

/// How a reactor is woken by others.
struct HubWaker {
    handle: Handle,
    reader_sleep: Arc<ReaderSleep>,
    event: Arc<OwnedFd>,
}

/// What a hub gets.
#[derive(Default)]
struct HubLinks {
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
            all.push(HubWaker { handle: handle.clone(), reader_sleep: Arc::default(), event });
        }
        let mut nodes = Vec::new();
        for (number, (one, hub_links)) in all.iter().zip(links(&all)?).enumerate() {
            let (handle, event) = (one.handle.clone(), one.event.clone());
            let poll_control = Arc::<PollControl>::default();
            let shared = Arc::clone(&poll_control);
            let node =
                handle.call(move |context| settle(context, number, hub_links, event, shared))?;
            nodes.push(HubHandle { handle, node, poll_control });
        }
        let (port_counters, term) = (Mutex::default(), AtomicU32::new(0));
        Ok(Arc::new(Self { nodes: nodes.into(), port_counters, term }))
    }

    /// Makes a network, or changes one.
    ///
    /// # Errors
    /// [`FabricError::Switch`], [`FabricError::Stopped`].
    pub fn set_network(&self, id: NetworkId, policy: NetworkPolicy) -> Result<(), FabricError> {
        for hub_handle in &self.nodes {
            hub_handle.with(move |hub| hub.set_network(id, policy))??;
        }
        Ok(())
    }

    /// Removes a network. Its ports must be unplugged.
    ///
    /// # Errors
    /// [`FabricError::Stopped`].
    pub fn remove_network(&self, id: NetworkId) -> Result<(), FabricError> {
        for hub_handle in &self.nodes {
            hub_handle.with(move |hub| hub.remove_network(id))?;
        }
        Ok(())
    }

    /// Plugs a port in, or changes it.
    ///
    /// # Errors
    /// [`FabricError::Switch`], [`FabricError::Stopped`].
    pub fn set_port(&self, id: PortId, policy: &PortPolicy) -> Result<(), FabricError> {
        let shared_port_state = self.ledger().plug(id, self.nodes.len());
        let term = self.term.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        for (hub_handle, shared_port_state) in self.nodes.iter().zip(shared_port_state) {
            let (node, policy) = (hub_handle.node, policy.clone());
            let done = hub_handle.handle.call(move |context| {
                let done = in_hub(context, node, |hub| {
                    hub.set_port(id, policy, shared_port_state, term).map(|()| hub.senders(id))
                });
                done.map(|senders| senders.map(|all| look_again(context, all)))
            });
            done?.ok_or(Stopped)??;
        }
        Ok(())
    }

    /// Unplugs a port. Its queues must be stopped.
    ///
    /// # Errors
    /// [`FabricError::Stopped`].
    pub fn remove_port(&self, id: PortId) -> Result<(), FabricError> {
        for hub_handle in &self.nodes {
            hub_handle.with(move |hub| hub.remove_port(id))?;
        }
        self.ledger().unplug(id);
        Ok(())
    }

    /// What the driver of a port has asked for over its control queue; `None`: there is none.
    ///
    /// # Errors
    /// A reactor has ended.
    pub(crate) fn set_asked(
        &self,
        id: PortId,
        control_settings: Option<Arc<ControlSettings>>,
    ) -> Result<(), Stopped> {
        for hub_handle in &self.nodes {
            let control_settings = control_settings.clone();
            hub_handle.with(move |hub| hub.set_asked(id, control_settings))?;
        }
        Ok(())
    }

    /// The same without waiting: nobody holds `told` any more when all hubs have heard it.
    pub(crate) fn set_control_settings_nowait(
        &self,
        id: PortId,
        control_settings: &Arc<ControlSettings>,
        pending_ack: &Arc<PendingAck>,
    ) {
        for hub_handle in &self.nodes {
            let (control_settings, pending_ack) =
                (Arc::clone(control_settings), Arc::clone(pending_ack));
            hub_handle.send(move |hub| {
                hub.set_asked(id, Some(control_settings));
                drop(pending_ack);
            });
        }
    }

    /// What a port has sent and got since it was plugged in.
    pub fn counts(&self, id: PortId) -> PortCounts {
        self.ledger().counts(id)
    }

    /// Moves of buckets of flows between the queues of a port that were asked for so far.
    pub fn moves(&self, id: PortId) -> u64 {
        self.ledger().moves(id)
    }

    /// The flows of which each port sends most, with all that it sends of flows, in bytes of late:
    /// for each reactor that sees some of them, and answers soon.
    pub fn top_flows(&self) -> Vec<(PortId, Vec<TopFlow>, u64)> {
        let (tell, told) = mpsc::channel();
        for hub_handle in &self.nodes {
            let tell = tell.clone();
            hub_handle.send(move |hub| {
                // Nobody may wait any more.
                let _ = tell.send(hub.top_flows(clock_ns()));
            });
        }
        drop(tell);
        let (until, mut all) = (Instant::now() + FLOWS_WAIT, Vec::new());
        let left = || until.saturating_duration_since(Instant::now());
        while let Ok(some) = told.recv_timeout(left()) {
            all.extend(some);
        }
        all
    }

    /// The pairs of a port that were ever served since it was plugged in, from the first on.
    pub fn queues(&self, id: PortId) -> Vec<PairStats> {
        self.ledger().queues(id)
    }

    /// How queues and hubs wait when they have nothing to do, from their next turn on; queues of
    /// ports that have a policy of their own do not.
    pub fn set_polling(&self, policy: PollPolicy) {
        // Under the lock, so that of two changes the last one stays.
        let mut port_counters = self.ledger();
        port_counters.set_polling(policy);
        self.nodes.iter().for_each(|hub_handle| hub_handle.poll_control.set(policy));
    }

    /// How the queues of a port wait, from their next turn on, whatever is said of all others.
    pub fn set_port_polling(&self, id: PortId, policy: PollPolicy) {
        self.ledger().set_port_polling(id, policy);
    }

    /// Counters of a pair of a port.
    pub(crate) fn queue(&self, id: PortId, pair: u16) -> Arc<QueueCounts> {
        self.ledger().queue(id, pair)
    }

    fn ledger(&self) -> MutexGuard<'_, PortCounters> {
        // Every change is a whole step.
        self.port_counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reactors, by number.
    pub(crate) fn nodes(&self) -> &[HubHandle] {
        &self.nodes
    }

    /// The number of a reactor among these.
    pub(crate) fn number(&self, handle: &Handle) -> Option<usize> {
        self.nodes.iter().position(|hub_handle| hub_handle.handle.number() == handle.number())
    }

    /// All reactors but that of this number.
    pub(crate) fn others(&self, number: usize) -> impl Iterator<Item = &HubHandle> {
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(one, _)| *one != number)
            .map(|(_, hub_handle)| hub_handle)
    }
}

impl HubHandle {
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
    context
        .with_poller(node, |hub_poller: &mut HubPoller, _| with(&mut hub_poller.hub.borrow_mut()))
}

/// Queues that hold something for a cap ask anew: it may be another one.
fn look_again(context: &mut Context<'_>, senders: Vec<PollerId>) {
    for id in senders {
        // It is hot after that. One that has ended is no more.
        context.with_poller(id, |_: &mut Transmit, _| ());
    }
}

/// A link from each to each other.
fn links(all: &[HubWaker]) -> Result<Vec<HubLinks>, FabricError> {
    let mut hub_links: Vec<_> = all.iter().map(|_| HubLinks::default()).collect();
    for from in 0..all.len() {
        for (to, reader) in all.iter().enumerate().filter(|(to, _)| *to != from) {
            let link = Shared::new(reader.reader_sleep.clone())?;
            if let Some(writer) = hub_links.get_mut(from) {
                writer.writers.push((to, link.clone(), reader.event.clone()));
            }
            if let Some(reader) = hub_links.get_mut(to) {
                reader.readers.push(link);
            }
        }
    }
    Ok(hub_links)
}

/// Gives this reactor its hub.
fn settle(
    context: &mut Context<'_>,
    number: usize,
    hub_links: HubLinks,
    event: Arc<OwnedFd>,
    poll_control: Arc<PollControl>,
) -> PollerId {
    let settled = context.add_poller(Some(event), |context| {
        let mut hub = Hub::new(number);
        for (other, link, event) in hub_links.writers {
            hub.add_link(other, Writer::new(link), context.open_notifier(event));
        }
        let readers = hub_links.readers.into_iter().map(Reader::new).collect();
        Ok::<_, Infallible>(HubPoller::new(hub, readers, poll_control))
    });
    let Ok(id) = settled;
    id
}

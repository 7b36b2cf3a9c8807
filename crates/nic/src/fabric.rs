//! Hubs of all reactors, and the interface to them for the rest of the program.
//!
//! A call to the fabric is applied on every hub, one after the other, before it returns. So all
//! reactors see two calls in the same order.

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
use virtq::{BrokenRing, BrokenRingRecord};

use crate::control::PendingAck;
use crate::counts::PortCounts;
use crate::hub::Hub;
use crate::hub_poller::HubPoller;
use crate::link::{Reader, ReaderSleep, Shared, Writer};
use crate::port_counters::PortCounters;
use crate::queue_counts::{PairStats, QueueCounts};
use crate::ring::RingKind;
use crate::transmit::Transmit;

/// Longest wait for the flows of reactors: a reactor that is held up delays no other one's answer.
const FLOWS_WAIT: Duration = Duration::from_millis(100);

/// Reason why the hubs cannot be configured as requested.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The switch rejects the port or network.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// There is no memory for links.
    #[error("cannot link the reactors")]
    Memory(#[from] MemoryError),
    /// There are no descriptors for links.
    #[error("cannot make an eventfd")]
    Os(#[source] std::io::Error),
}

/// Reactor with its hub.
#[derive(Debug)]
pub(crate) struct HubHandle {
    pub(crate) handle: Handle,
    pub(crate) node: PollerId,
    /// Busy polling of the hub for frames from other reactors.
    poll_control: Arc<PollControl>,
}

/// Hubs of all reactors. The hubs live as long as their reactors.
#[derive(Debug)]
pub struct Fabric {
    nodes: Box<[HubHandle]>,
    port_counters: Mutex<PortCounters>,
    /// Version of the last policy that a port received.
    term: AtomicU32,
}

/// Objects by which other reactors wake a reactor.
struct HubWaker {
    handle: Handle,
    reader_sleep: Arc<ReaderSleep>,
    event: Arc<OwnedFd>,
}

/// Links of one hub.
#[derive(Default)]
struct HubLinks {
    readers: Vec<Arc<Shared>>,
    /// Links to the reactors of these numbers, each with the event that wakes its reader.
    writers: Vec<(usize, Arc<Shared>, Arc<OwnedFd>)>,
}

impl Fabric {
    /// Creates a hub on each reactor, and links between all of them.
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
            let node = handle
                .call(move |context| create_hub(context, number, hub_links, event, shared))?;
            nodes.push(HubHandle { handle, node, poll_control });
        }
        let (port_counters, term) = (Mutex::default(), AtomicU32::new(0));
        Ok(Arc::new(Self { nodes: nodes.into(), port_counters, term }))
    }

    /// Creates or changes a network.
    ///
    /// # Errors
    /// [`FabricError::Switch`], [`FabricError::Stopped`].
    pub fn set_network(&self, id: NetworkId, policy: NetworkPolicy) -> Result<(), FabricError> {
        for hub_handle in &self.nodes {
            hub_handle.with(move |hub| hub.set_network(id, policy))??;
        }
        Ok(())
    }

    /// Removes a network. Its ports must have been removed.
    ///
    /// # Errors
    /// [`FabricError::Stopped`].
    pub fn remove_network(&self, id: NetworkId) -> Result<(), FabricError> {
        for hub_handle in &self.nodes {
            hub_handle.with(move |hub| hub.remove_network(id))?;
        }
        Ok(())
    }

    /// Adds or changes a port.
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
                done.map(|senders| senders.map(|all| recheck_rate(context, all)))
            });
            done?.ok_or(Stopped)??;
        }
        Ok(())
    }

    /// Removes a port. Its queues must be stopped.
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

    /// Applies the settings that the driver of a port requested over its control queue; `None`
    /// without a control queue.
    ///
    /// # Errors
    /// [`Stopped`] if a reactor has ended.
    pub fn set_control_settings(
        &self,
        id: PortId,
        control_settings: Option<Arc<ControlSettings>>,
    ) -> Result<(), Stopped> {
        for hub_handle in &self.nodes {
            let control_settings = control_settings.clone();
            hub_handle.with(move |hub| hub.set_control_settings(id, control_settings))?;
        }
        Ok(())
    }

    /// Applies settings without waiting. When all hubs have applied them, no hub holds
    /// `pending_ack` any more.
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
                hub.set_control_settings(id, Some(control_settings));
                drop(pending_ack);
            });
        }
    }

    /// Returns the frames that a port has sent and received since it was added.
    pub fn counts(&self, id: PortId) -> PortCounts {
        self.ledger().counts(id)
    }

    /// Returns the number of bucket moves between the queues of a port that were requested so far.
    pub fn moves(&self, id: PortId) -> u64 {
        self.ledger().moves(id)
    }

    /// Returns for each port the flows that send most, with the recent bytes of all its flows.
    /// There is an entry for each reactor that sees such flows and answers in time.
    pub fn top_flows(&self) -> Vec<(PortId, Vec<TopFlow>, u64)> {
        let (sender, receiver) = mpsc::channel();
        for hub_handle in &self.nodes {
            let sender = sender.clone();
            hub_handle.send(move |hub| {
                // The caller may have stopped waiting.
                let _ = sender.send(hub.top_flows(clock_ns()));
            });
        }
        drop(sender);
        let (until, mut all) = (Instant::now() + FLOWS_WAIT, Vec::new());
        let left = || until.saturating_duration_since(Instant::now());
        while let Ok(some) = receiver.recv_timeout(left()) {
            all.extend(some);
        }
        all
    }

    /// Returns the queue pairs of a port that were ever served since it was added, from the first
    /// on.
    pub fn queues(&self, id: PortId) -> Vec<PairStats> {
        self.ledger().queues(id)
    }

    /// Returns the broken rings of a port: index, kind and first cause of each.
    pub fn broken_rings(&self, id: PortId) -> Vec<(u16, RingKind, BrokenRing)> {
        self.ledger().broken_rings(id)
    }

    /// Returns how often rings of a port broke since it was added.
    pub fn broken_ring_count(&self, id: PortId) -> u64 {
        self.ledger().broken_ring_count(id)
    }

    /// Sets the state of a port's broken ring that another process has served.
    pub fn restore_broken_ring(
        &self,
        id: PortId,
        index: u16,
        kind: RingKind,
        broken_ring: BrokenRing,
    ) {
        self.ring(id, index, kind).restore(broken_ring);
    }

    /// Records that the front-end has stopped ring `index` of a port, or all of its rings, so that
    /// they are not broken any more.
    pub fn clear_broken_rings(&self, id: PortId, index: Option<u16>) {
        self.ledger().clear_broken_rings(id, index);
    }

    /// Sets the busy-polling policy of all queues and hubs, from their next turn on. Queues of
    /// ports with their own policy keep that.
    pub fn set_polling(&self, policy: PollPolicy) {
        // Under the lock, so that the later of two changes wins.
        let mut port_counters = self.ledger();
        port_counters.set_polling(policy);
        self.nodes.iter().for_each(|hub_handle| hub_handle.poll_control.set(policy));
    }

    /// Sets the busy-polling policy of a port's queues, from their next turn on. It overrides the
    /// common policy.
    pub fn set_port_polling(&self, id: PortId, policy: PollPolicy) {
        self.ledger().set_port_polling(id, policy);
    }

    /// Returns the counters of a queue pair.
    pub(crate) fn queue(&self, id: PortId, pair: u16) -> Arc<QueueCounts> {
        self.ledger().queue(id, pair)
    }

    /// Returns the record of a ring that starts.
    pub(crate) fn ring(&self, id: PortId, index: u16, kind: RingKind) -> Arc<BrokenRingRecord> {
        self.ledger().ring(id, index, kind)
    }

    fn ledger(&self) -> MutexGuard<'_, PortCounters> {
        // A poisoned lock is usable: every change is a single step.
        self.port_counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reactors by number.
    pub(crate) fn nodes(&self) -> &[HubHandle] {
        &self.nodes
    }

    /// Returns the number of a reactor in the fabric.
    pub(crate) fn number(&self, handle: &Handle) -> Option<usize> {
        self.nodes.iter().position(|hub_handle| hub_handle.handle.number() == handle.number())
    }

    /// Returns all reactors except the one with this number.
    pub(crate) fn others(&self, number: usize) -> impl Iterator<Item = &HubHandle> {
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(one, _)| *one != number)
            .map(|(_, hub_handle)| hub_handle)
    }
}

impl HubHandle {
    /// Runs `with` on the hub and waits for its result.
    pub(crate) fn with<R: Send + 'static>(
        &self,
        with: impl FnOnce(&mut Hub) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let node = self.node;
        let done = self.handle.call(move |context| in_hub(context, node, with))?;
        done.ok_or(Stopped)
    }

    /// Queues `with` to run on the hub; does not wait.
    pub(crate) fn send(&self, with: impl FnOnce(&mut Hub) + Send + 'static) {
        let node = self.node;
        // A reactor that has ended has dropped its hub.
        let _ = self.handle.send(move |context| {
            in_hub(context, node, with);
        });
    }
}

/// Runs `with` on a hub of the calling reactor.
pub(crate) fn in_hub<R>(
    context: &mut Context<'_>,
    node: PollerId,
    with: impl FnOnce(&mut Hub) -> R,
) -> Option<R> {
    context
        .with_poller(node, |hub_poller: &mut HubPoller, _| with(&mut hub_poller.hub.borrow_mut()))
}

/// Makes transmit queues check their rate limit again, because it may have changed.
fn recheck_rate(context: &mut Context<'_>, senders: Vec<PollerId>) {
    for id in senders {
        // The call makes the poller hot. A poller that has ended is gone.
        context.with_poller(id, |_: &mut Transmit, _| ());
    }
}

/// Creates a link from each reactor to each other one.
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

/// Creates the hub of the calling reactor.
fn create_hub(
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

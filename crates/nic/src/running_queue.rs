//! Start and stop of virtqueues, for the rest of the program.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use error_causes::error_chain;
use memory::Table;
use reactor::{Context, Handle, PollerId, Stopped};
use virtq::{BrokenRingRecord, QueueStart, RingError};

use crate::consumption::ConsumptionCounter;
use crate::control::{ControlQueue, ControlQueueState};
use crate::fabric::Fabric;
use crate::hub::{Hub, QueueAnnouncement};
use crate::hub_poller::HubPoller;
use crate::incarnation::PortIncarnation;
use crate::queue_counts::QueueCounts;
use crate::queue_registration::QueueRegistration;
use crate::receive::{Receive, ReceivePoller};
use crate::ring::{FaultHandler, FaultReporter, ReactorQueue, RingKind};
use crate::transmit::Transmit;

/// Reason why a queue cannot be started or changed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The ring is not usable.
    #[error("queue {index} cannot be served")]
    Ring {
        /// Number of the queue.
        index: u16,
        /// Cause.
        #[source]
        source: RingError,
    },
    /// A queue without a virtqueue cannot be created.
    #[error("the port cannot be served")]
    Port(#[source] std::io::Error),
    /// The reactor has no hub.
    #[error("the reactor does not belong to the switch")]
    Elsewhere,
    /// The reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Queue that is being served. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct RunningQueue {
    queue_registration: QueueRegistration,
    id: PollerId,
    index: u16,
    kind: RingKind,
    broken_ring: Arc<BrokenRingRecord>,
    running: bool,
}

impl RunningQueue {
    /// Starts queue `start.index` of a port on a reactor of the fabric: the even ones receive
    /// (virtio 1.2, 5.1.2). Both queues of a pair must be on the same reactor.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn start(
        fabric: &Arc<Fabric>,
        reactor: &Handle,
        port_incarnation: PortIncarnation,
        start: QueueStart,
        fault: FaultHandler,
    ) -> Result<Self, QueueError> {
        let index = start.index;
        let kind = if index.is_multiple_of(2) { RingKind::Receive } else { RingKind::Transmit };
        let (pair, consumption_counter) = (index / 2, Arc::<ConsumptionCounter>::default());
        let queue_registration = QueueRegistration::new(
            fabric,
            reactor,
            port_incarnation.port,
            pair,
            Some(Arc::clone(&consumption_counter)),
        );
        let queue_registration = queue_registration.ok_or(QueueError::Elsewhere)?;
        let (node, queue_announcement) =
            (queue_registration.node, queue_registration.announcement(port_incarnation));
        let counts = fabric.queue(port_incarnation.port, pair);
        let make = move |context: &mut Context<'_>, fault_reporter| match kind {
            RingKind::Receive => {
                let kick = start.kick.clone();
                let make = |context: &mut Context<'_>| {
                    Receive::new(
                        port_incarnation,
                        start,
                        counts,
                        consumption_counter,
                        fault_reporter,
                        context,
                    )
                };
                receive(context, node, kick, queue_announcement, make)
            }
            _ => transmit(context, node, (port_incarnation, pair), start, counts, fault_reporter),
        };
        let queue = Self::begin(queue_registration, kind, index, fault, make)?;
        if kind == RingKind::Receive {
            queue.queue_registration.publish(port_incarnation)?;
        }
        Ok(queue)
    }

    /// Starts `start` as the control queue of a port on a reactor of its fabric.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn start_control(
        control_queue_state: &Arc<ControlQueueState>,
        reactor: &Handle,
        start: QueueStart,
        fault: FaultHandler,
    ) -> Result<Self, QueueError> {
        let (index, control_queue_state, handle) =
            (start.index, Arc::clone(control_queue_state), reactor.clone());
        // The control queue receives no frames, so its number in the registration is never used.
        let queue_registration = QueueRegistration::new(
            control_queue_state.fabric(),
            reactor,
            control_queue_state.port(),
            0,
            None,
        );
        let make = move |context: &mut Context<'_>, fault_reporter| {
            control(context, control_queue_state, handle, start, fault_reporter)
        };
        let queue_registration = queue_registration.ok_or(QueueError::Elsewhere)?;
        Self::begin(queue_registration, RingKind::Control, index, fault, make)
    }

    fn begin(
        queue_registration: QueueRegistration,
        kind: RingKind,
        index: u16,
        fault: FaultHandler,
        make: impl FnOnce(&mut Context<'_>, FaultReporter) -> Result<Option<PollerId>, RingError>
        + Send
        + 'static,
    ) -> Result<Self, QueueError> {
        let QueueRegistration { fabric, port, reactor, .. } = &queue_registration;
        let broken_ring = fabric.ring(*port, index, kind);
        broken_ring.clear();
        let fault_reporter =
            FaultReporter { session: fault, broken_ring: Arc::clone(&broken_ring) };
        let made = reactor.call(move |context| make(context, fault_reporter))?;
        let id = made.map_err(|source| {
            broken_ring.record(&error_chain(&source));
            QueueError::Ring { index, source }
        })?;
        let id = id.ok_or(Stopped)?;
        Ok(Self { queue_registration, id, index, kind, broken_ring, running: true })
    }

    /// Returns the record of whether its driver has broken the ring. It outlives the queue.
    pub fn broken_ring(&self) -> Arc<BrokenRingRecord> {
        Arc::clone(&self.broken_ring)
    }

    /// Returns the number of the queue in its port.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Returns whether the guest sends frames or commands by this queue.
    pub fn sends(&self) -> bool {
        self.kind != RingKind::Receive
    }

    /// Stops the queue; returns the index at which a successor continues.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended, and the index with it.
    pub fn stop(mut self) -> Result<u16, Stopped> {
        self.running = false;
        // Even if another reactor has ended: this one has not, and serves the ring.
        let retired =
            if self.kind == RingKind::Receive { self.queue_registration.retire() } else { Ok(()) };
        let end = self.end();
        let next = self.queue_registration.reactor.call(end)?.ok_or(Stopped)?;
        retired.map(|()| next)
    }

    /// Returns the task that ends the queue on its reactor and returns the index for a successor.
    fn end(&self) -> impl FnOnce(&mut Context<'_>) -> Option<u16> + Send + use<> {
        let (id, kind, close) = (self.id, self.kind, self.queue_registration.close());
        move |context| {
            if kind == RingKind::Receive {
                close(context);
            }
            let next = with_queue(context, kind, id, |queue, context| queue.stop(context));
            // The last call must arrive before the front-end receives the reply that the ring has
            // stopped.
            context.flush();
            context.remove_poller(id);
            next
        }
    }

    /// Locates the ring in a new memory table, and abandons the buffers of the old one.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn set_memory(&self, table: Arc<Table>) -> Result<(), QueueError> {
        let (id, kind, index) = (self.id, self.kind, self.index);
        let done = self.queue_registration.reactor.call(move |context| {
            with_queue(context, kind, id, |queue, _| queue.set_memory(table))
        })?;
        done.ok_or(Stopped)?.map_err(|source| QueueError::Ring { index, source })
    }

    /// Replaces the call descriptor and calls once, since a call may have been lost in between.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn set_call(&self, call: Option<Arc<OwnedFd>>) -> Result<(), Stopped> {
        let (id, kind) = (self.id, self.kind);
        let done = self.queue_registration.reactor.call(move |context| {
            with_queue(context, kind, id, |queue, context| queue.set_call(call, context))
        })?;
        done.ok_or(Stopped)
    }
}

impl Drop for RunningQueue {
    fn drop(&mut self) {
        if !self.running {
            return;
        }
        if self.kind == RingKind::Receive {
            self.queue_registration.retire_soon();
        }
        let end = self.end();
        // A reactor that has ended has dropped the queue already.
        let _ = self.queue_registration.reactor.send(move |context| {
            end(context);
        });
    }
}

/// Runs `with` on a queue of the calling reactor. Returns `None` if the queue is gone.
fn with_queue<R>(
    context: &mut Context<'_>,
    kind: RingKind,
    id: PollerId,
    with: impl FnOnce(&mut dyn ReactorQueue, &mut Context<'_>) -> R,
) -> Option<R> {
    match kind {
        RingKind::Receive => {
            context.with_poller(id, |queue: &mut ReceivePoller, context| with(queue, context))
        }
        RingKind::Transmit => {
            context.with_poller(id, |queue: &mut Transmit, context| with(queue, context))
        }
        RingKind::Control => {
            context.with_poller(id, |queue: &mut ControlQueue, context| with(queue, context))
        }
    }
}

/// Returns the hub of the calling reactor.
fn hub(context: &mut Context<'_>, node: PollerId) -> Option<Rc<RefCell<Hub>>> {
    context.with_poller(node, |hub_poller: &mut HubPoller, _| Rc::clone(&hub_poller.hub))
}

/// Creates a receive queue on the calling reactor. Returns `None` if the hub is gone.
fn receive(
    context: &mut Context<'_>,
    node: PollerId,
    kick: Option<Arc<OwnedFd>>,
    queue_announcement: QueueAnnouncement,
    make: impl FnOnce(&mut Context<'_>) -> Result<Receive, RingError>,
) -> Result<Option<PollerId>, RingError> {
    let Some(hub) = hub(context, node) else { return Ok(None) };
    let (port, mut outlet) = (queue_announcement.port, None);
    let id = context.add_poller(kick, |context| {
        let queue = Rc::new(RefCell::new(make(context)?));
        outlet = Some(Rc::clone(&queue));
        Ok::<_, RingError>(ReceivePoller::new(context, queue, hub, port))
    })?;
    let opened = outlet
        .is_some_and(|outlet| QueueRegistration::open(context, node, queue_announcement, outlet));
    Ok(opened.then_some(id))
}

/// Creates the transmit queue of this number on the calling reactor. Returns `None` if the hub is
/// gone.
fn transmit(
    context: &mut Context<'_>,
    node: PollerId,
    (port_incarnation, queue): (PortIncarnation, u16),
    mut start: QueueStart,
    counts: Arc<QueueCounts>,
    fault_reporter: FaultReporter,
) -> Result<Option<PollerId>, RingError> {
    let Some(hub) = hub(context, node) else { return Ok(None) };
    let kick = start.kick.take();
    let kickless = kick.is_none();
    let make = |context: &mut Context<'_>| {
        let hub = Rc::clone(&hub);
        Transmit::new(port_incarnation, start, counts, fault_reporter, hub, kickless, context)
    };
    let id = context.add_poller(kick, make)?;
    hub.borrow_mut().sends_by(port_incarnation.port, queue, id);
    Ok(Some(id))
}

/// Creates a control queue on the calling reactor.
fn control(
    context: &mut Context<'_>,
    control_queue_state: Arc<ControlQueueState>,
    reactor: Handle,
    mut start: QueueStart,
    fault_reporter: FaultReporter,
) -> Result<Option<PollerId>, RingError> {
    let kick = start.kick.take();
    let kickless = kick.is_none();
    let make = |context: &mut Context<'_>| {
        ControlQueue::new(control_queue_state, start, fault_reporter, reactor, kickless, context)
    };
    context.add_poller(kick, make).map(Some)
}

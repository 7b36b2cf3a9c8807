//! Queues as the rest of the program starts and stops them.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memory::Table;
use net::features::Features;
use net::port::PortId;
use reactor::{Context, Handle, PollerId, Stopped};
use virtq::{QueueStart, RingError};

use crate::fabric::{Fabric, in_hub};
use crate::node::Node;
use crate::receive::{Receive, ReceivePoller};
use crate::ring::Fault;
use crate::transmit::Transmit;

/// Why a queue cannot be started or changed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The ring is not usable.
    #[error("queue {index} cannot be served")]
    Ring {
        /// Which queue.
        index: u16,
        /// Why.
        #[source]
        source: RingError,
    },
    /// The reactor has no hub.
    #[error("the reactor is not one of the switch's")]
    Elsewhere,
    /// The reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

static NEXT_EPOCH: AtomicU32 = AtomicU32::new(1);

/// A port with the features that its driver has accepted, until it accepts others.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    port: PortId,
    features: Features,
    epoch: u32,
}

impl Life {
    /// A new life of a port. No queue of it runs.
    pub fn new(port: PortId, features: Features) -> Self {
        Self { port, features, epoch: NEXT_EPOCH.fetch_add(1, Ordering::Relaxed) }
    }
}

/// A queue being served. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct RunningQueue {
    fabric: Arc<Fabric>,
    number: usize,
    reactor: Handle,
    id: PollerId,
    port: PortId,
    index: u16,
    running: bool,
}

/// Even numbers are receive queues (virtio 1.2, 5.1.2).
fn receives(index: u16) -> bool {
    index.is_multiple_of(2)
}

impl RunningQueue {
    /// Serves queue `start.index` of a port on a reactor of the fabric. Both queues of a pair must
    /// be on the same one.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn start(
        fabric: &Arc<Fabric>,
        reactor: &Handle,
        life: Life,
        start: QueueStart,
        fault: Fault,
    ) -> Result<Self, QueueError> {
        let (port, index) = (life.port, start.index);
        let number = fabric.number(reactor).ok_or(QueueError::Elsewhere)?;
        let node = fabric.nodes().get(number).ok_or(QueueError::Elsewhere)?.node;
        let make = move |context: &mut Context<'_>| {
            if receives(index) {
                receive(context, node, life, start, fault)
            } else {
                transmit(context, node, life, start, fault)
            }
        };
        let made = reactor.call(make)?;
        let id = made.map_err(|source| QueueError::Ring { index, source })?;
        let id = id.ok_or(Stopped)?;
        let (fabric, reactor) = (Arc::clone(fabric), reactor.clone());
        let queue = Self { fabric, number, reactor, id, port, index, running: true };
        if receives(index) {
            let (epoch, takes) = (life.epoch, life.features.receives());
            for at in queue.fabric.others(number) {
                at.with(move |hub| hub.open_there(port, index / 2, epoch, takes, number))?;
            }
        }
        Ok(queue)
    }

    /// Which queue of the port it is.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Takes and gives nothing more; returns where a successor goes on.
    ///
    /// # Errors
    /// [`Stopped`]: the reactor has ended, and the position with it.
    pub fn stop(mut self) -> Result<u16, Stopped> {
        self.running = false;
        let (port, index) = (self.port, self.index);
        if receives(index) {
            for at in self.fabric.others(self.number) {
                at.with(move |hub| hub.close(port, index / 2))?;
            }
        }
        let end = self.end();
        self.reactor.call(end)?.ok_or(Stopped)
    }

    /// What ends it on its reactor.
    fn end(&self) -> impl FnOnce(&mut Context<'_>) -> Option<u16> + Send + use<> {
        let (id, port, index) = (self.id, self.port, self.index);
        let node = self.fabric.nodes().get(self.number).map(|at| at.node);
        move |context| {
            let next = if receives(index) {
                in_hub(context, node?, |hub| hub.close(port, index / 2));
                context.with_poller(id, |queue: &mut ReceivePoller, context| {
                    queue.0.borrow_mut().stop(context)
                })
            } else {
                context.with_poller(id, |queue: &mut Transmit, context| queue.stop(context))
            };
            // The last call must be there before the front-end hears that the ring stands still.
            context.flush();
            context.remove_poller(id);
            next
        }
    }

    /// Finds the ring in a new memory table, and gives up what it has of the old one.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn set_memory(&self, table: Arc<Table>) -> Result<(), QueueError> {
        let (id, index) = (self.id, self.index);
        let done = self.reactor.call(move |context| {
            if receives(index) {
                context.with_poller(id, |queue: &mut ReceivePoller, _| {
                    queue.0.borrow_mut().set_memory(table)
                })
            } else {
                context.with_poller(id, |queue: &mut Transmit, _| queue.set_memory(table))
            }
        })?;
        done.ok_or(Stopped)?.map_err(|source| QueueError::Ring { index, source })
    }

    /// Replaces the call descriptor and calls once, since a call may have been lost in between.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn set_call(&self, call: Option<Arc<OwnedFd>>) -> Result<(), Stopped> {
        let (id, index) = (self.id, self.index);
        let done = self.reactor.call(move |context| {
            if receives(index) {
                context.with_poller(id, |queue: &mut ReceivePoller, context| {
                    queue.0.borrow_mut().set_call(call, context);
                })
            } else {
                context.with_poller(id, |queue: &mut Transmit, context| {
                    queue.set_call(call, context);
                })
            }
        })?;
        done.ok_or(Stopped)
    }
}

impl Drop for RunningQueue {
    fn drop(&mut self) {
        if !self.running {
            return;
        }
        let (port, index, end) = (self.port, self.index, self.end());
        if receives(index) {
            let others = self.fabric.others(self.number);
            others.for_each(|at| at.send(move |hub| hub.close(port, index / 2)));
        }
        // A reactor that has ended has dropped the queue already.
        let _ = self.reactor.send(move |context| {
            end(context);
        });
    }
}

/// Makes a receive queue on this reactor. `None`: the hub is gone.
fn receive(
    context: &mut Context<'_>,
    node: PollerId,
    life: Life,
    start: QueueStart,
    fault: Fault,
) -> Result<Option<PollerId>, RingError> {
    let Life { port, features, epoch } = life;
    let (pair, mut outlet) = (start.index / 2, None);
    let id = context.add_poller(None, |context| {
        let queue = Receive::new(port, start, features, fault, context)?;
        let queue = Rc::new(RefCell::new(queue));
        outlet = Some(Rc::clone(&queue));
        Ok::<_, RingError>(ReceivePoller(queue))
    })?;
    let opened = outlet.and_then(|outlet| {
        in_hub(context, node, |hub| hub.open(port, pair, epoch, features.receives(), outlet))
    });
    Ok(opened.map(|()| id))
}

/// Makes a transmit queue on this reactor. `None`: the hub is gone.
fn transmit(
    context: &mut Context<'_>,
    node: PollerId,
    life: Life,
    mut start: QueueStart,
    fault: Fault,
) -> Result<Option<PollerId>, RingError> {
    let Life { port, features, .. } = life;
    let hub = context.with_poller(node, |node: &mut Node, _| Rc::clone(&node.hub));
    let Some(hub) = hub else { return Ok(None) };
    let kick = start.kick.take();
    let kickless = kick.is_none();
    let make = |context: &mut Context<'_>| {
        Transmit::new(port, start, features, fault, hub, kickless, context)
    };
    context.add_poller(kick, make).map(Some)
}

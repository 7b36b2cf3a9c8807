//! Virtio queues as the rest of the program starts and stops them.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use memory::Table;
use reactor::{Context, Handle, PollerId, Stopped};
use virtq::{QueueStart, RingError};

use crate::fabric::Fabric;
use crate::hub::Opening;
use crate::life::Life;
use crate::node::Node;
use crate::queue_counts::QueueCounts;
use crate::receive::{Receive, ReceivePoller};
use crate::ring::Fault;
use crate::seat::Seat;
use crate::taken::Taken;
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
    /// What is no ring cannot be had.
    #[error("the port cannot be served")]
    Port(#[source] std::io::Error),
    /// The reactor has no hub.
    #[error("the reactor is not one of the switch's")]
    Elsewhere,
    /// The reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// A queue being served. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct RunningQueue {
    seat: Seat,
    id: PollerId,
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
        let index = start.index;
        let (pair, taken) = (index / 2, Arc::<Taken>::default());
        let seat = Seat::new(fabric, reactor, life.port, pair, Some(Arc::clone(&taken)));
        let seat = seat.ok_or(QueueError::Elsewhere)?;
        let (node, opening) = (seat.node, seat.opening(life));
        let counts = fabric.queue(life.port, pair);
        let make = move |context: &mut Context<'_>| {
            if receives(index) {
                let make = |context: &mut Context<'_>| {
                    Receive::new(life, start, counts, taken, fault, context)
                };
                receive(context, node, opening, make)
            } else {
                transmit(context, node, life, start, counts, fault)
            }
        };
        let made = reactor.call(make)?;
        let id = made.map_err(|source| QueueError::Ring { index, source })?;
        let queue = Self { seat, id: id.ok_or(Stopped)?, index, running: true };
        if receives(index) {
            queue.seat.announce(life)?;
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
        // Also when another reactor has ended: this one has not, and serves the ring.
        let retired = if receives(self.index) { self.seat.retire() } else { Ok(()) };
        let end = self.end();
        let next = self.seat.reactor.call(end)?.ok_or(Stopped)?;
        retired.map(|()| next)
    }

    /// What ends it on its reactor, and tells where a successor goes on.
    fn end(&self) -> impl FnOnce(&mut Context<'_>) -> Option<u16> + Send + use<> {
        let (id, index, close) = (self.id, self.index, self.seat.close());
        move |context| {
            let next = if receives(index) {
                close(context);
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
        let done = self.seat.reactor.call(move |context| {
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
        let done = self.seat.reactor.call(move |context| {
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
        if receives(self.index) {
            self.seat.retire_soon();
        }
        let end = self.end();
        // A reactor that has ended has dropped the queue already.
        let _ = self.seat.reactor.send(move |context| {
            end(context);
        });
    }
}

/// Makes a receive queue on this reactor. `None`: the hub is gone.
fn receive(
    context: &mut Context<'_>,
    node: PollerId,
    opening: Opening,
    make: impl FnOnce(&mut Context<'_>) -> Result<Receive, RingError>,
) -> Result<Option<PollerId>, RingError> {
    let mut outlet = None;
    let id = context.add_poller(None, |context| {
        let queue = Rc::new(RefCell::new(make(context)?));
        outlet = Some(Rc::clone(&queue));
        Ok::<_, RingError>(ReceivePoller(queue))
    })?;
    let opened = outlet.is_some_and(|outlet| Seat::open(context, node, opening, outlet));
    Ok(opened.then_some(id))
}

/// Makes a transmit queue on this reactor. `None`: the hub is gone.
fn transmit(
    context: &mut Context<'_>,
    node: PollerId,
    life: Life,
    mut start: QueueStart,
    counts: Arc<QueueCounts>,
    fault: Fault,
) -> Result<Option<PollerId>, RingError> {
    let hub = context.with_poller(node, |node: &mut Node, _| Rc::clone(&node.hub));
    let Some(hub) = hub else { return Ok(None) };
    let kick = start.kick.take();
    let kickless = kick.is_none();
    let make = |context: &mut Context<'_>| {
        Transmit::new(life, start, counts, fault, hub, kickless, context)
    };
    context.add_poller(kick, make).map(Some)
}

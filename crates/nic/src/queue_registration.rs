//! Registration of a receive queue with the hubs of all reactors.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use net::port::PortId;
use reactor::{Context, Handle, PollerId, Stopped};

use crate::consumption::ConsumptionCounter;
use crate::fabric::{Fabric, in_hub};
use crate::frame_sink::FrameSink;
use crate::hub::QueueAnnouncement;
use crate::incarnation::PortIncarnation;

/// Registration of a queue on a reactor of the fabric.
#[derive(Clone, Debug)]
pub(crate) struct QueueRegistration {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) reactor: Handle,
    /// Hub of the reactor.
    pub(crate) node: PollerId,
    /// Number of the reactor.
    number: usize,
    pub(crate) port: PortId,
    queue: u16,
    /// Counter of the consumed buffers, if the queue maintains one.
    consumption_counter: Option<Arc<ConsumptionCounter>>,
}

impl QueueRegistration {
    /// Creates the registration of queue `queue` of a port. Returns `None` if the reactor does not
    /// belong to the fabric.
    pub(crate) fn new(
        fabric: &Arc<Fabric>,
        reactor: &Handle,
        port: PortId,
        queue: u16,
        consumption_counter: Option<Arc<ConsumptionCounter>>,
    ) -> Option<Self> {
        let number = fabric.number(reactor)?;
        let node = fabric.nodes().get(number)?.node;
        let (fabric, reactor) = (Arc::clone(fabric), reactor.clone());
        Some(Self { fabric, reactor, node, number, port, queue, consumption_counter })
    }

    /// Returns the announcement of the queue for this incarnation of its port.
    pub(crate) fn announcement(&self, port_incarnation: PortIncarnation) -> QueueAnnouncement {
        let PortIncarnation { port, epoch, takes, .. } = port_incarnation;
        QueueAnnouncement {
            port,
            queue: self.queue,
            epoch,
            takes,
            consumption_counter: self.consumption_counter.clone(),
        }
    }

    /// Opens the queue on its own reactor: from now on frames go to this sink. Returns false if the
    /// hub is gone.
    pub(crate) fn open(
        context: &mut Context<'_>,
        node: PollerId,
        queue_announcement: QueueAnnouncement,
        frame_sink: Rc<RefCell<dyn FrameSink>>,
    ) -> bool {
        in_hub(context, node, |hub| hub.open(queue_announcement, frame_sink)).is_some()
    }

    /// Publishes the queue to all other reactors.
    pub(crate) fn publish(&self, port_incarnation: PortIncarnation) -> Result<(), Stopped> {
        let (number, queue_announcement) = (self.number, self.announcement(port_incarnation));
        for hub_handle in self.fabric.others(number) {
            let queue_announcement = queue_announcement.clone();
            hub_handle.with(move |hub| hub.open_there(queue_announcement, number))?;
        }
        Ok(())
    }

    /// Removes the queue from all other reactors. After this returns, none of them sends to the
    /// queue.
    pub(crate) fn retire(&self) -> Result<(), Stopped> {
        let Self { port, queue, .. } = *self;
        for hub_handle in self.fabric.others(self.number) {
            hub_handle.with(move |hub| hub.close(port, queue))?;
        }
        Ok(())
    }

    /// Removes the queue from all other reactors without waiting.
    pub(crate) fn retire_soon(&self) {
        let Self { port, queue, .. } = *self;
        self.fabric
            .others(self.number)
            .for_each(|hub_handle| hub_handle.send(move |hub| hub.close(port, queue)));
    }

    /// Returns the task that closes the queue on its own reactor.
    pub(crate) fn close(&self) -> impl FnOnce(&mut Context<'_>) + Send + use<> {
        let Self { node, port, queue, .. } = *self;
        move |context| {
            in_hub(context, node, |hub| hub.close(port, queue));
        }
    }
}

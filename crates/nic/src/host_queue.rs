//! Queues of ports without virtqueues, for example of the host.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use reactor::{Context, Handle, Poller, PollerId, Stopped};

use crate::fabric::Fabric;
use crate::frame_sink::FrameSink;
use crate::hub::Hub;
use crate::hub_poller::HubPoller;
use crate::incarnation::PortIncarnation;
use crate::queue_registration::QueueRegistration;
use crate::running_queue::QueueError;

/// Parts of a queue on its reactor: the source of its frames and their receiver.
pub struct HostQueueParts<P> {
    /// Poller that passes incoming frames to [`Hub::forward`] until [`Hub::is_spent`], and then
    /// calls [`Hub::flush`].
    pub inlet: P,
    /// Receiver of outgoing frames.
    pub frame_sink: Rc<RefCell<dyn FrameSink>>,
}

/// Queue of such a port. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct HostQueue {
    queue_registration: QueueRegistration,
    id: PollerId,
    running: bool,
}

impl HostQueue {
    /// Creates queue `queue` of a port on a reactor of the fabric. `make` runs on that reactor,
    /// with the hub that receives the frames. `kick` wakes the inlet.
    ///
    /// # Errors
    /// [`QueueError`], also with the error of `make`.
    pub fn new<P, M>(
        fabric: &Arc<Fabric>,
        reactor: &Handle,
        port_incarnation: PortIncarnation,
        queue: u16,
        kick: Option<Arc<OwnedFd>>,
        make: M,
    ) -> Result<Self, QueueError>
    where
        P: Poller,
        M: FnOnce(&mut Context<'_>, Rc<RefCell<Hub>>) -> io::Result<HostQueueParts<P>>
            + Send
            + 'static,
    {
        let queue_registration =
            QueueRegistration::new(fabric, reactor, port_incarnation.port, queue, None);
        let queue_registration = queue_registration.ok_or(QueueError::Elsewhere)?;
        let (node, queue_announcement) =
            (queue_registration.node, queue_registration.announcement(port_incarnation));
        let made = reactor.call(move |context| {
            let hub = context
                .with_poller(node, |hub_poller: &mut HubPoller, _| Rc::clone(&hub_poller.hub));
            let hub = hub.ok_or(QueueError::Stopped(Stopped))?;
            let mut frame_sink = None;
            let id = context.add_poller(kick, |context| {
                let parts = make(context, hub)?;
                frame_sink = Some(parts.frame_sink);
                Ok::<_, io::Error>(parts.inlet)
            });
            let id = id.map_err(QueueError::Port)?;
            if let Some(frame_sink) = frame_sink {
                QueueRegistration::open(context, node, queue_announcement, frame_sink);
            }
            Ok::<_, QueueError>(id)
        })?;
        let host_queue = Self { queue_registration, id: made?, running: true };
        host_queue.queue_registration.publish(port_incarnation)?;
        Ok(host_queue)
    }

    /// Runs `with` on the inlet on its reactor and waits for the result.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended or the inlet has another type.
    pub fn with<P: Poller, R: Send + 'static>(
        &self,
        with: impl FnOnce(&mut P, &mut Context<'_>) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let id = self.id;
        self.queue_registration
            .reactor
            .call(move |context| context.with_poller(id, with))?
            .ok_or(Stopped)
    }

    /// Stops the queue: it sends and receives no more frames.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has ended, and the queue with it.
    pub fn stop(mut self) -> Result<(), Stopped> {
        self.running = false;
        // Even if another reactor has ended: this one has not.
        let retired = self.queue_registration.retire();
        let end = self.end();
        self.queue_registration.reactor.call(end)?;
        retired
    }

    /// Returns the task that ends the queue on its reactor.
    fn end(&self) -> impl FnOnce(&mut Context<'_>) + Send + use<> {
        let (id, close) = (self.id, self.queue_registration.close());
        move |context| {
            close(context);
            context.remove_poller(id);
        }
    }
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        if self.running {
            self.queue_registration.retire_soon();
            // A reactor that has ended has dropped the queue already.
            let _ = self.queue_registration.reactor.send(self.end());
        }
    }
}

//! Ports that are no virtio rings: whatever gives and takes frames on a reactor.

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

/// What a port is made of on its reactor: who brings frames, and who takes them.
pub struct HostQueueParts<P> {
    /// Gives what comes in to [`Hub::forward`] until [`Hub::is_spent`], and then calls
    /// [`Hub::flush`].
    pub inlet: P,
    /// Takes what goes out.
    pub outlet: Rc<RefCell<dyn FrameSink>>,
}

/// A queue of such a port. Dropping it ends it without waiting.
#[derive(Debug)]
pub struct HostQueue {
    seat: QueueRegistration,
    id: PollerId,
    running: bool,
}

impl HostQueue {
    /// Makes queue `queue` of a port on a reactor of the fabric. `make` is called there, with the
    /// hub that frames go to; what wakes the inlet is `kick`.
    ///
    /// # Errors
    /// [`QueueError`], with what `make` refuses.
    pub fn new<P, M>(
        fabric: &Arc<Fabric>,
        reactor: &Handle,
        life: PortIncarnation,
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
        let seat = QueueRegistration::new(fabric, reactor, life.port, queue, None);
        let seat = seat.ok_or(QueueError::Elsewhere)?;
        let (node, opening) = (seat.node, seat.announcement(life));
        let made = reactor.call(move |context| {
            let hub = context.with_poller(node, |node: &mut HubPoller, _| Rc::clone(&node.hub));
            let hub = hub.ok_or(QueueError::Stopped(Stopped))?;
            let mut outlet = None;
            let id = context.add_poller(kick, |context| {
                let parts = make(context, hub)?;
                outlet = Some(parts.outlet);
                Ok::<_, io::Error>(parts.inlet)
            });
            let id = id.map_err(QueueError::Port)?;
            if let Some(outlet) = outlet {
                QueueRegistration::open(context, node, opening, outlet);
            }
            Ok::<_, QueueError>(id)
        })?;
        let attached = Self { seat, id: made?, running: true };
        attached.seat.publish(life)?;
        Ok(attached)
    }

    /// Has the inlet do something on its reactor, and waits for that.
    ///
    /// # Errors
    /// [`Stopped`]: the reactor has ended, or the inlet is of another type.
    pub fn with<P: Poller, R: Send + 'static>(
        &self,
        with: impl FnOnce(&mut P, &mut Context<'_>) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let id = self.id;
        self.seat.reactor.call(move |context| context.with_poller(id, with))?.ok_or(Stopped)
    }

    /// Gives and takes nothing more.
    ///
    /// # Errors
    /// [`Stopped`]: the reactor has ended, and this with it.
    pub fn stop(mut self) -> Result<(), Stopped> {
        self.running = false;
        // Also when another reactor has ended: this one has not.
        let retired = self.seat.retire();
        let end = self.end();
        self.seat.reactor.call(end)?;
        retired
    }

    /// What ends it on its reactor.
    fn end(&self) -> impl FnOnce(&mut Context<'_>) + Send + use<> {
        let (id, close) = (self.id, self.seat.close());
        move |context| {
            close(context);
            context.remove_poller(id);
        }
    }
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        if self.running {
            self.seat.retire_soon();
            // A reactor that has ended has dropped it already.
            let _ = self.seat.reactor.send(self.end());
        }
    }
}

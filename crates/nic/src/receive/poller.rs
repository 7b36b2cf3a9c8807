//! A receive queue's life on its reactor.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use memory::Table;
use net::Reason;
use net::port::PortId;
use reactor::{Context, Poller, Turn};
use virtq::RingError;

use super::Receive;
use crate::hub::Hub;
use crate::ring::Served;

/// Its life on the reactor: it has something to do while frames wait.
pub(crate) struct ReceivePoller {
    queue: Rc<RefCell<Receive>>,
    hub: Rc<RefCell<Hub>>,
    port: PortId,
    /// The guest was asked to kick.
    armed: bool,
}

impl ReceivePoller {
    pub(crate) fn new(queue: Rc<RefCell<Receive>>, hub: Rc<RefCell<Hub>>, port: PortId) -> Self {
        Self { queue, hub, port, armed: false }
    }

    /// So many frames were lost that the port has counted as got: now they count among those that were
    /// lost, too.
    fn lose(&self, frames: u64) {
        for _ in 0..frames {
            self.hub.borrow_mut().lose(self.port, Reason::ReceiverClosed);
        }
    }
}

impl Served for ReceivePoller {
    /// What still waits has its last chance.
    fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        let now_ns = context.now_ns();
        let (next, lost) = {
            let mut queue = self.queue.borrow_mut();
            let (_, lost) = queue.deliver(now_ns);
            let lost = lost + queue.forget();
            (queue.stop(context), lost)
        };
        self.lose(lost);
        next
    }

    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.queue.borrow_mut().set_memory(table)
    }

    fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>) {
        self.queue.borrow_mut().ring.set_call(call, context);
    }
}

impl Poller for ReceivePoller {
    fn poll(&mut self, context: &mut Context<'_>) -> Turn {
        if std::mem::take(&mut self.armed) {
            self.queue.borrow().ring.queue.suppress();
        }
        if self.queue.borrow().backlog.is_empty() {
            return Turn::Idle;
        }
        let now_ns = context.now_ns();
        let (some, lost) = {
            let mut queue = self.queue.borrow_mut();
            let done = queue.deliver(now_ns);
            if done.0 {
                context.now_again_ns();
                queue.show(context);
            }
            done
        };
        self.lose(lost);
        if some { Turn::Busy } else { Turn::Idle }
    }

    // The queue itself may have called it, which is not to be touched then.
    fn wake(&mut self) {}

    /// Kicks are asked for only while frames wait.
    fn arm(&mut self) -> bool {
        let mut queue = self.queue.borrow_mut();
        if queue.backlog.is_empty() {
            return false;
        }
        let more = queue.ring.queue.arm();
        self.armed = !more;
        more
    }
}

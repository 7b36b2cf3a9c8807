//! A transmit queue: what a guest sends.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use memory::Table;
use net::Reason;
use net::frame::PREFIX_BYTES;
use net::header::HEADER_BYTES;
use reactor::{Context, Poller, Turn};
use virtq::{Chain, QueueStart, RingError};

use crate::hub::{Given, Hub};
use crate::life::Life;
use crate::ring::{Fault, Ring};

/// Frames that are taken before others have their turn.
const BATCH: usize = 64;

/// A transmit queue on its reactor.
pub(crate) struct Transmit {
    ring: Ring,
    hub: Rc<RefCell<Hub>>,
    life: Life,
    /// Nobody kicks: it must look.
    kickless: bool,
}

impl Transmit {
    pub(crate) fn new(
        life: Life,
        start: QueueStart,
        fault: Fault,
        hub: Rc<RefCell<Hub>>,
        kickless: bool,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let ring = Ring::new(life.port, start, fault, context)?;
        Ok(Self { ring, hub, life, kickless })
    }

    /// Ends; returns where a successor goes on. Nothing is in flight between turns.
    pub(crate) fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        self.ring.publish(context);
        let next = self.ring.queue.next_avail();
        self.ring.queue.fail();
        next
    }

    pub(crate) fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.ring.set_memory(table)
    }

    pub(crate) fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>) {
        self.ring.set_call(call, context);
    }

    /// Copies what is decided on to private memory, and passes the frame on.
    fn send(&self, hub: &mut Hub, chain: &mut Chain, now_ns: u64) {
        let body = &mut chain.readable;
        let Some(header) = body.take_front::<HEADER_BYTES>() else {
            return hub.refuse(self.life.port, Reason::ShortHeader);
        };
        let mut prefix = [0; PREFIX_BYTES];
        let copied = body.peek(&mut prefix);
        body.advance(copied);
        let prefix = prefix.get(..copied).unwrap_or_default();
        hub.forward(self.life.port, &Given { header, prefix, body, may: self.life.may }, now_ns);
    }
}

impl Poller for Transmit {
    fn poll(&mut self, context: &mut Context<'_>) -> Turn {
        let now_ns = context.now_ns();
        let hub = Rc::clone(&self.hub);
        let mut hub = hub.borrow_mut();
        let mut taken = 0;
        while taken < BATCH {
            let Some(mut chain) = self.ring.pop() else { break };
            self.send(&mut hub, &mut chain, now_ns);
            self.ring.queue.push(chain, 0);
            taken += 1;
        }
        if taken > 0 {
            // Receivers first: they wait for it.
            hub.flush(context);
        }
        // Also when nothing was found: the ring may be broken, or a hole.
        self.ring.publish(context);
        if taken > 0 { Turn::Busy } else { Turn::Idle }
    }

    fn wake(&mut self) {
        self.ring.queue.suppress();
    }

    fn arm(&mut self) -> bool {
        self.ring.queue.arm()
    }

    fn spins(&self) -> bool {
        self.kickless && !self.ring.queue.failed()
    }
}

//! A transmit queue: what a guest sends.
//!
//! A port may be capped. What may not pass yet is held, nothing is popped before it, and a timer
//! tells when its time has come: the guest waits, and no frame is lost for it.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use memory::Table;
use net::Reason;
use net::frame::PREFIX_BYTES;
use net::header::HEADER_BYTES;
use reactor::{Context, Done, Op, Poller, Polling, Port, Turn, WaitsFor};
use virtq::{Chain, QueueStart, RingError};

use crate::hub::{Given, Hub};
use crate::life::Life;
use crate::queue_counts::QueueCounts;
use crate::ring::{Fault, Ring, Served};

/// Frames that are taken before others have their turn.
const BATCH: usize = 64;

/// A transmit queue on its reactor.
pub(crate) struct Transmit {
    ring: Ring,
    hub: Rc<RefCell<Hub>>,
    life: Life,
    /// Nobody kicks: it must look.
    kickless: bool,
    /// Popped, and not to pass yet.
    held: Option<Chain>,
    timer: Timer,
    counts: Arc<QueueCounts>,
}

/// Wakes a queue that holds something.
struct Timer {
    port: Port,
    runs: bool,
    done: Vec<Done>,
}

impl Timer {
    fn new(context: &mut Context<'_>) -> Self {
        Self { port: context.open_port(), runs: false, done: Vec::with_capacity(1) }
    }

    /// Goes off at `at_ns`, unless it runs already.
    fn set(&mut self, at_ns: u64, now_ns: u64, context: &mut Context<'_>) {
        if !self.runs {
            let after = Duration::from_nanos(at_ns.saturating_sub(now_ns));
            context.submit(&self.port, Op::Timer { after }, 0);
            self.runs = true;
        }
    }

    /// Notices that it went off.
    fn look(&mut self, context: &mut Context<'_>) {
        if self.runs {
            context.reap(&self.port, &mut self.done);
            self.runs = self.done.is_empty();
            self.done.clear();
        }
    }
}

impl Transmit {
    pub(crate) fn new(
        life: Life,
        start: QueueStart,
        counts: Arc<QueueCounts>,
        fault: Fault,
        hub: Rc<RefCell<Hub>>,
        kickless: bool,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let ring = Ring::new(life.port, start, fault, context)?;
        let timer = Timer::new(context);
        Ok(Self { ring, hub, life, kickless, held: None, timer, counts })
    }

    /// Gives up what is held; returns how many chains that were.
    fn let_go(&mut self) -> u16 {
        self.held.take().map_or(0, |chain| {
            chain.abandon();
            1
        })
    }

    /// Copies what is decided on to private memory, and passes the frame on.
    fn send(&self, hub: &mut Hub, chain: &mut Chain, now_ns: u64) {
        let body = &mut chain.readable;
        let Some(header) = body.take_front::<HEADER_BYTES>() else {
            self.counts.sends(0, Some(Reason::ShortHeader));
            return hub.refuse(self.life.port, Reason::ShortHeader);
        };
        let mut prefix = [0; PREFIX_BYTES];
        let copied = body.peek(&mut prefix);
        body.advance(copied);
        let prefix = prefix.get(..copied).unwrap_or_default();
        let bytes = prefix.len() + body.len();
        let given = Given { header, prefix, body, may: self.life.may };
        self.counts.sends(bytes, hub.forward(self.life.port, &given, now_ns));
    }
}

impl Served for Transmit {
    /// At most what is held is in flight between turns.
    fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        self.ring.publish(context);
        let unsent = self.let_go();
        let next = self.ring.queue.next_avail().wrapping_sub(unsent);
        self.ring.queue.fail();
        next
    }

    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.let_go();
        self.ring.set_memory(table)
    }

    fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>) {
        self.ring.set_call(call, context);
    }
}

impl Poller for Transmit {
    fn poll(&mut self, context: &mut Context<'_>) -> Turn {
        let now_ns = context.now_ns();
        self.timer.look(context);
        let hub = Rc::clone(&self.hub);
        let mut hub = hub.borrow_mut();
        let mut taken = 0;
        while taken < BATCH && !hub.is_spent() {
            let Some(mut chain) = self.held.take().or_else(|| self.ring.pop()) else { break };
            let bytes = chain.readable.len().saturating_sub(HEADER_BYTES);
            if let Err(at_ns) = hub.may_send(self.life.port, bytes, now_ns) {
                self.timer.set(at_ns, now_ns, context);
                self.held = Some(chain);
                self.counts.holds(now_ns);
                break;
            }
            self.counts.passes(now_ns);
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
        // With something held only the timer brings us on.
        self.held.is_none() && self.ring.queue.arm()
    }

    fn spins(&self) -> bool {
        self.kickless && self.held.is_none() && !self.ring.queue.failed()
    }

    fn polling(&self) -> Option<&Polling> {
        Some(&self.counts.polling)
    }

    fn waits_for(&self) -> WaitsFor {
        // Frames are never under way: either the guest brings the next one, or the timer does.
        if self.held.is_some() || self.ring.queue.failed() {
            WaitsFor::Event
        } else {
            WaitsFor::Driver
        }
    }
}

impl Drop for Transmit {
    /// Its reactor may end before it was stopped.
    fn drop(&mut self) {
        self.let_go();
    }
}

//! A transmit queue: what a guest sends.
//!
//! Frames are popped some at a time, so that their first bytes are on the way to this CPU before they are
//! read. A port may be capped. What may not pass yet is held, with what was popped behind it, and a timer
//! tells when its time has come: the guest waits, and no frame is lost for it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use memory::{Buffers, Table};
use net::Reason;
use net::frame::PREFIX_BYTES;
use net::header::HEADER_BYTES;
use reactor::{Context, PollControl, PollOutcome, Poller, WaitTarget};
use virtq::{Popped, QueueStart, RingError};

use crate::hub::{Hub, IngressFrame, counted};
use crate::incarnation::PortIncarnation;
use crate::queue_counts::QueueCounts;
use crate::ring::{AHEAD, FETCHED_BYTES, FaultHandler, InOrderRing, ReactorQueue, WHOLE_BYTES};
use crate::timer::Timer;

/// Frames that are taken before others have their turn.
const BATCH: usize = 64;

/// Room for what is decided on.
type FramePrefix = [u8; HEADER_BYTES + PREFIX_BYTES];

/// A transmit queue on its reactor.
pub(crate) struct Transmit {
    ring: InOrderRing,
    hub: Rc<RefCell<Hub>>,
    port_incarnation: PortIncarnation,
    /// Nobody kicks: it must look.
    kickless: bool,
    /// Popped, and not passed on; oldest first. Between turns that is what a cap holds, or what others
    /// have their turn before.
    popped: VecDeque<Popped>,
    /// What of a piece follows the bytes that are copied first.
    body: Buffers,
    timer: Timer,
    counts: Arc<QueueCounts>,
}

impl Transmit {
    pub(crate) fn new(
        port_incarnation: PortIncarnation,
        start: QueueStart,
        counts: Arc<QueueCounts>,
        fault: FaultHandler,
        hub: Rc<RefCell<Hub>>,
        kickless: bool,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let ring = InOrderRing::new(port_incarnation.port, start, fault, context)?;
        let timer = Timer::new(context);
        let (popped, body) = (VecDeque::with_capacity(AHEAD), Buffers::with_capacity(1));
        Ok(Self { ring, hub, port_incarnation, kickless, popped, body, timer, counts })
    }

    /// Gives up what was popped and not passed on; returns how much that was.
    fn let_go(&mut self) -> u16 {
        let unsent = self.popped.len();
        self.popped.drain(..).for_each(Popped::abandon);
        self.body.clear();
        // At most AHEAD.
        unsent as u16
    }

    /// The next one. Where none is left, more are popped.
    #[inline]
    fn next(&mut self) -> Option<Popped> {
        if self.popped.is_empty() {
            self.ring.pop_many(FETCHED_BYTES, &mut self.popped);
        }
        let next = self.popped.pop_front();
        if let Some(after) = self.popped.front()
            && after.readable() > FETCHED_BYTES
        {
            self.ring.queue.fetch_more::<HEADER_BYTES>(after, WHOLE_BYTES);
        }
        next
    }

    /// Copies what is decided on to private memory, and passes the frame on.
    fn pass(&mut self, hub: &mut Hub, popped: &mut Popped, first: &mut FramePrefix, now_ns: u64) {
        let bytes = popped.readable();
        match popped {
            Popped::Piece(single_buffer) => {
                let queue = &self.ring.queue;
                let Some((header, prefix)) = queue.read_piece(single_buffer, first) else {
                    return self.refuse(hub);
                };
                let front = HEADER_BYTES + prefix.len();
                if bytes == front {
                    return self.send(hub, header, prefix, &Buffers::default(), now_ns);
                }
                // What is copied first is a few bytes.
                queue.show(single_buffer, front as u32, &mut self.body);
                self.send(hub, header, prefix, &self.body, now_ns);
            }
            Popped::Chain(chain) => {
                let body = &mut chain.readable;
                let copied = body.peek(first);
                body.advance(copied);
                let first = first.get(..copied).unwrap_or_default();
                let Some((header, prefix)) = first.split_first_chunk() else {
                    return self.refuse(hub);
                };
                self.send(hub, header, prefix, body, now_ns);
            }
        }
    }

    /// Passes a batch on that begins with this one, as far as it may; how many frames it was.
    #[inline]
    fn batch(&mut self, popped: Popped, now_ns: u64, context: &mut Context<'_>) -> usize {
        let hub = Rc::clone(&self.hub);
        let mut hub = hub.borrow_mut();
        // Written over by each frame as far as that goes.
        let (mut taken, mut first) = (0, [0; HEADER_BYTES + PREFIX_BYTES]);
        let mut next = Some(popped);
        while let Some(mut popped) = next {
            let bytes = popped.readable().saturating_sub(HEADER_BYTES);
            if let Err(at_ns) = hub.may_send(self.port_incarnation.port, bytes, now_ns) {
                self.timer.set(at_ns, now_ns, context);
                self.popped.push_front(popped);
                self.counts.holds(now_ns);
                break;
            }
            self.counts.passes(now_ns);
            self.pass(&mut hub, &mut popped, &mut first, now_ns);
            self.ring.push(popped, 0);
            taken += 1;
            next = if taken < BATCH && !hub.is_spent() { self.next() } else { None };
        }
        if taken > 0 {
            // Receivers first: they wait for it.
            hub.flush(context);
        }
        taken
    }

    #[inline]
    fn send(
        &self,
        hub: &mut Hub,
        header: &[u8; HEADER_BYTES],
        prefix: &[u8],
        body: &Buffers,
        now_ns: u64,
    ) {
        let ingress_frame = IngressFrame { header, prefix, body, may: &self.port_incarnation.may };
        let refused = hub.forward(self.port_incarnation.port, &ingress_frame, now_ns);
        self.counts.sends(counted(prefix.len() + body.len()), refused);
    }

    /// It does not even have a header.
    #[cold]
    fn refuse(&self, hub: &mut Hub) {
        self.counts.sends(0, Some(Reason::ShortHeader));
        hub.refuse(self.port_incarnation.port, Reason::ShortHeader);
    }
}

impl ReactorQueue for Transmit {
    /// At most what was popped and not passed on is in flight between turns.
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
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        let now_ns = context.now_ns();
        self.timer.look(context);
        // A look that finds nothing is made again and again, and is short.
        let taken = self.next().map_or(0, |popped| self.batch(popped, now_ns, context));
        // Also when nothing was found: the ring may be broken, or a hole.
        self.ring.publish(context);
        if taken > 0 { PollOutcome::Busy } else { PollOutcome::Idle }
    }

    fn on_runnable(&mut self) {
        self.ring.queue.suppress();
    }

    fn arm(&mut self) -> bool {
        // With something held only the timer brings us on: a turn that ended for others was busy.
        self.popped.is_empty() && self.ring.queue.arm()
    }

    fn always_polls(&self) -> bool {
        self.kickless && self.popped.is_empty() && !self.ring.queue.failed()
    }

    fn polling(&self) -> Option<&PollControl> {
        Some(&self.counts.poll_control)
    }

    fn waits_for(&self) -> WaitTarget {
        // Frames are never under way: either the guest brings the next one, or the timer does.
        if !self.popped.is_empty() || self.ring.queue.failed() {
            WaitTarget::Event
        } else {
            WaitTarget::Driver
        }
    }
}

impl Drop for Transmit {
    /// Its reactor may end before it was stopped.
    fn drop(&mut self) {
        self.let_go();
    }
}

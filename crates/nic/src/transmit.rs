//! Transmit queue of a guest.
//!
//! Frames are popped in batches, so that their first bytes are prefetched before they are read. A
//! port may have a rate limit. A frame that may not pass yet waits, with all frames popped after
//! it, and a timer expires when it may pass. The guest waits too, and no frame is dropped because
//! of the limit.

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
use crate::ring::{AHEAD, FETCHED_BYTES, FaultReporter, InOrderRing, ReactorQueue, WHOLE_BYTES};
use crate::timer::Timer;

/// Frames that are processed before other pollers run.
const BATCH: usize = 64;

/// Buffer for the bytes that are parsed.
type FramePrefix = [u8; HEADER_BYTES + PREFIX_BYTES];

/// Transmit queue on its reactor.
pub(crate) struct Transmit {
    ring: InOrderRing,
    hub: Rc<RefCell<Hub>>,
    port_incarnation: PortIncarnation,
    /// True if the driver sends no kicks, so that the queue must be polled.
    kickless: bool,
    /// Popped frames that are not forwarded yet, oldest first. Between turns these are throttled,
    /// or wait while other pollers run.
    popped: VecDeque<Popped>,
    /// Bytes of a piece after those that are copied first.
    body: Buffers,
    timer: Timer,
    counts: Arc<QueueCounts>,
}

impl Transmit {
    pub(crate) fn new(
        port_incarnation: PortIncarnation,
        start: QueueStart,
        counts: Arc<QueueCounts>,
        fault_reporter: FaultReporter,
        hub: Rc<RefCell<Hub>>,
        kickless: bool,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let ring = InOrderRing::new(port_incarnation.port, start, fault_reporter, context)?;
        let timer = Timer::new(context);
        let (popped, body) = (VecDeque::with_capacity(AHEAD), Buffers::with_capacity(1));
        Ok(Self { ring, hub, port_incarnation, kickless, popped, body, timer, counts })
    }

    /// Abandons the popped frames that are not forwarded; returns their number.
    fn abandon_popped(&mut self) -> u16 {
        let unsent = self.popped.len();
        self.popped.drain(..).for_each(Popped::abandon);
        self.body.clear();
        // At most AHEAD.
        unsent as u16
    }

    /// Returns the next frame. Pops more if none is left.
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

    /// Copies the bytes to be parsed to private memory, and forwards the frame.
    fn pass(&mut self, hub: &mut Hub, popped: &mut Popped, first: &mut FramePrefix, now_ns: u64) {
        let bytes = popped.readable();
        match popped {
            Popped::Piece(single_buffer) => {
                let queue = &self.ring.queue;
                let Some((header, prefix)) = queue.read_single(single_buffer, first) else {
                    return self.refuse(hub, Reason::ShortHeader);
                };
                let front = HEADER_BYTES + prefix.len();
                if bytes == front {
                    return self.send(hub, header, prefix, &Buffers::default(), now_ns);
                }
                // A few bytes were copied first.
                queue.show(single_buffer, front as u32, &mut self.body);
                self.send(hub, header, prefix, &self.body, now_ns);
            }
            Popped::Chain(chain) => {
                let body = &mut chain.readable;
                let copied = body.peek(first);
                body.advance(copied);
                let first = first.get(..copied).unwrap_or_default();
                let Some((header, prefix)) = first.split_first_chunk() else {
                    let is_outside = self.ring.report_outside(chain);
                    let reason =
                        if is_outside { Reason::OutsideMemory } else { Reason::ShortHeader };
                    return self.refuse(hub, reason);
                };
                self.send(hub, header, prefix, body, now_ns);
            }
        }
    }

    /// Forwards a batch that begins with this frame, as far as permitted; returns the number of
    /// frames.
    #[inline]
    fn batch(&mut self, popped: Popped, now_ns: u64, context: &mut Context<'_>) -> usize {
        let hub = Rc::clone(&self.hub);
        let mut hub = hub.borrow_mut();
        // Each frame overwrites it as far as its bytes reach.
        let (mut taken, mut first) = (0, [0; HEADER_BYTES + PREFIX_BYTES]);
        let mut next = Some(popped);
        while let Some(mut popped) = next {
            let bytes = popped.readable().saturating_sub(HEADER_BYTES);
            if let Err(at_ns) = hub.may_send(self.port_incarnation.port, bytes, now_ns) {
                self.timer.set(at_ns, now_ns, context);
                self.popped.push_front(popped);
                self.counts.throttle(now_ns);
                break;
            }
            self.counts.unthrottle(now_ns);
            self.pass(&mut hub, &mut popped, &mut first, now_ns);
            self.ring.push(popped, 0);
            taken += 1;
            next = if taken < BATCH && !hub.is_spent() { self.next() } else { None };
        }
        if taken > 0 {
            // Receivers first: they wait for the frames.
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
        self.counts.count_sent(counted(prefix.len() + body.len()), refused);
    }

    /// Counts a frame without even a header.
    #[cold]
    fn refuse(&self, hub: &mut Hub, reason: Reason) {
        self.counts.count_sent(0, Some(reason));
        hub.refuse(self.port_incarnation.port, reason);
    }
}

impl ReactorQueue for Transmit {
    /// Stops the queue. Between turns, at most the popped and unforwarded frames are in flight.
    fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        self.ring.publish(context);
        let unsent = self.abandon_popped();
        let next = self.ring.queue.next_avail().wrapping_sub(unsent);
        self.ring.queue.fail();
        next
    }

    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.abandon_popped();
        self.ring.set_memory(table)
    }

    fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>) {
        self.ring.set_call(call, context);
    }
}

impl Poller for Transmit {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        let now_ns = context.now_ns();
        self.timer.poll(context);
        // A poll without frames is frequent and must be short.
        let taken = self.next().map_or(0, |popped| self.batch(popped, now_ns, context));
        // Even if no frame was found: the ring may be broken, or its memory truncated.
        self.ring.publish(context);
        if taken > 0 { PollOutcome::Busy } else { PollOutcome::Idle }
    }

    fn on_runnable(&mut self) {
        self.ring.queue.suppress();
    }

    fn arm(&mut self) -> bool {
        // With throttled frames only the timer makes progress: a turn that ended for other pollers
        // was busy.
        self.popped.is_empty() && self.ring.queue.arm()
    }

    fn always_polls(&self) -> bool {
        self.kickless && self.popped.is_empty() && !self.ring.queue.failed()
    }

    fn polling(&self) -> Option<&PollControl> {
        Some(&self.counts.poll_control)
    }

    fn waits_for(&self) -> WaitTarget {
        // Frames are never in flight: either the guest submits the next one, or the timer expires.
        if !self.popped.is_empty() || self.ring.queue.failed() {
            WaitTarget::Event
        } else {
            WaitTarget::Driver
        }
    }
}

impl Drop for Transmit {
    /// Abandons the frames if the reactor ends before the queue was stopped.
    fn drop(&mut self) {
        self.abandon_popped();
    }
}

//! Receive queue of a guest.
//!
//! A guest posts buffers, and frames come at any time. So the guest need not kick, unless there
//! were too few buffers: frames then wait in the backlog until it does. Buffers are popped in
//! batches and stored, in order, until frames need them.

mod copy;
mod poller;

use std::collections::VecDeque;
use std::sync::Arc;

use memory::{Buffers, Table};
use net::Reason;
use reactor::{Context, PollerId};
use virtq::{Popped, QueueStart, RingError, UsedEventTracker};

use crate::backlog::Backlog;
use crate::consumption::ConsumptionCounter;
use crate::frame_sink::{EgressFrame, FrameSink};
use crate::hub::PIECE_BYTES;
use crate::incarnation::PortIncarnation;
use crate::queue_counts::QueueCounts;
use crate::residence::ResidenceBatch;
use crate::ring::{FaultReporter, InOrderRing};
pub(crate) use poller::ReceivePoller;

/// Most waiting frames that are delivered in one turn.
const TURN_FRAMES: usize = 64;
/// Most bytes of these, which the last frame may exceed; each memory piece counts additionally.
const TURN_BYTES: usize = 256 << 10;

/// Receive queue, as its hub uses it.
pub(crate) struct Receive {
    ring: InOrderRing,
    /// Popped buffers that are not used yet, oldest first.
    stock: VecDeque<Popped>,
    /// Bytes that these buffers hold.
    stocked: usize,
    /// Piece that is being written.
    place: Buffers,
    /// True if a frame may be spread over several chains.
    mergeable: bool,
    /// Frames that wait for buffers. No later frame overtakes them.
    backlog: Backlog,
    /// Reasons of dropped frames that had waited, and that the port has counted as received.
    lost: Vec<Reason>,
    /// Poller that runs while frames wait. `None` without kicks: no event would run it, so no frame
    /// waits.
    poller: Option<PollerId>,
    counts: Arc<QueueCounts>,
    residence: ResidenceBatch,
    consumption_counter: Arc<ConsumptionCounter>,
    /// Guest's reports of consumed buffers.
    used_event_tracker: UsedEventTracker,
}

impl Receive {
    pub(crate) fn new(
        port_incarnation: PortIncarnation,
        start: QueueStart,
        counts: Arc<QueueCounts>,
        consumption_counter: Arc<ConsumptionCounter>,
        fault_reporter: FaultReporter,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let stock = VecDeque::with_capacity(start.ring.size.into());
        let kicks = start.kick.is_some();
        let ring = InOrderRing::new(port_incarnation.port, start, fault_reporter, context)?;
        counts.start(context.reactor());
        let (mergeable, residence) = (port_incarnation.mergeable, ResidenceBatch::default());
        let (place, backlog) = (Buffers::with_capacity(1), Backlog::default());
        let poller = if kicks { context.poller() } else { None };
        Ok(Self {
            ring,
            stock,
            stocked: 0,
            place,
            mergeable,
            backlog,
            lost: Vec::new(),
            poller,
            counts,
            residence,
            consumption_counter,
            used_event_tracker: UsedEventTracker::default(),
        })
    }

    /// Abandons the popped buffers that are not used; returns their number.
    fn abandon_popped(&mut self) -> u16 {
        let unused = self.stock.len();
        self.stock.drain(..).for_each(Popped::abandon);
        self.place.clear();
        self.stocked = 0;
        // At most the size of the ring.
        unused as u16
    }

    /// Adds a frame without buffers to the backlog; returns false if it may not wait.
    #[cold]
    fn hold(&mut self, frame: &EgressFrame<'_>) -> bool {
        let holds = self.poller.is_some() && self.backlog.hold(frame);
        if holds {
            self.consumption_counter.waits();
            self.counts.waits(self.backlog.len());
        }
        holds
    }

    /// Counts the outcome of a frame.
    fn count(
        &mut self,
        frame: &EgressFrame<'_>,
        outcome: Result<(), Reason>,
    ) -> Result<(), Reason> {
        self.counts.count_received(frame.bytes(), outcome);
        if outcome.is_ok() {
            self.residence.add(frame.since_ns);
        }
        outcome
    }

    /// Delivers waiting frames, as far as there are buffers and one turn permits. Returns whether
    /// there is something to publish. A frame that has waited too long is dropped, and so is one
    /// that blocks others although there are buffers.
    fn deliver(&mut self, now_ns: u64) -> bool {
        let mut backlog = std::mem::take(&mut self.backlog);
        let (mut frames, mut bytes, mut returned) = (0, 0, false);
        while frames < TURN_FRAMES && bytes < TURN_BYTES {
            let is_old = backlog.is_old(now_ns);
            let stalls = backlog.stalls_at_ns() <= now_ns;
            let Some(frame) = backlog.first() else { break };
            let mut more = 0;
            let outcome =
                if is_old { Err(Reason::NoBuffer) } else { self.copy_frame(&frame, &mut more) };
            let is_stuck = stalls && !self.stock.is_empty();
            if outcome == Err(Reason::NoBuffer) && !is_old && !is_stuck {
                // The guest must see the buffers that it gets back.
                returned = more > 0;
                break;
            }
            (frames, bytes) = (frames + 1, bytes + frame.bytes() + more * PIECE_BYTES);
            if let Err(reason) = self.count(&frame, outcome) {
                self.lost.push(reason);
            }
            backlog.pass(now_ns);
        }
        if frames > 0 {
            self.counts.still_waits(backlog.len());
        }
        if frames > 0 && backlog.is_empty() {
            self.consumption_counter.backlog_drained();
        }
        self.backlog = backlog;
        frames > 0 || returned
    }

    /// Drops all waiting frames.
    fn forget(&mut self) {
        for _ in 0..std::mem::take(&mut self.backlog).len() {
            self.counts.count_received(0, Err(Reason::ReceiverClosed));
            self.lost.push(Reason::ReceiverClosed);
        }
        self.consumption_counter.backlog_drained();
        self.counts.still_waits(0);
    }

    /// Ends the batch and publishes its frames to the guest.
    fn show(&mut self, context: &mut Context<'_>) {
        self.ring.publish(context);
        self.residence.end(context.now_ns(), &self.counts.residence);
    }

    /// Stops the queue; returns the index at which a successor continues.
    fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        self.show(context);
        let unused = self.abandon_popped();
        // A failed ring accepts nothing more.
        let next = self.ring.queue.next_avail().wrapping_sub(unused);
        self.ring.queue.fail();
        self.counts.stop();
        next
    }

    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.abandon_popped();
        self.ring.set_memory(table)
    }
}

impl Drop for Receive {
    /// Abandons the buffers if the reactor ends before the queue was stopped.
    fn drop(&mut self) {
        self.abandon_popped();
    }
}

impl FrameSink for Receive {
    fn deliver(&mut self, frame: &EgressFrame<'_>, more: &mut usize) -> Result<(), Reason> {
        // Waiting frames come first.
        let first = if self.backlog.is_empty() {
            self.copy_frame(frame, more)
        } else {
            Err(Reason::NoBuffer)
        };
        if first == Err(Reason::NoBuffer) && self.hold(frame) {
            return Ok(());
        }
        self.count(frame, first)
    }

    fn flush(&mut self, context: &mut Context<'_>) {
        self.show(context);
        if let Some(poller) = self.poller
            && (!self.backlog.is_empty() || self.consumption_counter.is_asked())
        {
            // From now on the poller runs.
            context.with_poller(poller, |poller: &mut ReceivePoller, _| poller.begin());
        }
    }

    fn poll_consumption(&mut self) -> bool {
        let Self { consumption_counter, used_event_tracker, ring, .. } = self;
        consumption_counter.is_asked()
            && consumption_counter.update_consumed(
                ring.queue.unconsumed(consumption_counter.given(), used_event_tracker).into(),
            )
    }
}

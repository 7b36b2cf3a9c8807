//! A receive queue: what a guest gets.
//!
//! A guest posts buffers and frames come whenever they come, so the guest need not kick, unless there
//! were too few: frames wait in the backlog then until it does. Buffers are popped some at a time, and
//! kept until frames need them, in their order.

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
use crate::ring::{FaultHandler, InOrderRing};
pub(crate) use poller::ReceivePoller;

/// Frames that waited and are given in one turn, at most.
const TURN_FRAMES: usize = 64;
/// Their bytes, of which the last one may have more; a piece of memory costs as much as some.
const TURN_BYTES: usize = 256 << 10;

/// A receive queue, as its hub has it.
pub(crate) struct Receive {
    ring: InOrderRing,
    /// Popped, and not yet used; oldest first.
    stock: VecDeque<Popped>,
    /// Bytes that those take.
    stocked: usize,
    /// The piece that is written.
    place: Buffers,
    /// A frame may be spread over several chains.
    mergeable: bool,
    /// Frames that wait for buffers. Nothing overtakes them.
    backlog: Backlog,
    /// Why frames were lost that had waited, and that the port has counted as got.
    lost: Vec<Reason>,
    /// Its poller, which is asked while frames wait. Without kicks nobody would ask it: nothing waits.
    poller: Option<PollerId>,
    counts: Arc<QueueCounts>,
    residence: ResidenceBatch,
    consumption_counter: Arc<ConsumptionCounter>,
    /// What the guest has told of what it takes.
    used_event_tracker: UsedEventTracker,
}

impl Receive {
    pub(crate) fn new(
        port_incarnation: PortIncarnation,
        start: QueueStart,
        counts: Arc<QueueCounts>,
        consumption_counter: Arc<ConsumptionCounter>,
        fault: FaultHandler,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let stock = VecDeque::with_capacity(start.ring.size.into());
        let kicks = start.kick.is_some();
        let ring = InOrderRing::new(port_incarnation.port, start, fault, context)?;
        counts.begins(context.reactor());
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

    /// Gives up what was popped and not used; returns how many buffers that were.
    fn let_go(&mut self) -> u16 {
        let unused = self.stock.len();
        self.stock.drain(..).for_each(Popped::abandon);
        self.place.clear();
        self.stocked = 0;
        // At most the ring's size.
        unused as u16
    }

    /// Has a frame wait for which there are no buffers; false: it may not.
    #[cold]
    fn hold(&mut self, frame: &EgressFrame<'_>) -> bool {
        let holds = self.poller.is_some() && self.backlog.hold(frame);
        if holds {
            self.consumption_counter.waits();
            self.counts.waits(self.backlog.len());
        }
        holds
    }

    /// Counts what came of a frame.
    fn count(
        &mut self,
        frame: &EgressFrame<'_>,
        outcome: Result<(), Reason>,
    ) -> Result<(), Reason> {
        self.counts.gets(frame.bytes(), outcome);
        if outcome.is_ok() {
            self.residence.add(frame.since_ns);
        }
        outcome
    }

    /// Gives the guest what waits, as far as there are buffers for it and as much as one turn may; whether
    /// there was any of that. What has waited for too long is lost, and so is what holds up others although
    /// there are buffers.
    fn deliver(&mut self, now_ns: u64) -> bool {
        let mut backlog = std::mem::take(&mut self.backlog);
        let (mut frames, mut bytes) = (0, 0);
        while frames < TURN_FRAMES && bytes < TURN_BYTES {
            let is_old = backlog.is_old(now_ns);
            let stalls = backlog.stalls_at_ns() <= now_ns;
            let Some(frame) = backlog.first() else { break };
            let mut more = 0;
            let outcome =
                if is_old { Err(Reason::NoBuffer) } else { self.copy_frame(&frame, &mut more) };
            let is_stuck = stalls && !self.stock.is_empty();
            if outcome == Err(Reason::NoBuffer) && !is_old && !is_stuck {
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
            self.consumption_counter.waits_no_more();
        }
        self.backlog = backlog;
        frames > 0
    }

    /// Gives up what waits.
    fn forget(&mut self) {
        for _ in 0..std::mem::take(&mut self.backlog).len() {
            self.counts.gets(0, Err(Reason::ReceiverClosed));
            self.lost.push(Reason::ReceiverClosed);
        }
        self.consumption_counter.waits_no_more();
        self.counts.still_waits(0);
    }

    /// The batch is over: its guest sees what it got.
    fn show(&mut self, context: &mut Context<'_>) {
        self.ring.publish(context);
        self.residence.end(context.now_ns(), &self.counts.residence);
    }

    /// Takes nothing more; returns where a successor goes on.
    fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        self.show(context);
        let unused = self.let_go();
        // A ring that has failed takes nothing more.
        let next = self.ring.queue.next_avail().wrapping_sub(unused);
        self.ring.queue.fail();
        self.counts.ends();
        next
    }

    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.let_go();
        self.ring.set_memory(table)
    }
}

impl Drop for Receive {
    /// Its reactor may end before it was stopped.
    fn drop(&mut self) {
        self.let_go();
    }
}

impl FrameSink for Receive {
    fn deliver(&mut self, frame: &EgressFrame<'_>, more: &mut usize) -> Result<(), Reason> {
        // What waits is first.
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
            // It is asked from now on.
            context.with_poller(poller, |poller: &mut ReceivePoller, _| poller.begin());
        }
    }

    fn poll_consumption(&mut self) -> bool {
        let Self { consumption_counter, used_event_tracker, ring, .. } = self;
        consumption_counter.is_asked()
            && consumption_counter.settles(
                ring.queue.unconsumed(consumption_counter.given(), used_event_tracker).into(),
            )
    }
}

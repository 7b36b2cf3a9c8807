//! A receive queue: what a guest gets.
//!
//! A guest posts buffers and frames come whenever they come, so the guest need not kick, unless there
//! were too few: frames wait in the backlog then until it does. Buffers are popped some at a time, and
//! kept until frames need them, in their order.

mod poller;

use std::collections::VecDeque;
use std::sync::Arc;

use memory::{Buffers, Reader, Table};
use net::Reason;
use net::header::HEADER_BYTES;
use reactor::{Context, PollerId};
use virtq::{Popped, QueueStart, RingError, Told};

use crate::backlog::Backlog;
use crate::life::Life;
use crate::outlet::{Outlet, Ready};
use crate::queue_counts::QueueCounts;
use crate::residence::Residence;
use crate::ring::{FETCHED_BYTES, Fault, Ring, WHOLE_BYTES};
use crate::taken::Taken;
pub(crate) use poller::ReceivePoller;

/// Frames that waited and are given in one turn, at most.
const TURN_FRAMES: usize = 64;
/// Their bytes, of which the last one may have more.
const TURN_BYTES: usize = 256 << 10;

/// A receive queue, as its hub has it.
pub(crate) struct Receive {
    ring: Ring,
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
    residence: Residence,
    taken: Arc<Taken>,
    /// What the guest has told of what it takes.
    told: Told,
}

impl Receive {
    pub(crate) fn new(
        life: Life,
        start: QueueStart,
        counts: Arc<QueueCounts>,
        taken: Arc<Taken>,
        fault: Fault,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let stock = VecDeque::with_capacity(start.ring.size.into());
        let kicks = start.kick.is_some();
        let ring = Ring::new(life.port, start, fault, context)?;
        counts.begins(context.reactor());
        let (mergeable, residence) = (life.mergeable, Residence::default());
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
            taken,
            told: Told::default(),
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

    /// How many buffers a frame of so many bytes takes, header included, for which one is too small; they
    /// are in stock then. A frame for which there is too little costs no look at what is in stock.
    fn collect(&mut self, bytes: usize) -> Result<usize, Reason> {
        if !self.mergeable {
            return Err(Reason::SmallBuffer);
        }
        while self.stocked < bytes {
            let restocked = self.restock();
            if restocked == Err(Reason::NoBuffer) && self.is_full() {
                return Err(Reason::SmallBuffer);
            }
            restocked?;
        }
        let mut room = 0;
        let buffers = self.stock.iter().take_while(|popped| {
            let goes_in = room < bytes;
            room += popped.writable();
            goes_in
        });
        Ok(buffers.count())
    }

    /// Has a frame wait for which there are no buffers; false: it may not.
    #[cold]
    fn hold(&mut self, frame: &Ready<'_>) -> bool {
        let holds = self.poller.is_some() && self.backlog.hold(frame);
        if holds {
            self.taken.waits();
            self.counts.waits(self.backlog.len());
        }
        holds
    }

    /// Every entry of the ring is in stock: the guest cannot post another one before it gets something.
    fn is_full(&self) -> bool {
        self.stock.len() >= self.ring.queue.size().into()
    }

    /// Counts what came of a frame.
    fn count(&mut self, frame: &Ready<'_>, outcome: Result<(), Reason>) -> Result<(), Reason> {
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
            let outcome = if is_old { Err(Reason::NoBuffer) } else { self.put(&frame) };
            let is_stuck = stalls && !self.stock.is_empty();
            if outcome == Err(Reason::NoBuffer) && !is_old && !is_stuck {
                break;
            }
            (frames, bytes) = (frames + 1, bytes + frame.bytes());
            if let Err(reason) = self.count(&frame, outcome) {
                self.lost.push(reason);
            }
            backlog.pass(now_ns);
        }
        if frames > 0 {
            self.counts.still_waits(backlog.len());
        }
        if frames > 0 && backlog.is_empty() {
            self.taken.waits_no_more();
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
        self.taken.waits_no_more();
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

    /// Copies a frame to the guest's buffers.
    fn put(&mut self, frame: &Ready<'_>) -> Result<(), Reason> {
        if self.ring.queue.failed() {
            return Err(Reason::ReceiverClosed);
        }
        let bytes = HEADER_BYTES + frame.bytes();
        if self.stock.is_empty() {
            // From its first place on again: few of so many are in use, and those are in the cache.
            self.stock.clear();
            self.restock()?;
        }
        let fits = self.stock.front().is_some_and(|popped| popped.writable() >= bytes);
        if fits && let Some(popped) = self.stock.pop_front() {
            self.put_whole(frame, popped, bytes);
            return Ok(());
        }
        self.put_spread(frame, bytes)
    }

    /// Copies a frame to one buffer, which it fits into: so many bytes with its header.
    #[inline]
    fn put_whole(&mut self, frame: &Ready<'_>, mut popped: Popped, bytes: usize) {
        self.stocked -= popped.writable();
        if bytes > FETCHED_BYTES
            && let Some(next) = self.stock.front()
        {
            // One that follows is likely to be as large.
            self.ring.queue.fetch_more::<HEADER_BYTES>(next, bytes.min(WHOLE_BYTES));
        }
        let written = match &mut popped {
            Popped::Piece(piece) => {
                let queue = &self.ring.queue;
                queue.write_piece(piece, &frame.header, frame.head, frame.body).unwrap_or(0)
            }
            Popped::Chain(chain) => {
                let mut front = [&frame.header[..], frame.head];
                spread(&mut front, &mut frame.body.reader(), &mut chain.writable)
            }
        };
        // A frame has at most net::frame::FRAME_MAX bytes.
        self.ring.push(popped, written as u32);
        self.taken.gives(1);
    }

    /// Copies a frame to as many buffers as it takes.
    #[inline(never)]
    fn put_spread(&mut self, frame: &Ready<'_>, bytes: usize) -> Result<(), Reason> {
        let buffers = self.collect(bytes)?;
        let mut header = frame.header;
        if let Some(count) = header.last_chunk_mut() {
            // A ring has no more of them than fit.
            *count = (buffers as u16).to_le_bytes();
        }
        let mut front = [&header[..], frame.head];
        let mut body = frame.body.reader();
        for mut popped in self.stock.drain(..buffers) {
            self.stocked -= popped.writable();
            let room = popped.writable();
            let place = match &mut popped {
                Popped::Piece(piece) if room > 0 => {
                    self.ring.queue.show(piece, 0, &mut self.place);
                    &mut self.place
                }
                // It is for us to read: nothing fits.
                Popped::Piece(_) => {
                    self.place.clear();
                    &mut self.place
                }
                Popped::Chain(chain) => &mut chain.writable,
            };
            let written = spread(&mut front, &mut body, place);
            self.ring.push(popped, written as u32);
        }
        self.taken.gives(buffers as u64);
        Ok(())
    }

    /// Pops one at least, and some for the next frames. Of a ring that breaks while it does nothing is
    /// shown to the guest any more.
    fn restock(&mut self) -> Result<(), Reason> {
        let before = self.stock.len();
        self.ring.pop_many(FETCHED_BYTES, &mut self.stock);
        if self.ring.queue.failed() {
            return Err(Reason::ReceiverClosed);
        }
        self.stocked += self.stock.range(before..).map(Popped::writable).sum::<usize>();
        if self.stock.len() > before { Ok(()) } else { Err(Reason::NoBuffer) }
    }
}

/// Copies what fits of the bytes before a body, and of that, to a buffer; returns how much that is.
fn spread(front: &mut [&[u8]; 2], body: &mut Reader<'_>, place: &mut Buffers) -> usize {
    let mut written = 0;
    for bytes in front {
        let count = place.write(bytes);
        place.advance(count);
        *bytes = bytes.get(count..).unwrap_or_default();
        written += count;
    }
    written + body.copy_to(place)
}

impl Drop for Receive {
    /// Its reactor may end before it was stopped.
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Outlet for Receive {
    fn give(&mut self, frame: &Ready<'_>) -> Result<(), Reason> {
        // What waits is first.
        let first = if self.backlog.is_empty() { self.put(frame) } else { Err(Reason::NoBuffer) };
        if first == Err(Reason::NoBuffer) && self.hold(frame) {
            return Ok(());
        }
        self.count(frame, first)
    }

    fn flush(&mut self, context: &mut Context<'_>) {
        self.show(context);
        if let Some(poller) = self.poller
            && (!self.backlog.is_empty() || self.taken.is_asked())
        {
            // It is asked from now on.
            context.with_poller(poller, |poller: &mut ReceivePoller, _| poller.begin());
        }
    }

    fn look(&mut self) -> bool {
        let Self { taken, told, ring, .. } = self;
        taken.is_asked() && taken.settles(ring.queue.untaken(taken.given(), told).into())
    }
}

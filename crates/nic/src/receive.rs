//! A receive queue: what a guest gets.
//!
//! A guest posts buffers and frames come whenever they come, so nothing ever waits here and the
//! guest need not kick. Buffers that were popped for a frame that then did not fit are kept for the
//! next one, in their order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use memory::Table;
use net::Reason;
use net::header::HEADER_BYTES;
use reactor::{Context, Poller, Turn};
use virtq::{Chain, QueueStart, RingError};

use crate::life::Life;
use crate::outlet::{Outlet, Ready};
use crate::queue_counts::QueueCounts;
use crate::residence::Residence;
use crate::ring::{Fault, Ring};
use crate::taken::Taken;

/// A receive queue, as its hub has it.
pub(crate) struct Receive {
    ring: Ring,
    /// Popped, and not yet used; oldest first.
    stock: VecDeque<Chain>,
    /// Bytes that those take.
    stocked: usize,
    /// A frame may be spread over several chains.
    mergeable: bool,
    counts: Arc<QueueCounts>,
    residence: Residence,
    taken: Arc<Taken>,
}

/// Its life on the reactor. It never has anything to do by itself.
pub(crate) struct ReceivePoller(pub(crate) Rc<RefCell<Receive>>);

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
        let ring = Ring::new(life.port, start, fault, context)?;
        counts.begins(context.reactor());
        let (mergeable, residence) = (life.mergeable, Residence::default());
        Ok(Self { ring, stock, stocked: 0, mergeable, counts, residence, taken })
    }

    /// Ends; returns where a successor goes on, which is the used index.
    pub(crate) fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        self.ring.publish(context);
        let unused = self.let_go();
        // A ring that has failed takes nothing more.
        let next = self.ring.queue.next_avail().wrapping_sub(unused);
        self.ring.queue.fail();
        self.counts.ends();
        next
    }

    pub(crate) fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.let_go();
        self.ring.set_memory(table)
    }

    pub(crate) fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>) {
        self.ring.set_call(call, context);
    }

    /// Gives up what was popped and not used; returns how many chains that were.
    fn let_go(&mut self) -> u16 {
        let unused = self.stock.len();
        self.stock.drain(..).for_each(Chain::abandon);
        self.stocked = 0;
        // At most the ring's size.
        unused as u16
    }

    /// How many chains a frame of so many bytes takes, header included; they are in stock then. A
    /// frame for which there is too little costs no look at what is in stock.
    fn collect(&mut self, bytes: usize) -> Result<usize, Reason> {
        if !self.mergeable {
            if self.stock.is_empty() {
                self.restock()?;
            }
            let room = self.stock.front().map_or(0, |chain| chain.writable.len());
            return if room < bytes { Err(Reason::SmallBuffer) } else { Ok(1) };
        }
        while self.stocked < bytes {
            self.restock()?;
        }
        let mut room = 0;
        let chains = self.stock.iter().take_while(|chain| {
            let goes_in = room < bytes;
            room += chain.writable.len();
            goes_in
        });
        Ok(chains.count())
    }

    /// Copies a frame to the guest's buffers.
    fn put(&mut self, frame: &Ready<'_>) -> Result<(), Reason> {
        if self.ring.queue.failed() {
            return Err(Reason::ReceiverClosed);
        }
        let chains = self.collect(HEADER_BYTES + frame.bytes())?;
        let mut header = frame.header;
        if let Some(count) = header.last_chunk_mut() {
            // A ring has no more chains than fit.
            *count = (chains as u16).to_le_bytes();
        }
        let mut front = [&header[..], frame.head];
        let mut body = frame.body.reader();
        for mut chain in self.stock.drain(..chains) {
            self.stocked -= chain.writable.len();
            let mut written = 0;
            for bytes in &mut front {
                let count = chain.writable.write(bytes);
                chain.writable.advance(count);
                *bytes = bytes.get(count..).unwrap_or_default();
                written += count;
            }
            written += body.copy_to(&chain.writable);
            self.ring.queue.push(chain, written as u32);
        }
        self.taken.gives(chains as u64);
        Ok(())
    }

    fn restock(&mut self) -> Result<(), Reason> {
        let chain = self.ring.pop().ok_or(Reason::NoBuffer)?;
        self.stocked += chain.writable.len();
        self.stock.push_back(chain);
        Ok(())
    }
}

impl Drop for Receive {
    /// Its reactor may end before it was stopped.
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Outlet for Receive {
    fn give(&mut self, frame: &Ready<'_>) -> Result<(), Reason> {
        let outcome = self.put(frame);
        self.counts.gets(frame.bytes(), outcome);
        if outcome.is_ok() {
            self.residence.add(frame.since_ns);
        }
        outcome
    }

    fn flush(&mut self, context: &mut Context<'_>) {
        self.ring.publish(context);
        self.residence.end(context.now_ns(), &self.counts.residence);
    }

    fn look(&mut self) -> bool {
        self.taken.is_asked() && self.taken.settles(self.ring.queue.untaken().into())
    }
}

impl Poller for ReceivePoller {
    fn poll(&mut self, _: &mut Context<'_>) -> Turn {
        Turn::Idle
    }

    fn wake(&mut self) {}

    fn arm(&mut self) -> bool {
        false
    }
}

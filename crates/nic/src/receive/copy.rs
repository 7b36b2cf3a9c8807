//! A frame is copied to a guest's buffers.

use memory::{Buffers, Reader};
use net::Reason;
use net::header::HEADER_BYTES;
use virtq::Popped;

use super::Receive;
use crate::frame_sink::EgressFrame;
use crate::hub::{PIECE_BYTES, TURN_BYTES};
use crate::ring::{FETCHED_BYTES, WHOLE_BYTES};

/// Pieces that a frame may be copied to, at most: what a turn may spend. A guest posts any number of
/// buffers of a byte, which cost it next to nothing, and whoever else is on the reactor waits meanwhile.
const PIECES_MAX: usize = TURN_BYTES / PIECE_BYTES;

impl Receive {
    /// How many buffers a frame of so many bytes takes, header included, for which one is too small, and of how
    /// many pieces those are; they are in stock then. A frame for which there is too little costs no look at
    /// what is in stock.
    fn collect(&mut self, bytes: usize) -> Result<(usize, usize), Reason> {
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
        let (mut room, mut buffers, mut pieces) = (0, 0, 0);
        for popped in &self.stock {
            if room >= bytes || pieces > PIECES_MAX {
                break;
            }
            room += popped.writable();
            (buffers, pieces) = (buffers + 1, pieces + pieces_of(popped));
        }
        if pieces > PIECES_MAX { Err(Reason::SmallBuffer) } else { Ok((buffers, pieces)) }
    }

    /// Every entry of the ring is in stock: the guest cannot post another one before it gets something.
    fn is_full(&self) -> bool {
        self.stock.len() >= self.ring.queue.size().into()
    }

    /// Copies a frame to the guest's buffers. Adds to `more` how many pieces more than one those were.
    #[inline]
    pub(super) fn copy_frame(
        &mut self,
        frame: &EgressFrame<'_>,
        more: &mut usize,
    ) -> Result<(), Reason> {
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
            self.put_whole(frame, popped, bytes, more);
            return Ok(());
        }
        self.put_spread(frame, bytes, more)
    }

    /// The same to one buffer, which it fits into: so many bytes with its header.
    #[inline]
    fn put_whole(
        &mut self,
        frame: &EgressFrame<'_>,
        mut popped: Popped,
        bytes: usize,
        more: &mut usize,
    ) {
        self.stocked -= popped.writable();
        if bytes > FETCHED_BYTES
            && let Some(next) = self.stock.front()
        {
            // One that follows is likely to be as large.
            self.ring.queue.fetch_more::<HEADER_BYTES>(next, bytes.min(WHOLE_BYTES));
        }
        let written = match &mut popped {
            Popped::Piece(single_buffer) => {
                let queue = &self.ring.queue;
                queue.write_piece(single_buffer, &frame.header, frame.head, frame.body).unwrap_or(0)
            }
            Popped::Chain(chain) => {
                *more += chain.writable.iovecs().len().saturating_sub(1);
                let mut front = [&frame.header[..], frame.head];
                spread(&mut front, &mut frame.body.reader(), &mut chain.writable)
            }
        };
        // A frame has at most net::frame::FRAME_MAX bytes.
        self.ring.push(popped, written as u32);
        self.consumption_counter.gives(1);
    }

    /// The same to as many buffers as it takes.
    #[inline(never)]
    fn put_spread(
        &mut self,
        frame: &EgressFrame<'_>,
        bytes: usize,
        more: &mut usize,
    ) -> Result<(), Reason> {
        let (buffers, pieces) = self.collect(bytes)?;
        *more += pieces.saturating_sub(1);
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
                Popped::Piece(single_buffer) if room > 0 => {
                    self.ring.queue.show(single_buffer, 0, &mut self.place);
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
        self.consumption_counter.gives(buffers as u64);
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

/// Pieces of memory that a buffer is, or one if there are none.
#[inline]
fn pieces_of(popped: &Popped) -> usize {
    match popped {
        Popped::Piece(_) => 1,
        Popped::Chain(chain) => chain.writable.iovecs().len().max(1),
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

//! Copies a frame to a guest's buffers.

use memory::{Buffers, Reader};
use net::Reason;
use net::header::HEADER_BYTES;
use virtq::Popped;

use super::Receive;
use crate::frame_sink::EgressFrame;
use crate::hub::{PIECE_BYTES, TURN_BYTES};
use crate::ring::{FETCHED_BYTES, WHOLE_BYTES};

/// Most pieces that a frame may be copied to: those of a turn's budget. A guest may post many
/// buffers of one byte at little cost, while other queues of the reactor wait.
const PIECES_MAX: usize = TURN_BYTES / PIECE_BYTES;

impl Receive {
    /// Returns the number of buffers, and of their pieces, that a frame of `bytes` bytes with its
    /// header takes if one buffer is too small. The buffers are in stock then. A frame for which
    /// the stock is too small costs no walk over the stock.
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

    /// Returns whether every entry of the ring is in stock: the guest cannot post another one
    /// before it receives a frame.
    fn is_full(&self) -> bool {
        self.stock.len() >= self.ring.queue.size().into()
    }

    /// Copies a frame to the guest's buffers. Adds to `more` the number of pieces beyond the first.
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
            // Begin at the first slot again: few of the many slots are used, and those are in the
            // cache.
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

    /// Copies a frame to one buffer that is large enough for its `bytes` bytes with the header.
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
            // The next frame is likely to be as large.
            self.ring.queue.fetch_more::<HEADER_BYTES>(next, bytes.min(WHOLE_BYTES));
        }
        let written = match &mut popped {
            Popped::Piece(single_buffer) => {
                let queue = &self.ring.queue;
                queue
                    .write_single(single_buffer, &frame.header, frame.head, frame.body)
                    .unwrap_or(0)
            }
            Popped::Chain(chain) => {
                *more += chain.writable.iovecs().len().saturating_sub(1);
                let mut front = [&frame.header[..], frame.head];
                spread(&mut front, &mut frame.body.reader(), &mut chain.writable)
            }
        };
        // A frame has at most net::frame::FRAME_MAX bytes.
        self.ring.push(popped, written as u32);
        self.consumption_counter.add_given(1);
    }

    /// Returns the buffers at the front of the stock that are outside memory, with nothing in them.
    /// Drivers count such a buffer as a bad frame and go on (Linux: `rx_length_errors`). Returns
    /// whether there were any.
    fn return_outside(&mut self, more: &mut usize) -> Result<bool, Reason> {
        let mut returned = 0;
        while self.stock.front().is_some_and(is_outside)
            && let Some(popped) = self.stock.pop_front()
        {
            self.ring.push(popped, 0);
            self.consumption_counter.add_given(1);
            (returned, *more) = (returned + 1, *more + 1);
            if returned > PIECES_MAX {
                return Err(Reason::OutsideMemory);
            }
            if self.stock.is_empty() {
                self.restock()?;
            }
        }
        Ok(returned > 0)
    }

    /// Copies a frame to as many buffers as it takes.
    #[inline(never)]
    fn put_spread(
        &mut self,
        frame: &EgressFrame<'_>,
        bytes: usize,
        more: &mut usize,
    ) -> Result<(), Reason> {
        if self.return_outside(more)? {
            return self.copy_frame(frame, more);
        }
        let (buffers, pieces) = self.collect(bytes)?;
        *more += pieces.saturating_sub(1);
        let mut header = frame.header;
        if let Some(count) = header.last_chunk_mut() {
            // A ring has no more buffers than fit into 16 bits.
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
                // The buffer is readable only: nothing fits.
                Popped::Piece(_) => {
                    self.place.clear();
                    &mut self.place
                }
                Popped::Chain(chain) => &mut chain.writable,
            };
            let written = spread(&mut front, &mut body, place);
            self.ring.push(popped, written as u32);
        }
        self.consumption_counter.add_given(buffers as u64);
        Ok(())
    }

    /// Pops at least one buffer, and some for the next frames. If the ring breaks meanwhile,
    /// nothing more is published to the guest.
    fn restock(&mut self) -> Result<(), Reason> {
        let before = self.stock.len();
        self.ring.pop_many(FETCHED_BYTES, &mut self.stock);
        if self.ring.queue.failed() {
            return Err(Reason::ReceiverClosed);
        }
        for popped in self.stock.range_mut(before..) {
            if let Popped::Chain(chain) = popped
                && chain.outside().is_some()
            {
                self.ring.report_outside(chain);
                // Its last byte is no place for a frame.
                chain.writable.clear();
            }
            self.stocked += popped.writable();
        }
        if self.stock.len() > before { Ok(()) } else { Err(Reason::NoBuffer) }
    }
}

/// Returns whether a buffer is outside memory.
fn is_outside(popped: &Popped) -> bool {
    matches!(popped, Popped::Chain(chain) if chain.outside().is_some())
}

/// Returns the number of memory pieces of a buffer, at least one.
#[inline]
fn pieces_of(popped: &Popped) -> usize {
    match popped {
        Popped::Piece(_) => 1,
        Popped::Chain(chain) => chain.writable.iovecs().len().max(1),
    }
}

/// Copies the front bytes and then the body to a buffer, as far as they fit; returns the number of
/// bytes.
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

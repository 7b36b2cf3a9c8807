//! Requests that lie in one piece: small frames, and the buffers that drivers post for them.
//!
//! A [`Chain`] has lists, memory that they pin, and a place of its own for both. Of one descriptor that
//! is more work than the copy of a small frame, so a queue whose chains complete in order can give
//! it out as what it is: an address and a length, checked, which [`Queue::show`] looks up again when it
//! is used.

use std::collections::VecDeque;

use memory::Buffers;

use crate::queue::free;
use crate::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor};
use crate::{Chain, Queue, RingError};

/// A request of one descriptor, all of which lies in one region of memory. It must go back by
/// [`Queue::push_piece`] to the queue that it was popped of, unless that is given up.
#[derive(Debug)]
#[must_use = "it must be completed"]
pub struct SingleBuffer {
    addr: u64,
    len: u32,
    head: u16,
    /// The device writes it; else it reads it.
    writable: bool,
}

/// What [`Queue::pop_many`] gives.
#[derive(Debug)]
#[must_use = "it must be completed"]
pub enum Popped {
    /// A request in one piece.
    Piece(SingleBuffer),
    /// Any other.
    Chain(Chain),
}

impl Popped {
    /// Bytes that the device may read.
    #[inline]
    pub fn readable(&self) -> usize {
        match self {
            Self::Piece(single_buffer) if single_buffer.writable => 0,
            Self::Piece(single_buffer) => single_buffer.len as usize,
            Self::Chain(chain) => chain.readable.len(),
        }
    }

    /// Bytes that the device may write.
    #[inline]
    pub fn writable(&self) -> usize {
        match self {
            Self::Piece(single_buffer) if single_buffer.writable => single_buffer.len as usize,
            Self::Piece(_) => 0,
            Self::Chain(chain) => chain.writable.len(),
        }
    }

    /// Gives it up without completing it: the ring failed, or is being reset.
    pub fn abandon(self) {
        if let Self::Chain(chain) = self {
            chain.abandon();
        }
    }
}

impl Queue {
    /// As [`Queue::pop`], for a queue whose chains complete in order ([`Queue::in_order`]): adds up to
    /// `most` requests to `into`, and brings the first `bytes` of each closer, of which N are the header of
    /// a frame. Returns how many.
    ///
    /// # Errors
    /// As [`Queue::pop`]; what was popped before stays.
    pub fn pop_many<const N: usize>(
        &mut self,
        (most, bytes): (usize, usize),
        into: &mut VecDeque<Popped>,
    ) -> Result<usize, RingError> {
        let mut count = 0;
        while count < most && !self.failed && self.has_work() {
            let pieces = self.pop_pieces::<N>((most - count, bytes), into);
            count += pieces;
            if pieces == 0
                && let Some(chain) = self.pop()?
            {
                chain.fetch(bytes);
                into.push_back(Popped::Chain(chain));
                count += 1;
            }
        }
        Ok(count)
    }

    /// The same up to what is no piece, or not as it should be.
    fn pop_pieces<const N: usize>(
        &mut self,
        (most, bytes): (usize, usize),
        into: &mut VecDeque<Popped>,
    ) -> usize {
        let waiting = self.avail_seen.wrapping_sub(self.next_avail);
        if waiting > self.config.size || self.inflight_log.is_some() {
            return 0;
        }
        let most = u16::try_from(most).unwrap_or(u16::MAX).min(waiting);
        let mut count = 0;
        while count < most {
            let at = self.next_avail.wrapping_add(count);
            let head = self.rings.avail_entry(at);
            self.fetch(at);
            let Some(single_buffer) = self.piece::<N>(head, bytes) else { break };
            into.push_back(Popped::Piece(single_buffer));
            count += 1;
        }
        // They complete in order: each has its place in the used ring already.
        self.rings.fetch_used(self.next_used.wrapping_add(self.in_flight), count);
        self.next_avail = self.next_avail.wrapping_add(count);
        self.in_flight += count;
        count.into()
    }

    /// Takes the request at `head`, if it is a piece and all is well with it.
    #[inline(always)]
    fn piece<const N: usize>(&mut self, head: u16, bytes: usize) -> Option<SingleBuffer> {
        let Descriptor { addr, len, flags, .. } = self.table.get(head)?;
        if flags & (DESC_NEXT | DESC_INDIRECT) != 0 || len == 0 {
            return None;
        }
        let (word, bit) = (self.busy.get_mut(usize::from(head / 64))?, 1u64 << (head % 64));
        let writable = flags & DESC_WRITE != 0;
        if *word & bit != 0 || !self.view.fetch_piece::<N>(addr, len, bytes, writable) {
            return None;
        }
        *word |= bit;
        Some(SingleBuffer { addr, len, head, writable })
    }

    /// As [`Queue::push`], for a piece.
    #[inline]
    pub fn push_piece(&mut self, single_buffer: SingleBuffer, written: u32) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if !self.failed {
            free(&mut self.busy, single_buffer.head);
            self.rings.put_used(self.next_used, single_buffer.head, written);
            self.next_used = self.next_used.wrapping_add(1);
        }
    }

    /// Copies a frame's header and first bytes out of a piece of this queue, as [`memory::View::read_frame`] does.
    /// `None`: it is shorter than the header, or for the device to write.
    #[inline]
    pub fn read_piece<'a, const N: usize>(
        &self,
        single_buffer: &SingleBuffer,
        into: &'a mut [u8],
    ) -> Option<(&'a [u8; N], &'a [u8])> {
        (!single_buffer.writable)
            .then(|| self.view.read_frame((single_buffer.addr, single_buffer.len), into))?
    }

    /// Copies a frame to a piece of this queue, as [`memory::View::write_frame`] does. `None`: it does not fit, or
    /// the piece is for the device to read.
    #[inline]
    pub fn write_piece<const N: usize>(
        &self,
        single_buffer: &SingleBuffer,
        header: &[u8; N],
        head: &[u8],
        body: &Buffers,
    ) -> Option<usize> {
        let place = (single_buffer.addr, single_buffer.len);
        single_buffer.writable.then(|| self.view.write_frame(place, header, head, body))?
    }

    /// Makes `list` what of a piece of this queue follows its first `from` bytes.
    #[inline]
    pub fn show(&self, single_buffer: &SingleBuffer, from: u32, list: &mut Buffers) {
        let addr = single_buffer.addr.wrapping_add(from.into());
        list.set_to(&self.view, addr, single_buffer.len.saturating_sub(from));
    }

    /// The first `bytes` of a request, of which N are the header of a frame, will be read or written soon: brings
    /// them closer.
    #[inline]
    pub fn fetch_more<const N: usize>(&self, popped: &Popped, bytes: usize) {
        match popped {
            Popped::Piece(single_buffer) => {
                self.view.fetch_piece::<N>(
                    single_buffer.addr,
                    single_buffer.len,
                    bytes,
                    single_buffer.writable,
                );
            }
            Popped::Chain(chain) => chain.fetch(bytes),
        }
    }
}

#[cfg(test)]
mod tests;

//! Requests of one descriptor: small frames, and the buffers that drivers post for them.
//!
//! A [`Chain`] has lists, pins their memory, and allocates space for both. For one descriptor that
//! costs more than the copy of a small frame. So a queue whose chains complete in order can return
//! the checked address and length instead. [`Queue::show`] resolves the address again when the
//! request is used.

use std::collections::VecDeque;

use memory::Buffers;

use crate::queue::free;
use crate::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor};
use crate::{Chain, Queue, RingError};

/// A request of one descriptor that lies wholly in one memory region. Its owner must return it with
/// [`Queue::push_single`] to the queue that popped it, unless that queue is no longer served.
#[derive(Debug)]
#[must_use = "it must be completed"]
pub struct SingleBuffer {
    addr: u64,
    len: u32,
    head: u16,
    /// True if the device writes the buffer; false if it reads it.
    writable: bool,
}

/// A request that [`Queue::pop_many`] returns.
#[derive(Debug)]
#[must_use = "it must be completed"]
pub enum Popped {
    /// A request of one descriptor.
    Piece(SingleBuffer),
    /// Any other request.
    Chain(Chain),
}

impl Popped {
    /// Returns the number of bytes that the device may read.
    #[inline]
    pub fn readable(&self) -> usize {
        match self {
            Self::Piece(single_buffer) if single_buffer.writable => 0,
            Self::Piece(single_buffer) => single_buffer.len as usize,
            Self::Chain(chain) => chain.readable.len(),
        }
    }

    /// Returns the number of bytes that the device may write.
    #[inline]
    pub fn writable(&self) -> usize {
        match self {
            Self::Piece(single_buffer) if single_buffer.writable => single_buffer.len as usize,
            Self::Piece(_) => 0,
            Self::Chain(chain) => chain.writable.len(),
        }
    }

    /// Drops the request without completing it, because the ring failed or is being reset.
    pub fn abandon(self) {
        if let Self::Chain(chain) = self {
            chain.abandon();
        }
    }
}

impl Queue {
    /// Pops up to `most` requests into `into` and returns their number. Prefetches the first
    /// `bytes` of each request, which begin with a frame header of N bytes. The queue must complete
    /// chains in order ([`Queue::in_order`]).
    ///
    /// # Errors
    /// As [`Queue::pop`]. Requests popped before the error stay in `into`.
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

    /// Pops requests up to the first one that is malformed or has more than one descriptor.
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
        // The requests complete in order, so their entries in the used ring are known.
        self.rings.fetch_used(self.next_used.wrapping_add(self.in_flight), count);
        self.next_avail = self.next_avail.wrapping_add(count);
        self.in_flight += count;
        count.into()
    }

    /// Takes the request at `head` if it is valid and consists of one descriptor.
    #[inline(always)]
    fn piece<const N: usize>(&mut self, head: u16, bytes: usize) -> Option<SingleBuffer> {
        let Descriptor { addr, len, flags, .. } = self.table.get(head)?;
        if flags & (DESC_NEXT | DESC_INDIRECT) != 0 || len == 0 {
            return None;
        }
        let (word, bit) = (self.busy.get_mut(usize::from(head / 64))?, 1u64 << (head % 64));
        let writable = flags & DESC_WRITE != 0;
        if *word & bit != 0 || !self.view.fetch_single::<N>(addr, len, bytes, writable) {
            return None;
        }
        *word |= bit;
        Some(SingleBuffer { addr, len, head, writable })
    }

    /// Completes a request of one descriptor, like [`Queue::push`].
    #[inline]
    pub fn push_single(&mut self, single_buffer: SingleBuffer, written: u32) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if !self.failed {
            free(&mut self.busy, single_buffer.head);
            self.rings.put_used(self.next_used, single_buffer.head, written);
            self.next_used = self.next_used.wrapping_add(1);
        }
    }

    /// Copies a frame's header and first bytes out of a buffer of this queue, like
    /// [`memory::View::read_frame`]. Returns `None` if the buffer is shorter than the header, or is
    /// for the device to write.
    #[inline]
    pub fn read_single<'a, const N: usize>(
        &self,
        single_buffer: &SingleBuffer,
        into: &'a mut [u8],
    ) -> Option<(&'a [u8; N], &'a [u8])> {
        (!single_buffer.writable)
            .then(|| self.view.read_frame((single_buffer.addr, single_buffer.len), into))?
    }

    /// Copies a frame into a buffer of this queue, like [`memory::View::write_frame`]. Returns
    /// `None` if the frame does not fit, or if the buffer is for the device to read.
    #[inline]
    pub fn write_single<const N: usize>(
        &self,
        single_buffer: &SingleBuffer,
        header: &[u8; N],
        head: &[u8],
        body: &Buffers,
    ) -> Option<usize> {
        let place = (single_buffer.addr, single_buffer.len);
        single_buffer.writable.then(|| self.view.write_frame(place, header, head, body))?
    }

    /// Sets `list` to the bytes of a buffer of this queue after its first `from` bytes.
    #[inline]
    pub fn show(&self, single_buffer: &SingleBuffer, from: u32, list: &mut Buffers) {
        let addr = single_buffer.addr.wrapping_add(from.into());
        list.set_to(&self.view, addr, single_buffer.len.saturating_sub(from));
    }

    /// Prefetches the first `bytes` of a request, which begin with a frame header of N bytes.
    #[inline]
    pub fn fetch_more<const N: usize>(&self, popped: &Popped, bytes: usize) {
        match popped {
            Popped::Piece(single_buffer) => {
                self.view.fetch_single::<N>(
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

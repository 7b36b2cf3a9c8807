//! Writes.

use ::disk::{IoError, Request, SubmitOutcome};
use ::memory::Buffers;
use ::memory::Cursor;
use reactor::Context;

use super::OverlayChannel;
use crate::pool::BATCH;
use crate::word::Word;
use crate::{BYTES, GRANULE};

/// Why a write stopped at a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It did not: all is written.
    Done,
    /// There is no free slot.
    NoSlot,
    /// The rest of the granule must be read first.
    NeedsFill,
    /// The buffers are shorter than the range.
    Short,
}

impl OverlayChannel {
    pub(super) fn submit_write(
        &mut self,
        context: &mut Context<'_>,
        request: Request,
    ) -> SubmitOutcome {
        let end = request.offset + request.len;
        let (at, stop) = self.write_memory(Some(&request.buffers), request.offset, end);
        match stop {
            Stop::Done => return SubmitOutcome::Done(request.complete(Ok(()))),
            Stop::Short => return SubmitOutcome::Done(request.complete(Err(IoError::Range))),
            Stop::NoSlot | Stop::NeedsFill => {}
        }
        let parent = self.new_parent(request.tag);
        let mut buffers = request.buffers;
        let rest = buffers.split_off((at - request.offset) as usize, Buffers::default());
        self.continue_write(context, parent, (at, end - at), Some(rest));
        self.outcome(request.tag)
    }

    /// Takes a free slot.
    #[inline]
    pub(super) fn take_slot(&mut self) -> Option<u32> {
        if self.stock.is_empty() {
            self.shared.refill(&mut self.stock, &mut self.retired, &self.waker);
        }
        self.stock.pop()
    }

    /// Notes what a write has replaced.
    #[inline]
    pub(super) fn replace(&mut self, old: Word) {
        if old.takes_space() {
            self.retired.push(old);
            if self.retired.len() >= 2 * BATCH as usize {
                self.shared.retire(&mut self.retired);
            }
        } else {
            self.shared.counters.grown.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Writes to memory as far as that needs no I/O; `None` writes zeroes. Returns the first byte that
    /// is not written, and why.
    #[inline]
    pub(super) fn write_memory(
        &mut self,
        data: Option<&Buffers>,
        offset: u64,
        end: u64,
    ) -> (u64, Stop) {
        let mut cursor = data.map(Buffers::cursor);
        let mut at = offset;
        while at < end {
            let skip = at % GRANULE;
            let len = (GRANULE - skip).min(end - at);
            let Some(slot) = self.take_slot() else { return (at, Stop::NoSlot) };
            let is_whole = len == GRANULE || skip == 0 && at + len == self.size;
            let stop = match is_whole {
                true => self.write_whole(slot, at / GRANULE, len, &mut cursor),
                false => self.write_part(slot, at / GRANULE, (skip, len), &mut cursor),
            };
            if stop != Stop::Done {
                self.stock.push(slot);
                return (at, stop);
            }
            at += len;
        }
        (at, Stop::Done)
    }

    /// Copies the guest's data into a slot that nothing else uses.
    #[inline]
    pub(super) fn store(
        &self,
        slot: u32,
        (skip, len): (u64, u64),
        cursor: &mut Option<Cursor<'_>>,
    ) -> bool {
        let memory = &self.shared.memory;
        let (at, len) = (memory.slot_at(slot) + skip as usize, len as usize);
        match cursor {
            Some(cursor) => cursor.store_to(memory.mapping(), at, len),
            None => memory.mapping().zero(at, len),
        }
    }

    #[inline]
    fn write_whole(
        &mut self,
        slot: u32,
        granule: u64,
        len: u64,
        cursor: &mut Option<Cursor<'_>>,
    ) -> Stop {
        if !self.store(slot, (0, len), cursor) {
            return Stop::Short;
        }
        self.shared.set_granule(slot, granule);
        let old = self.shared.memory.exchange(granule, Word::Slot(slot));
        self.replace(old);
        Stop::Done
    }

    /// Writes a part of a granule whose rest is in memory.
    fn write_part(
        &mut self,
        slot: u32,
        granule: u64,
        part: (u64, u64),
        cursor: &mut Option<Cursor<'_>>,
    ) -> Stop {
        let hold = self.epochs.enter();
        let stop = loop {
            let old = self.shared.memory.word(granule);
            let to = self.shared.memory.slot_at(slot);
            let copied = match old {
                Word::Slot(from) => {
                    self.memory.move_within(self.shared.memory.slot_at(from), to, BYTES)
                }
                Word::Zero => self.shared.memory.mapping().zero(to, BYTES),
                Word::Base | Word::Place(_) => break Stop::NeedsFill,
            };
            let mut from_here = *cursor;
            if !copied || !self.store(slot, part, &mut from_here) {
                break Stop::Short;
            }
            self.shared.set_granule(slot, granule);
            if self.shared.memory.exchange_if(granule, old, Word::Slot(slot)) {
                *cursor = from_here;
                self.replace(old);
                break Stop::Done;
            }
        };
        self.leave(hold);
        stop
    }

    /// Writes the rest of a request, which has a part for it.
    pub(super) fn continue_write(
        &mut self,
        context: &mut Context<'_>,
        parent: u32,
        (offset, len): (u64, u64),
        data: Option<Buffers>,
    ) {
        let end = offset + len;
        let (mut offset, mut data) = (offset, data);
        loop {
            let (at, stop) = self.write_memory(data.as_ref(), offset, end);
            let cut = (at - offset) as usize;
            data = data.map(|mut data| data.split_off(cut, Buffers::default()));
            match stop {
                Stop::Done => return self.end_part(parent, Ok(()), data.unwrap_or_default()),
                Stop::Short => {
                    return self.end_part(parent, Err(IoError::Range), Buffers::default());
                }
                Stop::NoSlot => return self.wait_for_slot(context, parent, (at, end - at), data),
                Stop::NeedsFill => {}
            }
            let len = (GRANULE - at % GRANULE).min(end - at);
            let rest = data.as_mut().map(|data| data.split_off(len as usize, Buffers::default()));
            self.add_part(parent);
            self.begin_fill(context, parent, (at, len), data);
            (offset, data) = (at + len, rest);
        }
    }
}

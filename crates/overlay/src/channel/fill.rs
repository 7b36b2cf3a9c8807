//! Writes of a part of a granule whose rest is read first.

use std::sync::atomic::Ordering;

use ::disk::{IoError, Request, RequestKind};
use ::memory::{Buffers, ThreadMapping};
use image::map::Hold;
use reactor::Context;
use rustix::io::Errno;

use super::{CANCELED, Fill, OverlayChannel, Piece, Room, Target};
use crate::word::Word;
use crate::{BYTES, GRANULE};

impl OverlayChannel {
    /// Reads a granule, to put the guest's data over it.
    pub(super) fn begin_fill(
        &mut self,
        context: &mut Context<'_>,
        parent: u32,
        (offset, len): (u64, u64),
        data: Option<Buffers>,
    ) {
        let Some(slot) = self.take_slot() else {
            return self.wait_for_slot(context, parent, (offset, len), data);
        };
        let hold = self.epochs.enter();
        let start = offset - offset % GRANULE;
        let old = self.shared.memory.word(start / GRANULE);
        let (target, from) = match old {
            Word::Base => (Target::Base, start),
            Word::Place(place) => (Target::Overflow, place.saturating_mul(GRANULE)),
            Word::Slot(_) | Word::Zero => {
                // It is in memory since the look.
                self.leave(hold);
                self.stock.push(slot);
                return self.continue_write(context, parent, (offset, len), data);
            }
        };
        let (room, hold) = match target {
            Target::Base => {
                self.leave(hold);
                (self.room_for_base(slot), None)
            }
            Target::Overflow => (Room::Slot(slot), Some(hold)),
        };
        // The base may end within the granule.
        let bytes = GRANULE.min(self.size - start);
        let mut buffers = Buffers::default();
        let (memory, at) = match &room {
            Room::Slot(slot) => (&self.memory, self.shared.memory.slot_at(*slot)),
            Room::Own(memory) => (memory, 0),
        };
        let is_inside = buffers.append_mapping(memory, at, bytes as usize);
        debug_assert!(is_inside, "slots are inside of the memory");
        let fill = Fill { parent, offset, len, data, room, old, hold };
        let tag = self.pieces.insert(Piece::Fill(fill));
        let request = Request { kind: RequestKind::Read, offset: from, len: bytes, buffers, tag };
        self.submit_piece(context, target, request);
    }

    /// Returns where a granule of the base is read to: a slot that was taken for it, or memory beside
    /// the slots. The source of the base may be gone for long, and other writes need slots meanwhile.
    fn room_for_base(&mut self, slot: u32) -> Room {
        let fills = &self.shared.base_fills;
        if fills.fetch_add(1, Ordering::Relaxed) >= self.shared.base_fills_max()
            && let Ok(memory) = ThreadMapping::private(BYTES)
        {
            fills.fetch_sub(1, Ordering::Relaxed);
            self.stock.push(slot);
            return Room::Own(memory);
        }
        Room::Slot(slot)
    }

    /// Puts the guest's data over what was read, and publishes the slot.
    pub(super) fn end_fill(
        &mut self,
        context: &mut Context<'_>,
        fill: Fill,
        outcome: Result<(), IoError>,
    ) {
        let Fill { parent, offset, len, data, room, old, hold } = fill;
        let taken = match &room {
            Room::Slot(slot) => Some(*slot),
            Room::Own(_) => None,
        };
        if taken.is_some() && hold.is_none() {
            self.shared.base_fills.fetch_sub(1, Ordering::Relaxed);
        }
        if outcome.is_err() || self.is_abandoned {
            self.leave_fill(hold);
            self.stock.extend(taken);
            let outcome = if self.is_abandoned { CANCELED } else { outcome };
            return self.end_part(parent, outcome, data.unwrap_or_default());
        }
        let Some(slot) = taken.or_else(|| self.take_slot()) else {
            // The base has the granule now. It is read again when there is a slot.
            return self.wait_for_slot(context, parent, (offset, len), data);
        };
        let (granule, skip) = (offset / GRANULE, offset % GRANULE);
        let copied = match &room {
            Room::Own(memory) => {
                memory.copy_to(0, &self.memory, self.shared.memory.slot_at(slot), BYTES)
            }
            Room::Slot(_) => true,
        };
        let mut cursor = data.as_ref().map(Buffers::cursor);
        let stored = copied && self.store(slot, (skip, len), &mut cursor);
        self.shared.set_granule(slot, granule);
        let published = stored && self.shared.memory.exchange_if(granule, old, Word::Slot(slot));
        self.leave_fill(hold);
        if published {
            self.replace(old);
            return self.end_part(parent, Ok(()), data.unwrap_or_default());
        }
        self.stock.push(slot);
        if !stored {
            let outcome = Err(IoError::Storage(Errno::IO));
            return self.end_part(parent, outcome, data.unwrap_or_default());
        }
        // Another write came first.
        self.continue_write(context, parent, (offset, len), data);
    }

    fn leave_fill(&mut self, hold: Option<Hold>) {
        match hold {
            Some(hold) => self.leave(hold),
            // Writes may wait for what this one has replaced.
            None if self.shared.has_waiting() => self.shared.retire(&mut self.retired),
            None => {}
        }
    }
}

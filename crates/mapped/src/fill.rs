//! Fills of granules: a write to a granule that has no cluster, in a format that stores whole
//! clusters.

use std::sync::Arc;

use ::disk::{IoError, Request, RequestKind};
use image::map::{Base, Kind};
use image::shared::Grant;
use memory::{Buffers, Mapping};
use reactor::Context;
use rustix::io::Errno;

use crate::channel::{MappedChannel, Target};
use crate::piece::{Fill, Phase};
use crate::read::byte_of;

impl MappedChannel {
    /// Begins to fill the granule of a grant. The rest of the piece is planned on its own.
    pub(crate) fn begin_fill(&mut self, index: usize, grant: Grant) {
        let bits = self.map.shared().map.layout().granule_bits;
        let Some(piece) = self.pieces.get(index) else { return };
        let in_granule = ((grant.granule + 1) << bits).saturating_sub(piece.offset);
        self.cut(index, in_granule);
        let hold = self.map.enter_grant();
        let Ok(memory) = Mapping::private(1 << bits).map(Arc::new) else {
            self.map.fail_grant(grant, hold);
            self.has_asked = true;
            return self.end_piece(index, Err(IoError::Storage(Errno::NOMEM)));
        };
        if let Some(piece) = self.pieces.get(index) {
            piece.holds.push(hold);
            piece.phase = Phase::Reading(Fill { grant, memory });
            self.fills.push(index);
        }
    }

    /// Starts the next step of fills.
    pub(crate) fn continue_fills(&mut self, context: &mut Context<'_>) {
        while let Some(index) = self.fills.pop() {
            let Some(piece) = self.pieces.get(index) else { continue };
            match std::mem::replace(&mut piece.phase, Phase::Planned) {
                Phase::Reading(fill) => self.read_for_fill(context, index, fill),
                Phase::Filling(fill) => self.write_fill(context, index, fill),
                other => piece.phase = other,
            }
        }
    }

    /// Reads what the granule has, unless the guest overwrites all of it.
    fn read_for_fill(&mut self, context: &mut Context<'_>, index: usize, fill: Fill) {
        let layout = *self.map.shared().map.layout();
        let bytes = 1_u64 << layout.granule_bits;
        let offset = fill.grant.granule << layout.granule_bits;
        let Some(piece) = self.pieces.get(index) else { return };
        let from = match fill.grant.prior.kind() {
            _ if piece.len == bytes => None,
            Kind::Shared => Some((Target::File, byte_of(&layout, fill.grant.prior, 0), bytes)),
            Kind::Below if fill.grant.base == Base::Below && offset < self.limits.below => {
                Some((Target::Below, offset, bytes.min(self.limits.below - offset)))
            }
            _ => None,
        };
        let Some((target, offset, len)) = from else {
            return self.write_fill(context, index, fill);
        };
        let buffers = Buffers::from_mapping(&fill.memory, 0, len as usize).unwrap_or_default();
        piece.phase = Phase::Reading(fill);
        let (kind, tag) = (RequestKind::Read, index as u32);
        self.submit_piece(context, target, Request { kind, offset, len, buffers, tag });
    }

    /// Puts the guest's data over what was read, and writes the granule.
    fn write_fill(&mut self, context: &mut Context<'_>, index: usize, fill: Fill) {
        let layout = *self.map.shared().map.layout();
        let bytes = 1_u64 << layout.granule_bits;
        let Some(piece) = self.pieces.get(index) else { return };
        let skip = piece.offset % bytes;
        let into = Buffers::from_mapping(&fill.memory, skip as usize, piece.len as usize);
        into.unwrap_or_default().copy_from_buffers(&piece.buffers);
        let offset = byte_of(&layout, image::map::Word::data(fill.grant.place, 0, Base::Zero), 0);
        let buffers = Buffers::from_mapping(&fill.memory, 0, bytes as usize).unwrap_or_default();
        let (kind, tag) = (RequestKind::Write { durable: false }, index as u32);
        piece.phase = Phase::Filling(fill);
        let request = Request { kind, offset, len: bytes, buffers, tag };
        self.submit_piece(context, Target::File, request);
    }

    /// Handles the end of a fill's read: the write is next.
    pub(crate) fn end_fill_read(&mut self, index: usize, fill: Fill, outcome: Result<(), IoError>) {
        if outcome.is_err() {
            return self.fail_fill(index, fill, outcome);
        }
        if let Some(piece) = self.pieces.get(index) {
            piece.phase = Phase::Filling(fill);
            self.fills.push(index);
        }
    }

    /// Handles the end of a fill's write: it commits.
    pub(crate) fn end_fill(&mut self, index: usize, fill: Fill, outcome: Result<(), IoError>) {
        if outcome.is_err() {
            return self.fail_fill(index, fill, outcome);
        }
        let full = self.map.shared().map.layout().full_mask();
        let hold = self.pieces.get(index).and_then(|piece| piece.holds.pop());
        if let Some(hold) = hold {
            self.map.commit_grant(&fill.grant, full, hold);
            self.has_asked = true;
        }
        if let Some(true) = self.pieces.get(index).map(|piece| piece.is_durable()) {
            self.flush_later(index);
        }
        self.end_piece(index, Ok(()));
    }

    fn fail_fill(&mut self, index: usize, fill: Fill, outcome: Result<(), IoError>) {
        let hold = self.pieces.get(index).and_then(|piece| piece.holds.pop());
        if let Some(hold) = hold {
            self.map.fail_grant(fill.grant, hold);
            self.has_asked = true;
        }
        match outcome {
            Err(IoError::Full) => self.stall(index),
            outcome => self.end_piece(index, outcome),
        }
    }
}

//! Fills of granules: a write to a granule that has no cluster, in a format that stores whole
//! clusters.

use ::disk::{IoError, NoBuffer, Request, RequestKind};
use image::format::PieceSource;
use image::map::{Base, Kind};
use image::shared::{AnswerKind, Grant, QuestionKind};
use reactor::Context;
use rustix::io::Errno;

use crate::channel::{MappedChannel, Target};
use crate::counters::count;
use crate::piece::{Fill, FillRead, Phase};
use crate::read::byte_of;

impl MappedChannel {
    /// Begins to fill the granule of a grant. The rest of the piece is planned on its own.
    pub(crate) fn begin_fill(&mut self, index: u32, grant: Grant) {
        let bits = self.layout.granule_bits;
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let in_granule = ((grant.granule + 1) << bits).saturating_sub(piece.offset);
        self.cut(index, in_granule);
        let hold = self.map.enter_grant();
        if let Some(piece) = self.pieces.get_mut(index) {
            piece.holds.push(hold);
            piece.phase = Phase::Starved(grant);
        }
        self.starved.push_back(index);
        self.give_memory();
    }

    /// Gives memory to fills that wait for it, as far as there is some. A channel without any has a
    /// fill in flight that returns its memory.
    fn give_memory(&mut self) {
        while let Some(index) = self.starved.front().copied() {
            let memory = match self.fill_memory.take() {
                Err(NoBuffer::Busy) => return,
                memory => memory,
            };
            self.starved.pop_front();
            let Some(piece) = self.pieces.get_mut(index) else { continue };
            let Phase::Starved(grant) = piece.phase else { continue };
            let Ok(memory) = memory else {
                self.fail_fill(index, grant, Err(IoError::Storage(Errno::NOMEM)));
                continue;
            };
            piece.phase = Phase::Reading(Fill { grant, memory, reads: Vec::new() });
            self.plan_fill(index);
        }
    }

    /// Finds what a fill must read, unless the guest overwrites the whole granule.
    fn plan_fill(&mut self, index: u32) {
        let (layout, below_size) = (self.layout, self.below_size());
        let len = 1_u64 << layout.granule_bits;
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let is_whole = piece.len == len;
        let Phase::Reading(fill) = &mut piece.phase else { return };
        let Grant { granule, prior, .. } = fill.grant;
        if !is_whole && prior.kind() != Kind::Zero {
            count(&self.counters.read_modify_writes);
        }
        let offset = granule << layout.granule_bits;
        let below = below_part(below_size, offset, 0, len).filter(|_| prior.kind() == Kind::Below);
        if !is_whole && prior.kind() != Kind::Shared && below.is_none_or(|below| below.len < len) {
            // What nothing is read into is zero.
            fill.memory.part(0, len as usize).zero();
        }
        match prior.kind() {
            _ if is_whole => {}
            Kind::Mixed => {
                if let Phase::Reading(fill) = std::mem::replace(&mut piece.phase, Phase::Planned) {
                    self.ask(index, QuestionKind::Describe(granule));
                    self.set_phase(index, Phase::Describing(fill));
                }
                return;
            }
            Kind::Shared => {
                let offset = byte_of(&layout, prior, 0);
                fill.reads.push(FillRead { target: Target::File, offset, at: 0, len });
            }
            _ => fill.reads.extend(below),
        }
        self.fills.push(index);
    }

    fn set_phase(&mut self, index: u32, phase: Phase) {
        if let Some(piece) = self.pieces.get_mut(index) {
            piece.phase = phase;
        }
    }

    /// Takes the description of a granule that a fill reads.
    pub(crate) fn on_description(&mut self, index: u32, answer: AnswerKind) {
        let bits = self.layout.granule_bits;
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let Phase::Describing(mut fill) = std::mem::replace(&mut piece.phase, Phase::Planned)
        else {
            return;
        };
        let parts = match answer {
            AnswerKind::Pieces(parts) if !self.is_abandoned() => parts,
            AnswerKind::Done(Err(error)) => {
                return self.fail_fill(index, fill.grant, Err(IoError::Storage(error)));
            }
            _ => return self.fail_fill(index, fill.grant, Err(IoError::Storage(Errno::IO))),
        };
        let (mut at, start) = (0, fill.grant.granule << bits);
        for part in parts.iter() {
            let len = part.len as u64;
            match &part.source {
                PieceSource::Bytes(bytes) => {
                    fill.memory.part(at as usize, part.len).write(bytes);
                }
                PieceSource::File(offset) => {
                    fill.reads.push(FillRead { target: Target::File, offset: *offset, at, len });
                }
                PieceSource::Below => {
                    fill.reads.extend(below_part(self.below_size(), start + at, at, len));
                }
                PieceSource::Zero => {}
            }
            at += len;
        }
        self.set_phase(index, Phase::Reading(fill));
        self.fills.push(index);
    }

    /// Starts the next step of fills.
    pub(crate) fn continue_fills(&mut self, context: &mut Context<'_>) {
        loop {
            // A fill that has just ended returned its memory.
            self.give_memory();
            let Some(index) = self.fills.pop() else { return };
            let Some(piece) = self.pieces.get_mut(index) else { continue };
            match std::mem::replace(&mut piece.phase, Phase::Planned) {
                Phase::Reading(fill) => self.read_for_fill(context, index, fill),
                other => piece.phase = other,
            }
        }
    }

    /// Reads the next part of the granule. With all of them, writes it.
    fn read_for_fill(&mut self, context: &mut Context<'_>, index: u32, mut fill: Fill) {
        let Some(FillRead { target, offset, at, len }) = fill.reads.pop() else {
            return self.write_fill(context, index, fill);
        };
        let buffers = fill.memory.part(at as usize, len as usize);
        self.set_phase(index, Phase::Reading(fill));
        let (kind, tag) = (RequestKind::Read, index);
        self.submit_piece(context, target, Request { kind, offset, len, buffers, tag });
    }

    /// Puts the guest's data over what was read, and writes the granule.
    fn write_fill(&mut self, context: &mut Context<'_>, index: u32, fill: Fill) {
        let layout = self.layout;
        let bytes = 1_u64 << layout.granule_bits;
        count(&self.counters.fills);
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let skip = piece.offset % bytes;
        let into = fill.memory.part(skip as usize, piece.len as usize);
        into.copy_from_buffers(&piece.buffers);
        let offset = byte_of(&layout, image::map::Word::data(fill.grant.place, 0, Base::Zero), 0);
        let buffers = fill.memory.part(0, bytes as usize);
        let (kind, tag) = (RequestKind::Write { durable: false }, index);
        piece.phase = Phase::Filling(fill);
        let request = Request { kind, offset, len: bytes, buffers, tag };
        self.submit_piece(context, Target::File, request);
    }

    /// Handles the end of a fill's read: the next read or the write follows.
    pub(crate) fn end_fill_read(&mut self, index: u32, fill: Fill, outcome: Result<(), IoError>) {
        if outcome.is_err() {
            return self.fail_fill(index, fill.grant, outcome);
        }
        self.set_phase(index, Phase::Reading(fill));
        self.fills.push(index);
    }

    /// Handles the end of a fill's write: it commits.
    pub(crate) fn end_fill(&mut self, index: u32, fill: Fill, outcome: Result<(), IoError>) {
        if outcome.is_err() {
            return self.fail_fill(index, fill.grant, outcome);
        }
        let full = self.layout.full_mask();
        let hold = self.pieces.get_mut(index).and_then(|piece| piece.holds.pop());
        if let Some(hold) = hold {
            self.map.commit_grant(&fill.grant, full, hold);
            self.has_asked = true;
        }
        if let Some(true) = self.pieces.get_mut(index).map(|piece| piece.is_durable()) {
            self.flush_later(index);
        }
        self.end_piece(index, Ok(()));
    }

    fn fail_fill(&mut self, index: u32, grant: Grant, outcome: Result<(), IoError>) {
        let hold = self.pieces.get_mut(index).and_then(|piece| piece.holds.pop());
        if let Some(hold) = hold {
            self.map.fail_grant(grant, hold);
            self.has_asked = true;
        }
        match outcome {
            Err(IoError::Full) => self.stall(index),
            outcome => self.end_piece(index, outcome),
        }
    }
}

/// Returns the part of a range that the layer below has.
fn below_part(size: u64, offset: u64, at: u64, len: u64) -> Option<FillRead> {
    let len = len.min(size.saturating_sub(offset));
    (len > 0).then_some(FillRead { target: Target::Below, offset, at, len })
}

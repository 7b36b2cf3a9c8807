//! Writes and zeroes.

use ::disk::{IoError, Request, RequestKind};
use image::channel::{AddedBlocks, ReadPlan, WritePlan};
use image::map::{Base, Hold};
use image::shared::{Claim, QuestionKind};
use memory::{Buffers, Mapping};
use reactor::Context;
use rustix::io::Errno;
use std::sync::Arc;

use crate::channel::{MappedChannel, Target};
use crate::piece::{Action, Few, Phase};

/// Most bytes of zeroes that a piece writes as data: less than a granule at both ends, or a part of a
/// range that the image cannot mark as zero.
const ZEROES: usize = 2 << 20;

/// Place in the file for the first bytes of a piece.
struct WriteRun {
    at: u64,
    len: u64,
    holds: Few<Hold>,
    added: Few<AddedBlocks>,
}

impl MappedChannel {
    /// Submits a write, and cuts off what goes elsewhere.
    pub(crate) fn plan_write(&mut self, context: &mut Context<'_>, index: u32, durable: bool) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let (offset, len) = (piece.offset, piece.len);
        let run = match self.write_run(offset, len) {
            Ok(run) => run,
            Err((question, len)) => {
                self.cut(index, len);
                return self.ask(index, question);
            }
        };
        let WriteRun { at, len, holds, added } = run;
        self.cut(index, len);
        // Words are shown after their changes are counted, so the counters are read after the words.
        let durable_here = durable && added.is_empty() && !self.map.needs_round();
        if durable && !durable_here {
            self.flush_later(index);
        }
        let Some(piece) = self.pieces.get_mut(index) else { return };
        (piece.holds, piece.added, piece.phase) = (holds, added, Phase::Submitted);
        piece.file_offset = at;
        let (buffers, tag) = (std::mem::take(&mut piece.buffers), index);
        let kind = RequestKind::Write { durable: durable_here };
        let request = Request { kind, offset: at, len, buffers, tag };
        self.submit_piece(context, Target::File, request);
    }

    /// Returns the place of the first bytes and how many go there together.
    ///
    /// # Errors
    /// The question to ask first, and the number of bytes that it concerns.
    fn write_run(&mut self, offset: u64, len: u64) -> Result<WriteRun, (QuestionKind, u64)> {
        let layout = self.layout;
        let granule_bytes = 1_u64 << layout.granule_bits;
        let mut run = WriteRun { at: 0, len: 0, holds: Few::default(), added: Few::default() };
        while run.len < len {
            let at = offset + run.len;
            let skip = at % granule_bytes;
            let part = (len - run.len).min(granule_bytes - skip);
            let blocks = layout.blocks_of(skip, part);
            let (place, hold, added) = match self.map.plan_write(at >> layout.granule_bits, blocks)
            {
                WritePlan::Ask(question) if run.len == 0 => return Err((question, part)),
                // It asks when its turn comes.
                WritePlan::Ask(_) => break,
                WritePlan::InPlace { hold, place } => (place, Some(hold), None),
                WritePlan::Add(added) => (added.place(), None, Some(added)),
            };
            let byte = (place.units() << layout.unit_bits) + skip;
            if run.len > 0 && byte != run.at + run.len {
                hold.into_iter().for_each(|hold| self.map.leave(hold));
                added.into_iter().for_each(|added| self.map.fail_blocks(added));
                break;
            }
            if run.len == 0 {
                run.at = byte;
            }
            run.holds.extend(hold);
            run.added.extend(added);
            run.len += part;
        }
        Ok(run)
    }

    /// Adds the pieces of a discard or of zeroes. A discard frees whole granules; zeroes are written
    /// at both ends. An image that has no mark for zeroes keeps what is discarded.
    pub(crate) fn add_zeroes(&mut self, parent: u32, offset: u64, len: u64, writes: bool) {
        let granule = 1_u64 << self.layout.granule_bits;
        let end = offset + len;
        if !self.has_zeroes {
            return self.add_written_zeroes(parent, offset, end, writes);
        }
        let (first, last) = (offset.next_multiple_of(granule).min(end), end - end % granule);
        if first >= last {
            return self.add_written_zeroes(parent, offset, end, writes);
        }
        self.add_written_zeroes(parent, offset, first, writes);
        self.add_piece(parent, Action::Zero, (first, last - first), Buffers::default());
        self.add_written_zeroes(parent, last, end, writes);
    }

    fn add_written_zeroes(&mut self, parent: u32, first: u64, end: u64, writes: bool) {
        let most = (end - first).min(ZEROES as u64);
        if !writes || most == 0 {
            return;
        }
        // Nothing writes to it, so all pieces share it.
        let memory = Mapping::private(most as usize).ok().map(Arc::new);
        let mut at = first;
        while at < end {
            let len = (end - at).min(most);
            let zeroes = memory.as_ref();
            let zeroes = zeroes.and_then(|one| Buffers::from_mapping(one, 0, len as usize));
            let Some(zeroes) = zeroes else {
                return self.fail_request(parent, IoError::Storage(Errno::NOMEM));
            };
            self.add_piece(parent, Action::Write { durable: false }, (at, len), zeroes);
            at += len;
        }
    }

    /// Makes the first granule of a piece zero, and goes on with the next.
    pub(crate) fn plan_zero(&mut self, index: u32) {
        let bits = self.layout.granule_bits;
        loop {
            let Some(piece) = self.pieces.get_mut(index) else { return };
            let (granule, count) = (piece.offset >> bits, piece.len >> bits);
            match self.map.plan_read(granule) {
                ReadPlan::Base(Base::Zero) if piece.len > 1 << bits => {
                    piece.offset += 1 << bits;
                    piece.len -= 1 << bits;
                }
                ReadPlan::Base(Base::Zero) => return self.end_piece(index, Ok(())),
                ReadPlan::Parts { hold, .. } | ReadPlan::Describe { hold } => {
                    self.map.leave(hold);
                    return self.ask(index, discard(granule, count));
                }
                _ => return self.ask(index, discard(granule, count)),
            }
        }
    }

    /// Commits or fails a write, or lets it wait for space.
    pub(crate) fn end_write(&mut self, index: u32, outcome: Result<(), IoError>) {
        if outcome == Err(IoError::Full) && self.waits_midway(index) {
            return;
        }
        let Some(piece) = self.pieces.get_mut(index) else { return };
        for added in std::mem::take(&mut piece.added) {
            match outcome {
                Ok(()) => self.map.commit_blocks(added),
                Err(_) => self.map.fail_blocks(added),
            }
        }
        self.leave_holds(index);
        match outcome {
            Err(IoError::Full) => self.stall(index),
            outcome => self.end_piece(index, outcome),
        }
    }

    /// Keeps a write that has stored a part before the storage was full. It cannot begin again: the
    /// buffers of that part are consumed. Returns false if nothing was stored.
    fn waits_midway(&mut self, index: u32) -> bool {
        let may_wait = self.may_wait();
        let Some(piece) = self.pieces.get_mut(index) else { return false };
        let stored = piece.len - piece.buffers.len() as u64;
        let at = piece.file_offset + stored;
        if stored == 0 || !may_wait {
            return false;
        }
        piece.phase = Phase::StalledMidway(at);
        let is_durable = piece.is_durable();
        self.count_wait(index);
        if is_durable {
            // The rest is written without a sync of its own.
            self.flush_later(index);
        }
        true
    }
}

fn discard(granule: u64, count: u64) -> QuestionKind {
    QuestionKind::Discard { granule, count, claim: Claim::default() }
}

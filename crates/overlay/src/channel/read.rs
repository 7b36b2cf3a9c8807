//! Reads.

use std::sync::atomic::Ordering;

use ::disk::{IoError, Request, RequestKind, SubmitOutcome};
use ::memory::Buffers;
use reactor::Context;

use super::{OverlayChannel, Piece, Target};
use crate::word::Word;
use crate::{BYTES, GRANULE};

/// Where the first bytes of a range are, and how many lie there together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// In memory, or zero: granule by granule.
    Memory,
    Base,
    /// From this byte of the overflow file on.
    Overflow(u64),
}

impl OverlayChannel {
    pub(super) fn submit_read(
        &mut self,
        context: &mut Context<'_>,
        request: Request,
    ) -> SubmitOutcome {
        let hold = self.epochs.enter();
        let end = request.offset + request.len;
        if self.copy_from_memory(&request.buffers, request.offset, end) {
            self.leave(hold);
            self.shared.counters.memory_reads.fetch_add(1, Ordering::Relaxed);
            return SubmitOutcome::Done(request.complete(Ok(())));
        }
        let parent = self.new_parent(request.tag);
        if let Some(parent) = self.parents.get_mut(parent) {
            (parent.hold, parent.holders) = (Some(hold), 1);
        }
        let (mut at, mut rest) = (request.offset, request.buffers);
        while at < end {
            let (run, len) = self.run(at, end);
            let part = std::mem::take(&mut rest);
            let mut part = part;
            if at + len < end {
                rest = part.split_off(len as usize, Buffers::default());
            }
            self.add_part(parent);
            self.read_run(context, parent, run, (at, len), part);
            at += len;
        }
        self.end_hold(parent);
        // Until here the request itself has counted as a part, so that it cannot end too early.
        self.end_part(parent, Ok(()), rest);
        self.outcome(request.tag)
    }

    /// Fills buffers from memory. Returns false if a part of the range is elsewhere.
    #[inline]
    fn copy_from_memory(&self, buffers: &Buffers, offset: u64, end: u64) -> bool {
        let memory = &self.shared.memory;
        let (mut cursor, mut at) = (buffers.cursor(), offset);
        while at < end {
            let skip = at % GRANULE;
            let len = (GRANULE - skip).min(end - at);
            let copied = match memory.word(at / GRANULE) {
                Word::Slot(slot) => {
                    let from = memory.slot_at(slot) + skip as usize;
                    cursor.load_from(memory.mapping(), from, len as usize)
                }
                Word::Zero => cursor.zero(len as usize),
                Word::Base | Word::Place(_) => false,
            };
            if !copied {
                return false;
            }
            at += len;
        }
        true
    }

    fn run_of(&self, at: u64) -> Run {
        match self.shared.memory.word(at / GRANULE) {
            Word::Slot(_) | Word::Zero => Run::Memory,
            Word::Base => Run::Base,
            Word::Place(place) => Run::Overflow(place.saturating_mul(GRANULE) + at % GRANULE),
        }
    }

    /// Returns where the bytes at `at` are, and how many up to `end` lie there together.
    fn run(&self, at: u64, end: u64) -> (Run, u64) {
        let first = self.run_of(at);
        let mut next = (at / GRANULE + 1) * GRANULE;
        while next < end {
            let expected = match first {
                Run::Overflow(start) => Run::Overflow(start + (next - at)),
                same => same,
            };
            if self.run_of(next) != expected {
                break;
            }
            next += GRANULE;
        }
        (first, next.min(end) - at)
    }

    fn read_run(
        &mut self,
        context: &mut Context<'_>,
        parent: u32,
        run: Run,
        (at, len): (u64, u64),
        buffers: Buffers,
    ) {
        let counters = &self.shared.counters;
        let (target, offset, counter) = match run {
            Run::Memory => {
                let copied = self.copy_from_memory(&buffers, at, at + len);
                if copied {
                    return self.end_part(parent, Ok(()), buffers);
                }
                // The cleaner or another write has moved a part since the look.
                return self.read_moved(context, parent, (at, len), buffers);
            }
            Run::Base => (Target::Base, at, &counters.base_reads),
            Run::Overflow(offset) => (Target::Overflow, offset, &counters.overflow_reads),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(parent) = self.parents.get_mut(parent).filter(|_| target == Target::Overflow) {
            parent.holders += 1;
        }
        let tag = self.pieces.insert(Piece::Read { parent, target });
        let request = Request { kind: RequestKind::Read, offset, len, buffers, tag };
        self.submit_piece(context, target, request);
    }

    /// Reads a range granule by granule, each as its word says at one look.
    fn read_moved(
        &mut self,
        context: &mut Context<'_>,
        parent: u32,
        (at, len): (u64, u64),
        mut buffers: Buffers,
    ) {
        let (mut from, end) = (at, at + len);
        while from < end {
            let skip = from % GRANULE;
            let len = (GRANULE - skip).min(end - from);
            let rest = buffers.split_off(len as usize, Buffers::default());
            self.add_part(parent);
            let memory = &self.shared.memory;
            let run = match memory.word(from / GRANULE) {
                Word::Slot(slot) => {
                    let byte = memory.slot_at(slot) + skip as usize;
                    let is_whole = buffers.copy_from(memory.mapping(), byte);
                    debug_assert!(is_whole && buffers.len() <= BYTES);
                    None
                }
                Word::Zero => {
                    buffers.zero();
                    None
                }
                Word::Base => Some(Run::Base),
                Word::Place(place) => Some(Run::Overflow(place.saturating_mul(GRANULE) + skip)),
            };
            match run {
                None => self.end_part(parent, Ok(()), buffers),
                Some(run) => self.read_run(context, parent, run, (from, len), buffers),
            }
            (buffers, from) = (rest, from + len);
        }
        self.end_part(parent, Ok::<(), IoError>(()), buffers);
    }
}

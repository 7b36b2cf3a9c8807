//! Requests to blocks whose place the map knows. They go to a file as they are: no piece, no
//! question, no lock, no allocation.

use ::disk::{Completion, IoError, Request, RequestKind, SubmitOutcome};
use image::map::{Hold, Word};
use memory::Buffers;
use reactor::Context;

use super::{MappedChannel, Target};
use crate::piece::{Action, Parent, Piece};
use crate::read::byte_of;

/// First tag of direct requests in a file. Pieces have lower ones.
const TAGS: u32 = 1 << 31;

/// Request that a file has as it is.
#[derive(Debug)]
pub(crate) struct Direct {
    tag: u32,
    is_write: bool,
    /// First byte on the guest's disk.
    offset: u64,
    len: u64,
    /// First byte in the file.
    file_offset: u64,
    hold: Hold,
}

/// Place of a request.
pub(super) struct Found {
    word: Word,
    file_offset: u64,
    hold: Hold,
}

impl MappedChannel {
    /// Finds the place of a request whose blocks lie together in one granule. `None` if it is not
    /// such a one, or if the map does not say.
    #[inline(always)]
    pub(super) fn find_direct(&mut self, request: &Request) -> Option<Found> {
        let is_write = match request.kind {
            RequestKind::Read => false,
            RequestKind::Write { durable: false } => true,
            _ => return None,
        };
        let skip = request.offset & (self.granule_bytes - 1);
        if request.len == 0 || skip + request.len > self.granule_bytes {
            return None;
        }
        let blocks = self.layout.blocks_of(skip, request.len);
        let granule = request.offset >> self.layout.granule_bits;
        let (hold, word) = self.map.find(granule, blocks, is_write)?;
        Some(Found { word, file_offset: byte_of(&self.layout, word, skip), hold })
    }

    /// Submits a request to its place.
    #[inline(always)]
    pub(super) fn submit_direct(
        &mut self,
        context: &mut Context<'_>,
        mut request: Request,
        found: Found,
    ) -> SubmitOutcome {
        let Found { word, file_offset, hold } = found;
        let Request { kind, offset, len, tag, .. } = request;
        (request.offset, request.tag) = (file_offset, TAGS | self.direct.next_index());
        let mut outcome = match word.lower_file() {
            None => self.file.submit(context, request),
            Some(file) => self.submit_lower(context, file, request),
        };
        let is_write = kind != RequestKind::Read;
        let direct = Direct { tag, is_write, offset, len, file_offset, hold };
        match &mut outcome {
            SubmitOutcome::Done(done) if !direct.waits(done.outcome) => {
                done.tag = tag;
                self.map.leave(direct.hold);
            }
            SubmitOutcome::Pending => drop(self.direct.insert(direct)),
            SubmitOutcome::Full(request) => {
                (request.offset, request.tag) = (offset, tag);
                self.map.leave(direct.hold);
            }
            SubmitOutcome::Done(_) => self.end_full(context, direct, &mut outcome),
        }
        outcome
    }

    /// Submits a request to a file of the layers below.
    #[inline(never)]
    fn submit_lower(
        &mut self,
        context: &mut Context<'_>,
        file: usize,
        request: Request,
    ) -> SubmitOutcome {
        self.submit_to(context, Target::Lower(file), request)
    }

    /// Lets a write that was submitted wait for space, or fails it.
    #[cold]
    fn end_full(&mut self, context: &mut Context<'_>, direct: Direct, outcome: &mut SubmitOutcome) {
        let tag = direct.tag;
        if let SubmitOutcome::Done(done) = std::mem::replace(outcome, SubmitOutcome::Pending) {
            self.begin_wait(direct, done.buffers);
            self.set_timer(context);
            *outcome = self.outcome(tag);
        }
    }

    /// Handles the completions from `first` on: ends direct requests, and takes out those of pieces.
    pub(super) fn sort(&mut self, out: &mut Vec<Completion>, first: usize) {
        let mut at = first;
        while let Some(completion) = out.get_mut(at) {
            let direct = match completion.tag & TAGS {
                0 => None,
                _ => self.direct.remove(completion.tag & !TAGS),
            };
            match direct {
                Some(direct) if !direct.waits(completion.outcome) => {
                    completion.tag = direct.tag;
                    self.map.leave(direct.hold);
                    at += 1;
                }
                Some(direct) => {
                    let completion = out.swap_remove(at);
                    self.begin_wait(direct, completion.buffers);
                }
                None => {
                    let completion = out.swap_remove(at);
                    self.on_io(completion);
                }
            }
        }
    }

    /// Makes a write that found no space a piece, which may wait for space.
    #[cold]
    fn begin_wait(&mut self, direct: Direct, buffers: Buffers) {
        let Direct { tag, offset, len, file_offset, hold, .. } = direct;
        let parent = self.parents.insert(Parent::new(tag, false));
        let action = Action::Write { durable: false };
        let mut piece = Piece::new(parent, action, (offset, len), buffers);
        piece.file_offset = file_offset;
        piece.holds.push(hold);
        let index = self.pieces.insert(piece);
        self.end_write(index, Err(IoError::Full));
    }
}

impl Direct {
    /// Returns whether the request waits for space, or fails as a piece.
    #[inline]
    fn waits(&self, outcome: Result<(), IoError>) -> bool {
        self.is_write && outcome == Err(IoError::Full)
    }
}

//! One reactor's access to a golden image.

use std::sync::Arc;

use ::disk::{Channel, Completion, IoError, Request, RequestKind, SubmitOutcome};
use memory::Buffers;
use reactor::{Context, Slab};
use rustix::io::Errno;

use crate::BLOCK_BYTES;
use crate::disk::ImageGuard;
use crate::image::Reader;
use crate::mailbox::{Block, Mailbox};
use crate::state::Waiter;

/// Outcome of a request whose channel was abandoned.
const CANCELED: IoError = IoError::Storage(Errno::CANCELED);

/// Channel of a golden image.
pub(crate) struct GoldenChannel {
    image: Arc<ImageGuard>,
    mailbox: Arc<Mailbox>,
    parents: Slab<Parent>,
    pieces: Slab<Piece>,
    is_draining: bool,
    is_abandoned: bool,
    ended: Vec<Completion>,
    // Kept for its capacity.
    outcomes: Vec<(u32, Result<Block, IoError>)>,
}

/// Request whose pieces wait.
struct Parent {
    tag: u32,
    left: u32,
    outcome: Result<(), IoError>,
    buffers: Buffers,
}

/// Part of a request in one block.
struct Piece {
    parent: u32,
    /// First byte in the block.
    skip: usize,
    buffers: Buffers,
}

impl GoldenChannel {
    pub(crate) fn new(image: Arc<ImageGuard>, context: &Context<'_>) -> Self {
        let (parents, pieces, ended, outcomes) = Default::default();
        Self {
            image,
            mailbox: Mailbox::new(context),
            parents,
            pieces,
            is_draining: false,
            is_abandoned: false,
            ended,
            outcomes,
        }
    }

    fn read(&mut self, request: Request) -> SubmitOutcome {
        let end = request.offset.checked_add(request.len);
        if end.is_none_or(|end| end > self.image.size)
            || request.buffers.len() as u64 != request.len
        {
            return SubmitOutcome::Done(request.complete(Err(IoError::Range)));
        }
        let (block, skip) = place(request.offset);
        if skip as u64 + request.len <= BLOCK_BYTES
            && let Some(found) = self.image.find(block)
        {
            copy(&found, skip, &request.buffers);
            return SubmitOutcome::Done(request.complete(Ok(())));
        }
        self.read_pieces(request)
    }

    /// Reads a request block by block.
    fn read_pieces(&mut self, request: Request) -> SubmitOutcome {
        let Request { mut offset, mut buffers, tag, .. } = request;
        let buffers_of_parent = Buffers::default();
        let parent = Parent { tag, left: 1, outcome: Ok(()), buffers: buffers_of_parent };
        let parent = self.parents.insert(parent);
        while !buffers.is_empty() {
            let (block, skip) = place(offset);
            let rest = buffers.split_off(BLOCK_BYTES as usize - skip, Buffers::default());
            offset += buffers.len() as u64;
            self.add_piece(block, Piece { parent, skip, buffers });
            buffers = rest;
        }
        self.end_part(parent, Ok(()), Buffers::default());
        match self.ended.pop() {
            // What ended earlier comes first.
            Some(completion) if self.ended.is_empty() && completion.tag == tag => {
                SubmitOutcome::Done(completion)
            }
            Some(completion) => {
                self.ended.push(completion);
                SubmitOutcome::Pending
            }
            None => SubmitOutcome::Pending,
        }
    }

    fn add_piece(&mut self, block: u32, piece: Piece) {
        if let Some(parent) = self.parents.get_mut(piece.parent) {
            parent.left += 1;
        }
        let index = self.pieces.insert(piece);
        let waiter = || Waiter { mailbox: Arc::clone(&self.mailbox), piece: index };
        if let Some(found) = self.image.find_or_load(block, Reader::Machine, waiter) {
            self.end_piece(index, Ok(found));
        }
    }

    fn end_piece(&mut self, index: u32, outcome: Result<Block, IoError>) {
        let Some(Piece { parent, skip, buffers }) = self.pieces.remove(index) else { return };
        let outcome = outcome.map(|block| copy(&block, skip, &buffers));
        self.end_part(parent, outcome, buffers);
    }

    fn end_part(&mut self, index: u32, outcome: Result<(), IoError>, buffers: Buffers) {
        let Some(parent) = self.parents.get_mut(index) else { return };
        parent.left -= 1;
        if parent.outcome.is_ok() {
            parent.outcome = outcome;
        }
        if !buffers.is_empty() {
            parent.buffers = buffers;
        }
        if parent.left == 0
            && let Some(Parent { tag, outcome, buffers, .. }) = self.parents.remove(index)
        {
            self.ended.push(Completion { tag, outcome, buffers });
        }
    }

    /// Ends everything that waits. Their blocks reach the former mailbox, because the numbers of the
    /// pieces are used again.
    fn end_all(&mut self, error: IoError) {
        self.mailbox = self.mailbox.replace();
        let waiting: Vec<u32> = self.pieces.iter().map(|(index, _)| index).collect();
        waiting.into_iter().for_each(|index| self.end_piece(index, Err(error)));
    }

    /// Fails requests that wait for a source that is gone, if the queue drains.
    fn fail_waiting(&mut self) {
        if self.is_draining && !self.pieces.is_empty() && self.image.problem().is_some() {
            self.end_all(IoError::Unreachable);
        }
    }
}

/// Returns the block of a byte, and its place in the block.
pub(crate) fn place(offset: u64) -> (u32, usize) {
    // The image has less than 2^32 blocks.
    ((offset / BLOCK_BYTES) as u32, (offset % BLOCK_BYTES) as usize)
}

fn copy(block: &Block, skip: usize, buffers: &Buffers) {
    buffers.write(block.get(skip..).unwrap_or_default());
}

impl Channel for GoldenChannel {
    fn submit(&mut self, _: &mut Context<'_>, request: Request) -> SubmitOutcome {
        if self.is_abandoned {
            return SubmitOutcome::Done(request.complete(Err(CANCELED)));
        }
        match request.kind {
            RequestKind::Read => {
                let outcome = self.read(request);
                if self.is_draining && matches!(outcome, SubmitOutcome::Pending) {
                    // Its blocks may wait already, so that nothing else ends it now.
                    self.mailbox.wake();
                }
                outcome
            }
            RequestKind::Flush => SubmitOutcome::Done(request.complete(Ok(()))),
            RequestKind::Write { .. } | RequestKind::Discard | RequestKind::WriteZeroes { .. } => {
                SubmitOutcome::Done(request.complete(Err(IoError::ReadOnly)))
            }
        }
    }

    fn reap(&mut self, _: &mut Context<'_>, out: &mut Vec<Completion>) {
        if self.mailbox.is_notified() {
            let mut outcomes = std::mem::take(&mut self.outcomes);
            self.mailbox.take(&mut outcomes);
            for (piece, outcome) in outcomes.drain(..) {
                self.end_piece(piece, outcome);
            }
            self.outcomes = outcomes;
            self.fail_waiting();
        }
        out.append(&mut self.ended);
    }

    fn waiting(&self) -> usize {
        if self.pieces.is_empty() || self.image.problem().is_none() {
            return 0;
        }
        self.parents.iter().count()
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {
        self.is_draining = true;
        self.fail_waiting();
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
        self.end_all(CANCELED);
    }
}

impl Drop for GoldenChannel {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

//! Pieces that wait for space on the storage.

use std::collections::BTreeMap;
use std::time::Duration;

use ::disk::{IoError, Request, RequestKind};
use reactor::{Context, IoOp};

use super::{MappedChannel, Target};
use crate::below::Below;
use crate::piece::{Action, Parent, Phase, Piece};

/// Interval for retrying writes that the storage had no room for.
const RETRY: Duration = Duration::from_millis(500);

impl MappedChannel {
    /// Returns whether a piece may wait for space.
    pub(crate) fn may_wait(&self) -> bool {
        self.waits_for_room && !self.is_draining
    }

    /// Lets a piece wait for space, or fails it.
    pub(crate) fn stall(&mut self, index: u32) {
        if !self.may_wait() {
            return self.end_piece(index, Err(IoError::Full));
        }
        if let Some(piece) = self.pieces.get_mut(index) {
            piece.phase = Phase::Stalled;
        }
        self.count_wait(index);
    }

    /// Counts a piece that waits for space until it ends.
    pub(crate) fn count_wait(&mut self, index: u32) {
        if let Some(piece) = self.pieces.get_mut(index)
            && !std::mem::replace(&mut piece.is_counted, true)
        {
            self.container.room_waits().begin(1);
        }
    }

    /// Tries a piece again that waits for space.
    pub(super) fn resume(&mut self, context: &mut Context<'_>, index: u32) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let Phase::StalledMidway(offset) = piece.phase else { return self.plan(index) };
        piece.phase = Phase::Submitted;
        let buffers = std::mem::take(&mut piece.buffers);
        let (kind, len, tag) = (RequestKind::Write { durable: false }, buffers.len(), index);
        let request = Request { kind, offset, len: len as u64, buffers, tag };
        self.submit_piece(context, Target::File, request);
    }

    /// Fails the pieces that wait for space, if the queue drains or must not wait.
    pub(super) fn fail_waiting(&mut self) {
        if self.may_wait() {
            return;
        }
        let asked = self.is_draining && self.service.waiting() > 0;
        let waits = |piece: &Piece| {
            let may_change = piece.action != Action::Read;
            piece.is_stalled() || asked && may_change && matches!(piece.phase, Phase::Asked)
        };
        for index in self.indices(waits) {
            self.end_waiting(index, Err(IoError::Full));
        }
    }

    /// Ends a piece that has nothing in the kernel.
    pub(super) fn end_waiting(&mut self, index: u32, outcome: Result<(), IoError>) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        if matches!(piece.phase, Phase::Asked) {
            // The owner must not zero the granule later, when the guest has written to it again.
            if piece.claim.as_ref().is_some_and(|claim| !claim.take()) {
                // It does so now, and its answer ends the piece.
                return;
            }
            self.leave_holds(index);
            return self.end_asked(index, outcome);
        }
        let added = std::mem::take(&mut piece.added);
        self.leave_holds(index);
        added.into_iter().for_each(|added| self.map.fail_blocks(added));
        self.end_piece(index, outcome);
    }

    pub(super) fn indices(&self, with: impl Fn(&Piece) -> bool) -> Vec<u32> {
        self.pieces.iter().filter(|(_, piece)| with(piece)).map(|(index, _)| index).collect()
    }

    pub(super) fn set_timer(&mut self, context: &mut Context<'_>) {
        if !self.is_timer_set && self.pieces.iter().any(|(_, piece)| piece.is_stalled()) {
            self.is_timer_set = true;
            context.submit(&self.port, IoOp::Timer { after: RETRY }, 0);
        }
    }

    /// Returns the number of requests that wait: for space, or for the source of an image below.
    pub(super) fn count_waiting(&self) -> usize {
        let asked = self.service.waiting() > 0;
        let waits =
            |piece: &Piece| piece.is_stalled() || asked && matches!(piece.phase, Phase::Asked);
        let below = self.below.as_ref().map_or(0, Below::waiting);
        let left = self.parents.iter().map(|(_, parent)| parent.left as usize).sum::<usize>();
        let here = self.pieces.iter().filter(|(_, piece)| waits(piece)).count();
        if below > 0 && below + here == left {
            return self.parents.iter().count();
        }
        let mut waiting: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, piece) in self.pieces.iter().filter(|(_, piece)| waits(piece)) {
            *waiting.entry(piece.parent).or_default() += 1;
        }
        // A request with another piece in the kernel does not wait.
        let all_wait = |at: u32, parent: &Parent| waiting.get(&at) == Some(&parent.left);
        self.parents.iter().filter(|(at, parent)| all_wait(*at, parent)).count()
    }
}

//! Requests and their pieces.

use ::disk::{Completion, IoError};
use memory::Buffers;

use super::MappedChannel;
use crate::piece::{Action, Parent, Phase, Piece};

/// Most empty lists of buffers that a channel keeps.
const SPARES: usize = 64;

impl MappedChannel {
    /// Adds a piece of a request and plans it soon.
    pub(crate) fn add_piece(
        &mut self,
        parent: u32,
        action: Action,
        range: (u64, u64),
        buffers: Buffers,
    ) {
        let index = self.insert_piece(Piece::new(parent, action, range, buffers));
        self.planned.push(index);
    }

    fn insert_piece(&mut self, piece: Piece) -> u32 {
        if let Some(parent) = self.parents.get_mut(piece.parent) {
            parent.left += 1;
        }
        self.pieces.insert(piece)
    }

    /// Plans a piece again, soon. The owner has no question of it any more.
    pub(super) fn plan(&mut self, index: u32) {
        if let Some(piece) = self.pieces.get_mut(index) {
            piece.phase = Phase::Planned;
            self.planned.push(index);
        }
    }

    /// Cuts a piece to its first `len` bytes. The rest becomes a piece of its own, which is planned.
    pub(crate) fn cut(&mut self, index: u32, len: u64) {
        let rest = self.cut_unplanned(index, len);
        self.planned.extend(rest);
    }

    /// Cuts a piece to its first `len` bytes. Returns the rest, if there is one.
    pub(crate) fn cut_unplanned(&mut self, index: u32, len: u64) -> Option<u32> {
        let piece = self.pieces.get_mut(index)?;
        if len >= piece.len {
            return None;
        }
        let spare = self.spares.pop().unwrap_or_default();
        let rest = piece.buffers.split_off(usize::try_from(len).unwrap_or(usize::MAX), spare);
        let (parent, action) = (piece.parent, piece.action);
        let range = (piece.offset + len, piece.len - len);
        piece.len = len;
        Some(self.insert_piece(Piece::new(parent, action, range, rest)))
    }

    /// Keeps a list for a later cut. It pins no memory, and there are not many.
    fn keep_spare(&mut self, mut buffers: Buffers) {
        if buffers.capacity() > 0 && self.spares.len() < SPARES {
            buffers.clear();
            self.spares.push(buffers);
        }
    }

    /// Ends a piece. The request ends with its last piece.
    pub(crate) fn end_piece(&mut self, index: u32, outcome: Result<(), IoError>) {
        let Some(piece) = self.pieces.remove(index) else { return };
        self.container.room_waits().end(piece.is_counted.into());
        self.end_part(piece.parent, outcome, piece.buffers);
    }

    pub(super) fn end_part(&mut self, index: u32, outcome: Result<(), IoError>, buffers: Buffers) {
        let Some(parent) = self.parents.get_mut(index) else { return };
        parent.left -= 1;
        if parent.outcome.is_ok() {
            parent.outcome = outcome;
        }
        let former = std::mem::replace(&mut parent.buffers, buffers);
        self.keep_spare(former);
        let Some(parent) = self.parents.get_mut(index) else { return };
        if parent.left > 0 {
            return;
        }
        if std::mem::take(&mut parent.needs_flush) && parent.outcome.is_ok() && !self.is_abandoned {
            let buffers = std::mem::take(&mut parent.buffers);
            return self.add_piece(index, Action::Flush, (0, 0), buffers);
        }
        if let Some(Parent { tag, outcome, buffers, holds, .. }) = self.parents.remove(index) {
            holds.into_iter().for_each(|hold| self.map.leave(hold));
            self.ended.push(Completion { tag, outcome, buffers });
        }
    }

    /// Makes a request fail when its pieces have ended.
    pub(crate) fn fail_request(&mut self, index: u32, error: IoError) {
        if let Some(parent) = self.parents.get_mut(index).filter(|parent| parent.outcome.is_ok()) {
            parent.outcome = Err(error);
        }
    }

    /// Gives the holds of a piece to its request.
    pub(crate) fn hold_until_end(&mut self, index: u32) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let holds = std::mem::take(&mut piece.holds);
        if let Some(parent) = self.parents.get_mut(piece.parent) {
            parent.holds.extend(holds);
        }
    }

    /// Leaves the epochs of a piece.
    pub(crate) fn leave_holds(&mut self, index: u32) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let holds = std::mem::take(&mut piece.holds);
        holds.into_iter().for_each(|hold| self.map.leave(hold));
    }

    /// Notes that a request must end with a flush.
    pub(crate) fn flush_later(&mut self, index: u32) {
        let Some(parent) = self.pieces.get_mut(index).map(|piece| piece.parent) else { return };
        if let Some(parent) = self.parents.get_mut(parent) {
            parent.needs_flush = true;
        }
    }
}

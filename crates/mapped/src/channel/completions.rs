//! Ends of I/O.

use ::disk::Completion;

use super::MappedChannel;
use crate::piece::{Action, Phase};

impl MappedChannel {
    /// Handles the end of a piece's I/O.
    pub(super) fn on_io(&mut self, completion: Completion) {
        let Completion { tag: index, outcome, buffers } = completion;
        let Some(piece) = self.pieces.get_mut(index) else { return };
        match std::mem::replace(&mut piece.phase, Phase::Planned) {
            // A fill uses its memory again only if nothing else has it.
            Phase::Reading(fill) => {
                drop(buffers);
                self.end_fill_read(index, fill, outcome);
            }
            Phase::Filling(fill) => {
                drop(buffers);
                self.end_fill(index, fill, outcome);
            }
            _ => {
                piece.buffers = buffers;
                if matches!(piece.action, Action::Write { .. }) {
                    return self.end_write(index, outcome);
                }
                self.leave_holds(index);
                self.end_piece(index, outcome);
            }
        }
    }
}

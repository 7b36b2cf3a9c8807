//! Questions to the owner, and its answers.

use std::sync::atomic::Ordering;
use std::time::Instant;

use ::disk::{IoError, Request, RequestKind};
use image::shared::{Answer, AnswerKind, QuestionKind};
use memory::Buffers;
use reactor::Context;
use rustix::io::Errno;

use super::{MappedChannel, Target};
use crate::counters::ns_since;
use crate::piece::{Action, Phase};

impl MappedChannel {
    /// Asks the owner for a piece.
    pub(crate) fn ask(&mut self, index: u32, question: QuestionKind) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        piece.phase = Phase::Asked;
        piece.claim = match &question {
            QuestionKind::Discard { claim, .. } => Some(claim.clone()),
            _ => None,
        };
        let counts = piece.waits_for_map();
        if let Some(parent) = self.parents.get_mut(piece.parent).filter(|_| counts) {
            parent.waits.get_or_insert_with(|| (Instant::now(), 0)).1 += 1;
        }
        self.map.ask(index, question);
        self.has_asked = true;
    }

    /// Notes that a piece has its answer, or waits for none any more. To be called before its phase
    /// changes. A request waits as long as one of its pieces does.
    fn end_map_wait(&mut self, index: u32) {
        let waiting = self.pieces.get(index).filter(|piece| piece.waits_for_map());
        let Some(piece) = waiting else { return };
        let Some(parent) = self.parents.get_mut(piece.parent) else { return };
        let Some((since, pieces)) = &mut parent.waits else { return };
        *pieces -= 1;
        if *pieces == 0 {
            self.counters.wait_ns.fetch_add(ns_since(*since), Ordering::Relaxed);
            parent.waits = None;
        }
    }

    pub(super) fn plan_flush(&mut self, context: &mut Context<'_>, index: u32) {
        let shared = self.map.shared();
        if shared.is_lost() {
            self.end_piece(index, Err(IoError::Storage(Errno::IO)));
        } else if shared.is_durable() {
            let Some(piece) = self.pieces.get_mut(index) else { return };
            piece.phase = Phase::Submitted;
            let (kind, tag) = (RequestKind::Flush, index);
            let request = Request { kind, offset: 0, len: 0, buffers: Buffers::default(), tag };
            self.submit_piece(context, Target::File, request);
        } else {
            self.ask(index, QuestionKind::Flush);
        }
    }

    pub(super) fn on_answer(&mut self, context: &mut Context<'_>, answer: Answer) {
        let index = answer.tag;
        self.end_map_wait(index);
        let Some(piece) = self.pieces.get_mut(index) else { return };
        match (&piece.phase, answer.kind) {
            (Phase::Ended, AnswerKind::Granted(grant)) => {
                self.map.ask(0, QuestionKind::Failed(grant));
                self.has_asked = true;
                self.pieces.remove(index);
            }
            (Phase::Ended, _) => drop(self.pieces.remove(index)),
            (Phase::Asked, AnswerKind::Look) => {
                self.leave_holds(index);
                self.plan(index);
            }
            (Phase::Asked, AnswerKind::Granted(grant)) => self.begin_fill(index, grant),
            (Phase::Asked, AnswerKind::Pieces(pieces)) => self.read_pieces(context, index, &pieces),
            (Phase::Describing(_), kind) => self.on_description(index, kind),
            (Phase::Asked, AnswerKind::Zeroed(count)) => {
                let zeroed = count << self.layout.granule_bits;
                if zeroed >= piece.len {
                    return self.end_piece(index, Ok(()));
                }
                piece.offset += zeroed;
                piece.len -= zeroed;
                self.plan(index);
            }
            (Phase::Asked, AnswerKind::Done(outcome)) => {
                self.leave_holds(index);
                self.on_done(index, outcome.map_err(io_error));
            }
            _ => {}
        }
    }

    /// Handles the answer that a request is done.
    fn on_done(&mut self, index: u32, outcome: Result<(), IoError>) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        // The kernel reports a failed flush once, perhaps to another channel.
        let is_lost = piece.action == Action::Flush && self.container.handover().1;
        let outcome = if is_lost { Err(IoError::Storage(Errno::IO)) } else { outcome };
        self.end_piece(index, outcome);
    }

    /// Ends a piece whose answer is still to come.
    pub(super) fn end_asked(&mut self, index: u32, outcome: Result<(), IoError>) {
        self.end_map_wait(index);
        let Some(piece) = self.pieces.get_mut(index) else { return };
        piece.phase = Phase::Ended;
        self.container.room_waits().end(std::mem::take(&mut piece.is_counted).into());
        let (parent, buffers) = (piece.parent, std::mem::take(&mut piece.buffers));
        self.end_part(parent, outcome, buffers);
    }
}

/// Returns the failure of a request whose question failed.
fn io_error(error: Errno) -> IoError {
    if error == Errno::NOSPC { IoError::Full } else { IoError::Storage(error) }
}

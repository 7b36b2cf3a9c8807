//! Discards and zeroes, which give space back.

use std::sync::atomic::Ordering;

use ::disk::{Request, SubmitOutcome};
use reactor::Context;

use super::OverlayChannel;
use crate::GRANULE;
use crate::pool::BATCH;
use crate::word::Word;

impl OverlayChannel {
    /// Makes whole granules zero. Zeroes also write the parts of granules at both ends; a discard
    /// leaves them.
    pub(super) fn submit_zeroes(
        &mut self,
        context: &mut Context<'_>,
        request: Request,
        writes: bool,
    ) -> SubmitOutcome {
        let Request { offset, len, tag, .. } = request;
        let end = offset + len;
        // The last granule of the disk may be shorter.
        let is_last = end == self.size;
        let whole_end = if is_last { end.div_ceil(GRANULE) } else { end / GRANULE };
        let whole = offset.div_ceil(GRANULE)..whole_end;
        let edges = match whole.is_empty() {
            true => [(offset, end), (end, end)],
            false => [(offset, whole.start * GRANULE), ((whole.end * GRANULE).min(end), end)],
        };
        whole.for_each(|granule| self.zero_granule(granule));
        self.shared.retire(&mut self.retired);
        if !writes || edges.iter().all(|(from, to)| from == to) {
            return SubmitOutcome::Done(request.complete(Ok(())));
        }
        let parent = self.new_parent(tag);
        for (from, to) in edges {
            if from < to {
                self.add_part(parent);
                self.continue_write(context, parent, (from, to - from), None);
            }
        }
        self.end_part(parent, Ok(()), request.buffers);
        self.outcome(tag)
    }

    fn zero_granule(&mut self, granule: u64) {
        if self.shared.memory.word(granule) == Word::Zero {
            return;
        }
        let old = self.shared.memory.exchange(granule, Word::Zero);
        if old.takes_space() {
            self.shared.counters.grown.fetch_sub(1, Ordering::Relaxed);
            self.retired.push(old);
            if self.retired.len() >= 2 * BATCH as usize {
                self.shared.retire(&mut self.retired);
            }
        }
    }
}

//! The requests of one turn of a queue, counted by the times that they share.
//!
//! A turn reads the clock once for the requests that it pops and once for those that it ends. So
//! the requests of one poll of the ring share all times. The batch counts them and records them in
//! the histograms together when the turn has ended.

use super::sampler::Counts;
use super::stages::OPS;
use super::{Op, RequestTimestamps, Stage, Stages};

/// Number of requests of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Requests popped in this turn and not finished.
    pending: u32,
    /// Requests popped in this turn that ended during submission.
    inline: u32,
}

/// Requests that were known and popped at the same time.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    request_timestamps: RequestTimestamps,
    counts: [Count; OPS],
}

/// Requests that ended in this turn, with the same times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    op: Op,
    known: u64,
    /// Time at which the disk received them.
    given: u64,
    /// Time at which the reactor saw their end; 0 if they ended during submission.
    reaped: u64,
    count: u32,
}

/// Requests that one turn has popped and ended.
#[derive(Debug, Default)]
pub(crate) struct TurnBatch {
    group: Group,
    /// Earlier groups of this turn.
    groups: Vec<Group>,
    ended: Vec<Ended>,
    /// Whether the batch has more than requests of one poll that ended during submission.
    mixed: bool,
}

impl TurnBatch {
    /// Sets the times of the first requests that this turn pops.
    #[inline]
    pub(crate) fn begins(&mut self, request_timestamps: RequestTimestamps) {
        self.group.request_timestamps = request_timestamps;
    }

    /// Sets the times of the requests popped from now on.
    pub(crate) fn set_times(&mut self, request_timestamps: RequestTimestamps) {
        self.mixed = true;
        if self.group.request_timestamps != request_timestamps {
            if self.group.counts.iter().any(|count| count.pending + count.inline > 0) {
                self.groups.push(self.group);
            }
            self.group = Group { request_timestamps, ..Group::default() };
        }
    }

    /// Returns the times of the requests popped now.
    #[inline]
    pub(crate) fn stamps(&self) -> RequestTimestamps {
        self.group.request_timestamps
    }

    /// Counts a request that was popped and has not ended.
    #[inline]
    pub(crate) fn pending(&mut self, op: Op) {
        self.mixed = true;
        if let Some(count) = self.group.counts.get_mut(op as usize) {
            count.pending += 1;
        }
    }

    /// Counts a request that was popped and ended during submission.
    #[inline]
    pub(crate) fn inline(&mut self, op: Op) {
        if let Some(count) = self.group.counts.get_mut(op as usize) {
            count.inline += 1;
        }
    }

    /// Counts a request of this or an earlier turn that has ended. The reactor saw its end at
    /// `reaped`; 0 if it ended during submission.
    pub(crate) fn ended(&mut self, op: Op, request_timestamps: &RequestTimestamps, reaped: u64) {
        self.mixed = true;
        let (known, given) = (request_timestamps.known, request_timestamps.given());
        let one = Ended { op, known, given, reaped, count: 1 };
        match self.ended.last_mut() {
            Some(last) if one == (Ended { count: 1, ..*last }) => last.count += 1,
            _ => self.ended.push(one),
        }
    }

    /// Returns whether the batch has only requests of one poll that all ended during submission,
    /// without a cap.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !self.mixed && self.group.request_timestamps.held == 0
    }

    /// Adds `counts` requests that share the times of this turn.
    #[inline]
    pub(crate) fn add_counts(&mut self, counts: Counts) {
        for (count, more) in self.group.counts.iter_mut().zip(counts) {
            count.inline += more;
        }
    }

    /// Takes the counts of a plain batch.
    #[inline]
    pub(crate) fn take_plain(&mut self) -> Counts {
        self.group.counts.each_mut().map(|count| std::mem::take(&mut count.inline))
    }

    /// Records the batch. The driver sees the ended requests of this turn since `now`.
    #[inline]
    pub(crate) fn record(&mut self, stages: &Stages, now: u64) {
        self.mixed = false;
        if !self.groups.is_empty() {
            self.groups.drain(..).for_each(|mut group| group.record(stages, now));
        }
        self.group.record(stages, now);
        if !self.ended.is_empty() {
            self.ended.drain(..).for_each(|one| one.record(stages, now));
        }
    }
}

impl Group {
    /// Records the group in the histograms and clears it.
    #[inline]
    fn record(&mut self, stages: &Stages, now: u64) {
        for (op, count) in Op::ALL.iter().zip(&mut self.counts) {
            let Count { pending, inline } = std::mem::take(count);
            let popped = u64::from(pending + inline);
            if popped == 0 {
                continue;
            }
            stages.record(Stage::Queue, *op, self.request_timestamps.queue(), popped);
            if self.request_timestamps.held > 0 {
                stages.record(Stage::Cap, *op, self.request_timestamps.held, popped);
            }
            if inline > 0 {
                let inline = u64::from(inline);
                stages.record(
                    Stage::Device,
                    *op,
                    now.saturating_sub(self.request_timestamps.popped),
                    inline,
                );
                stages.record(
                    Stage::Total,
                    *op,
                    now.saturating_sub(self.request_timestamps.known),
                    inline,
                );
            }
        }
    }
}

impl Ended {
    fn record(&self, stages: &Stages, now: u64) {
        let Self { op, known, given, reaped, count } = *self;
        let count = u64::from(count);
        let seen = if reaped == 0 { now } else { reaped };
        stages.record(Stage::Device, op, seen.saturating_sub(given), count);
        stages.record(Stage::Total, op, now.saturating_sub(known), count);
        if reaped != 0 {
            stages.record(Stage::Completion, op, now.saturating_sub(reaped), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(known: u64, popped: u64) -> RequestTimestamps {
        RequestTimestamps { known, popped, admitted: popped, held: 0 }
    }

    /// Returns the number of recorded values and their sum.
    fn of(stages: &Stages, stage: Stage, op: Op) -> (u64, u64) {
        let mut all = None;
        stages.add_to(stage, op, &mut all);
        all.map_or((0, 0), |all| (all.count(), all.sum_ns()))
    }

    #[test]
    fn groups_of_one_turn_keep_their_own_times() {
        let (mut batch, stages) = (TurnBatch::default(), Stages::default());
        batch.begins(stamps(100, 150));
        batch.inline(Op::Read);
        batch.inline(Op::Read);
        batch.pending(Op::Write);
        batch.set_times(stamps(100, 150));
        batch.inline(Op::Read);
        batch.set_times(RequestTimestamps { held: 5, ..stamps(140, 150) });
        batch.inline(Op::Read);
        batch.record(&stages, 170);
        assert_eq!(of(&stages, Stage::Queue, Op::Read), (4, 3 * 50 + 5));
        assert_eq!(of(&stages, Stage::Cap, Op::Read), (1, 5));
        assert_eq!(of(&stages, Stage::Device, Op::Read), (4, 4 * 20));
        assert_eq!(of(&stages, Stage::Total, Op::Read), (4, 3 * 70 + 30));
        assert_eq!(of(&stages, Stage::Queue, Op::Write), (1, 50));
        assert_eq!(of(&stages, Stage::Device, Op::Write), (0, 0), "it is still on its way");
        batch.record(&stages, 900);
        assert_eq!(of(&stages, Stage::Total, Op::Read).0, 4, "nothing is counted twice");
    }

    #[test]
    fn what_ends_later_is_counted_when_it_does() {
        let (mut batch, stages) = (TurnBatch::default(), Stages::default());
        for known in [100, 100, 120] {
            batch.ended(Op::Flush, &stamps(known, 130), 200);
        }
        let waited = RequestTimestamps { known: 10, popped: 20, admitted: 190, held: 0 };
        batch.ended(Op::Flush, &waited, 0);
        batch.record(&stages, 210);
        assert_eq!(of(&stages, Stage::Device, Op::Flush), (4, 3 * 70 + 20));
        assert_eq!(of(&stages, Stage::Total, Op::Flush), (4, 110 + 110 + 90 + 200));
        assert_eq!(of(&stages, Stage::Completion, Op::Flush), (3, 30));
        assert_eq!(of(&stages, Stage::Queue, Op::Flush), (0, 0), "counted when it was popped");
    }
}

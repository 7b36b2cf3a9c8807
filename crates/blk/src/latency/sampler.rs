//! Sampling of turns that follow each other quickly: all are counted, one in four is timed.
//!
//! A queue that polls under load takes a few requests a turn, each finished within a few
//! microseconds. Recording the times of each in the histograms would cost such a queue several
//! percent of its throughput. So after a short turn, the next three short turns are only counted.
//! Their requests are recorded with the times of the adjacent turn that was timed.
//!
//! No slow request is lost. A turn is skipped only if its requests arrived a moment ago, ended
//! during submission, and finished within that time.

use super::stages::OPS;
use super::{Op, Stage, Stages};

/// Limit below which the duration of a turn, or a time in the ring, is short.
const SHORT_NS: u64 = 20_000;
/// Turns that are only counted after a timed one.
const LEFT_OUT: u32 = 3;
/// Number of empty polls after which counted turns are recorded, because readers wait for them.
const IDLE_POLLS: u32 = 64;

/// Times that the requests of a turn spent in the queue, in the device and in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnDurations {
    pub(crate) queue: u64,
    pub(crate) device: u64,
    pub(crate) total: u64,
}

impl TurnDurations {
    /// Returns whether the turn is too short to need a record of its own.
    pub(crate) fn is_short(&self) -> bool {
        self.queue < SHORT_NS && self.device < SHORT_NS
    }
}

/// Number of requests that ended during submission, by kind.
pub(crate) type Counts = [u32; OPS];

/// Sampler of one queue; see the module.
#[derive(Debug, Default)]
pub(crate) struct TurnSampler {
    /// Times of the last timed turn, if it was short.
    recent: Option<TurnDurations>,
    left_out: u32,
    /// Requests of the turns that were only counted.
    counts: Counts,
    carries: bool,
    idle: u32,
}

impl TurnSampler {
    /// Forgets the last timed turn, because the queue slept.
    pub(crate) fn wakes(&mut self) {
        self.recent = None;
    }

    /// Returns whether a turn with these durations may be counted only.
    #[inline]
    pub(crate) fn may_leave_out(&self, turn_durations: &TurnDurations) -> bool {
        self.recent.is_some() && self.left_out < LEFT_OUT && turn_durations.is_short()
    }

    /// Counts the requests of a turn that is not timed.
    #[inline]
    pub(crate) fn leave_out(&mut self, counts: &Counts) {
        self.carries = true;
        self.left_out += 1;
        self.idle = 0;
        for (sum, count) in self.counts.iter_mut().zip(counts) {
            *sum += count;
        }
    }

    /// Notes a timed turn. If it was short, returns the counts to record with its times. If not,
    /// records them with the times of the previous timed turn.
    #[inline]
    pub(crate) fn timed(
        &mut self,
        stages: &Stages,
        turn_durations: Option<TurnDurations>,
    ) -> Counts {
        let mut with_it = Counts::default();
        if self.carries && turn_durations.is_some() {
            with_it = std::mem::take(&mut self.counts);
            self.carries = false;
        } else {
            self.put_down(stages);
        }
        self.recent = turn_durations;
        (self.left_out, self.idle) = (0, 0);
        with_it
    }

    /// Notes a poll that found nothing.
    #[inline]
    pub(crate) fn rests(&mut self, stages: &Stages) {
        if self.carries {
            self.idle += 1;
            if self.idle >= IDLE_POLLS {
                self.put_down(stages);
            }
        }
    }

    /// Records the counted turns with the times of the last timed turn.
    #[inline]
    pub(crate) fn put_down(&mut self, stages: &Stages) {
        if std::mem::take(&mut self.carries)
            && let Some(TurnDurations { queue, device, total }) = self.recent
        {
            for (op, count) in Op::ALL.iter().zip(std::mem::take(&mut self.counts)) {
                if count > 0 {
                    stages.record(Stage::Queue, *op, queue, count.into());
                    stages.record(Stage::Device, *op, device, count.into());
                    stages.record(Stage::Total, *op, total, count.into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: TurnDurations = TurnDurations { queue: 100, device: 200, total: 300 };

    fn of(stages: &Stages, stage: Stage, op: Op) -> (u64, u64) {
        let mut all = None;
        stages.add_to(stage, op, &mut all);
        all.map_or((0, 0), |all| (all.count(), all.sum_ns()))
    }

    /// Counts a turn with one read without timing it.
    fn left_out(turn_sampler: &mut TurnSampler) {
        assert!(turn_sampler.may_leave_out(&QUICK));
        turn_sampler.leave_out(&[1, 0, 0, 0]);
    }

    #[test]
    fn three_of_four_are_left_out_after_one_that_was_short() {
        let (mut turn_sampler, stages) = (TurnSampler::default(), Stages::default());
        assert!(!turn_sampler.may_leave_out(&QUICK), "nothing was timed");
        assert_eq!(turn_sampler.timed(&stages, Some(QUICK)), [0; OPS]);
        assert!(
            !turn_sampler.may_leave_out(&TurnDurations { queue: SHORT_NS, ..QUICK }),
            "it waited in the ring"
        );
        assert!(
            !turn_sampler.may_leave_out(&TurnDurations { device: SHORT_NS, ..QUICK }),
            "it took long"
        );
        for _ in 0..3 {
            left_out(&mut turn_sampler);
        }
        assert!(!turn_sampler.may_leave_out(&QUICK));
        assert_eq!(turn_sampler.timed(&stages, Some(QUICK)), [3, 0, 0, 0]);
        left_out(&mut turn_sampler);
        turn_sampler.put_down(&stages);
        turn_sampler.wakes();
        assert!(!turn_sampler.may_leave_out(&QUICK), "it slept");
    }

    #[test]
    fn beside_a_turn_that_was_not_short_they_keep_the_times_of_the_one_before() {
        let (mut turn_sampler, stages) = (TurnSampler::default(), Stages::default());
        turn_sampler.timed(&stages, Some(QUICK));
        left_out(&mut turn_sampler);
        assert_eq!(turn_sampler.timed(&stages, None), [0; OPS]);
        assert_eq!(of(&stages, Stage::Queue, Op::Read), (1, 100));
        assert_eq!(of(&stages, Stage::Device, Op::Read), (1, 200));
        assert_eq!(of(&stages, Stage::Total, Op::Read), (1, 300));
        assert!(!turn_sampler.may_leave_out(&QUICK));
    }

    #[test]
    fn a_queue_that_rests_puts_down_what_it_has() {
        let (mut turn_sampler, stages) = (TurnSampler::default(), Stages::default());
        turn_sampler.timed(&stages, Some(QUICK));
        left_out(&mut turn_sampler);
        for _ in 1..IDLE_POLLS {
            turn_sampler.rests(&stages);
        }
        assert_eq!(of(&stages, Stage::Total, Op::Read).0, 0);
        turn_sampler.rests(&stages);
        turn_sampler.rests(&stages);
        assert_eq!(of(&stages, Stage::Total, Op::Read), (1, 300));
    }
}

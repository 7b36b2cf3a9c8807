//! Clock of a reactor: each reading of the time serves several purposes in a turn.
//!
//! The first reading of a turn is the lower bound for work that the next turn finds: that work was
//! absent before, so it arrived in between. Readings at both ends of a poller's batch give the time
//! for which the poller kept the thread. A poller that waited can then name the poller that delayed
//! it. None of this costs a reading of its own. A turn in which no poller needs the time makes no
//! reading.
//!
//! All times are nanoseconds of [`crate::clock_ns`]; 0 means no reading.

use crate::tsc_clock::ThreadClock;

/// Identifier of the owner that a poller serves; 0 for a poller without an owner.
pub type OwnerId = u32;

#[derive(Debug, Default)]
pub(crate) struct Clock {
    source: ThreadClock,
    /// Latest reading of this turn.
    now: u64,
    /// First reading of this turn.
    began: u64,
    /// Readings at the end of the last batch of this turn, and of the turn before.
    ended: u64,
    ended_before: u64,
    /// First reading of the turn before; 0 if that turn made no reading or the thread slept since.
    before: u64,
    /// First reading while the current poller runs.
    poll_began: u64,
    /// Pollers that kept the thread longest in this turn, and in the turn before.
    longest_turns: LongestTurns,
    kept_before: LongestTurns,
}

impl Clock {
    #[inline]
    pub(crate) fn now(&mut self) -> u64 {
        match self.now {
            0 => self.read(),
            now => now,
        }
    }

    #[inline]
    pub(crate) fn read(&mut self) -> u64 {
        let now = self.source.read();
        self.now = now;
        if self.began == 0 {
            self.began = now;
        }
        if self.poll_began == 0 {
            self.poll_began = now;
        }
        now
    }

    /// Reads the time at the end of a poller's batch.
    #[inline]
    pub(crate) fn read_end(&mut self) -> u64 {
        self.ended = self.read();
        self.ended
    }

    /// Returns when the pollers ran out of work, if this turn has found none: the end of the last
    /// batch if a poller read it, otherwise now.
    #[inline]
    pub(crate) fn idle_since(&mut self) -> u64 {
        if self.ended_before == 0 { self.now() } else { self.ended_before }
    }

    /// Sets the time to `now`, as in a turn of its own.
    #[cfg(test)]
    pub(crate) fn set(&mut self, now: u64) {
        self.now = now;
    }

    /// Returns when all pollers were last polled before this turn, or the begin of this turn if the
    /// turn before made no reading.
    #[inline]
    pub(crate) fn last_polled(&mut self) -> u64 {
        self.now();
        if self.before == 0 { self.began } else { self.before }
    }

    pub(crate) fn turn_begins(&mut self) {
        self.before = std::mem::take(&mut self.began);
        self.ended_before = std::mem::take(&mut self.ended);
        self.now = 0;
        if self.longest_turns.any() || self.kept_before.any() {
            self.kept_before = std::mem::take(&mut self.longest_turns);
        }
    }

    pub(crate) fn slept(&mut self) {
        (self.began, self.ended) = (0, 0);
        self.longest_turns = LongestTurns::default();
    }

    pub(crate) fn poll_begins(&mut self) {
        self.poll_began = self.now;
    }

    pub(crate) fn poll_ended(&mut self, label: OwnerId) {
        let began = std::mem::take(&mut self.poll_began);
        let kept = self.now.saturating_sub(began);
        if kept >= KEPT_MIN_NS {
            self.longest_turns.add(label, kept);
        }
    }

    pub(crate) fn longest_other(&self, label: OwnerId) -> Option<(OwnerId, u64)> {
        let both = [self.longest_turns.other(label), self.kept_before.other(label)];
        both.into_iter().flatten().max_by_key(|(_, time)| *time)
    }
}

/// Shortest time that is recorded: a shorter one delays no other poller noticeably.
const KEPT_MIN_NS: u64 = 10_000;

/// The two owners that kept the thread longest in a turn, each with its time in nanoseconds.
#[derive(Debug, Default)]
struct LongestTurns([(OwnerId, u64); 2]);

impl LongestTurns {
    fn any(&self) -> bool {
        let [first, _] = self.0;
        first.1 > 0
    }

    #[cold]
    fn add(&mut self, label: OwnerId, time: u64) {
        let [first, second] = &mut self.0;
        if first.0 == label {
            first.1 += time;
        } else if second.0 == label {
            second.1 += time;
        } else if time > second.1 {
            *second = (label, time);
        }
        if second.1 > first.1 {
            std::mem::swap(first, second);
        }
    }

    fn other(&self, label: OwnerId) -> Option<(OwnerId, u64)> {
        self.0.into_iter().find(|(one, time)| *one != label && *one != 0 && *time > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_looks_back_to_the_one_before() {
        let mut clock = Clock::default();
        clock.turn_begins();
        let first = clock.now();
        assert_eq!(clock.last_polled(), first, "nothing lies before the first turn");
        let later = clock.read();
        assert_eq!(clock.now(), later);
        assert_eq!(clock.last_polled(), first, "whoever is asked later was not looked at since");
        clock.turn_begins();
        assert_eq!(clock.last_polled(), first);
        clock.slept();
        clock.turn_begins();
        let woken = clock.now();
        assert!(woken >= later);
        assert_eq!(clock.last_polled(), woken, "while it slept nothing waited for the thread");
        clock.turn_begins();
        clock.turn_begins();
        let now = clock.now();
        assert_eq!(clock.last_polled(), now, "a turn without a reading found nothing");
    }

    #[test]
    fn who_is_idle_is_so_since_the_last_batch_ended() {
        let mut clock = Clock::default();
        clock.turn_begins();
        clock.now();
        let ended = clock.read_end();
        clock.turn_begins();
        assert_eq!(clock.idle_since(), ended);
        assert!(clock.read() >= ended);
        clock.turn_begins();
        let idle = clock.idle_since();
        assert_eq!(idle, clock.now(), "nobody has read the end of the batch");
        clock.read_end();
        clock.slept();
        clock.turn_begins();
        assert_eq!(clock.idle_since(), clock.now());
    }

    #[test]
    fn who_kept_the_thread_is_remembered_for_a_turn() {
        let mut clock = Clock::default();
        clock.turn_begins();
        for label in [7, 8, 7] {
            clock.poll_begins();
            let began = clock.now();
            while clock.read() < began + KEPT_MIN_NS {}
            clock.poll_ended(label);
        }
        let (label, time) = clock.longest_other(8).unwrap();
        assert!(label == 7 && time >= KEPT_MIN_NS);
        assert_eq!(clock.longest_other(7).unwrap().0, 8);
        clock.turn_begins();
        assert_eq!(clock.longest_other(8), Some((7, time)));
        clock.turn_begins();
        assert_eq!(clock.longest_other(8), None);
    }

    #[test]
    fn the_two_longest_stay() {
        let mut longest_turns = LongestTurns::default();
        for (label, ms) in [(1, 5), (2, 9), (3, 7), (1, 1), (4, 2)] {
            longest_turns.add(label, ms);
        }
        assert_eq!(longest_turns.other(9), Some((2, 9)));
        assert_eq!(longest_turns.other(2), Some((3, 7)));
    }
}

//! Time on a reactor: read once a batch and stage, and put to use for more than one.
//!
//! A turn's first reading is where the turn after it looks back to: what a poller finds now and
//! did not find then arrived in between. Readings at both ends of a poller's batch tell how long
//! it kept the thread, so that whoever waited can say for whom. None of this costs a reading of
//! its own; a turn in which nobody asks for the time has none.

use std::time::{Duration, Instant};

/// What identifies whom a poller serves; 0 for nobody in particular.
pub type Label = u32;

#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Latest reading of this turn.
    now: Option<Instant>,
    /// First reading of this turn.
    began: Option<Instant>,
    /// First reading of the turn before; none when it had no reading, or the thread slept since.
    before: Option<Instant>,
    /// First reading while the present poller is asked.
    poll_began: Option<Instant>,
    /// Who kept the thread in this turn, and in the one before.
    kept: Kept,
    kept_before: Kept,
}

impl Clock {
    pub(crate) fn now(&mut self) -> Instant {
        match self.now {
            Some(now) => now,
            None => self.read(),
        }
    }

    pub(crate) fn read(&mut self) -> Instant {
        let now = Instant::now();
        self.now = Some(now);
        self.began.get_or_insert(now);
        self.poll_began.get_or_insert(now);
        now
    }

    /// The last look at everything before this turn, or this turn's begin if nobody did anything
    /// in the turn before.
    pub(crate) fn last_look(&mut self) -> Instant {
        let now = self.now();
        self.before.or(self.began).unwrap_or(now)
    }

    pub(crate) fn turn_begins(&mut self) {
        self.before = self.began.take();
        self.now = None;
        self.kept_before = std::mem::take(&mut self.kept);
    }

    pub(crate) fn slept(&mut self) {
        self.began = None;
        self.kept = Kept::default();
    }

    pub(crate) fn poll_begins(&mut self) {
        self.poll_began = self.now;
    }

    pub(crate) fn poll_ended(&mut self, label: Label) {
        if let (Some(began), Some(now)) = (self.poll_began.take(), self.now)
            && now > began
        {
            self.kept.add(label, now - began);
        }
    }

    pub(crate) fn longest_other(&self, label: Label) -> Option<(Label, Duration)> {
        let both = [self.kept.other(label), self.kept_before.other(label)];
        both.into_iter().flatten().max_by_key(|(_, time)| *time)
    }
}

/// The two that kept the thread longest in a turn.
#[derive(Debug, Default)]
struct Kept([(Label, Duration); 2]);

impl Kept {
    fn add(&mut self, label: Label, time: Duration) {
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

    fn other(&self, label: Label) -> Option<(Label, Duration)> {
        self.0.into_iter().find(|(one, time)| *one != label && *one != 0 && !time.is_zero())
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
        assert_eq!(clock.last_look(), first, "nothing lies before the first turn");
        let later = clock.read();
        assert_eq!(clock.now(), later);
        assert_eq!(clock.last_look(), first, "whoever is asked later was not looked at since");
        clock.turn_begins();
        assert_eq!(clock.last_look(), first);
        clock.slept();
        clock.turn_begins();
        let woken = clock.now();
        assert_eq!(clock.last_look(), woken, "while it slept nothing waited for the thread");
        clock.turn_begins();
        clock.turn_begins();
        assert!(clock.last_look() > woken, "a turn without a reading found nothing");
    }

    #[test]
    fn who_kept_the_thread_is_remembered_for_a_turn() {
        let mut clock = Clock::default();
        clock.turn_begins();
        for label in [7, 8, 7] {
            clock.poll_begins();
            clock.now();
            std::thread::yield_now();
            clock.read();
            clock.poll_ended(label);
        }
        let (label, time) = clock.longest_other(8).unwrap();
        assert!(label == 7 && !time.is_zero());
        assert_eq!(clock.longest_other(7).unwrap().0, 8);
        clock.turn_begins();
        assert_eq!(clock.longest_other(8), Some((7, time)));
        clock.turn_begins();
        assert_eq!(clock.longest_other(8), None);
    }

    #[test]
    fn the_two_longest_stay() {
        let mut kept = Kept::default();
        for (label, ms) in [(1, 5), (2, 9), (3, 7), (1, 1), (4, 2)] {
            kept.add(label, Duration::from_millis(ms));
        }
        assert_eq!(kept.other(9), Some((2, Duration::from_millis(9))));
        assert_eq!(kept.other(2), Some((3, Duration::from_millis(7))));
    }
}

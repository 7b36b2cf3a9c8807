//! Whether to look for a client's next request for a moment, or to sleep at once.
//!
//! To wake a reactor costs the client a system call's worth of time for every request, as long as
//! the server is the faster one. A client that is known to come back within microseconds is
//! looked for instead. One that shares our CPU cannot come back while we look: then the gaps
//! that are seen grow, and with them the looking ends by itself. One that is away is looked for
//! once, for [`LONGEST`]. And where others want this CPU, or this reactor, nobody is looked for:
//! see [`TAKEN`].

use std::time::{Duration, Instant};

/// Longest time to look: about what it costs both sides to sleep and to be woken.
const LONGEST: Duration = Duration::from_micros(40);
/// Gaps count up to this, so that a client that was away is believed again soon.
const GAP_MAX: Duration = Duration::from_micros(400);
/// Weight of a new gap, as a part of eight.
const WEIGHT: u32 = 8;
/// Two looks are a microsecond or two apart. With so much between them somebody else had this
/// CPU, or had work for this reactor: looking took it from them.
const TAKEN: Duration = Duration::from_micros(200);
/// For so long nobody is looked for then.
const REST: Duration = Duration::from_millis(100);

/// The gaps of one client: from when everything was taken to when there is more.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    expected: Duration,
    since: Option<Instant>,
    looked: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self { expected: GAP_MAX, since: None, looked: None, rests_until: None }
    }
}

impl BusyPoll {
    /// There was more.
    pub(crate) fn received(&mut self, now: Instant) {
        self.looked = None;
        let Some(since) = self.since.take() else { return };
        let gap = now.saturating_duration_since(since).min(GAP_MAX);
        self.expected = (self.expected * (WEIGHT - 1) + gap) / WEIGHT;
    }

    /// There is nothing; true: look again.
    pub(crate) fn looks(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let looked = self.looked.take();
        if looked.is_some_and(|looked| now.saturating_duration_since(looked) > TAKEN) {
            self.rests_until = now.checked_add(REST);
        }
        if self.rests_until.is_some_and(|until| now < until) {
            return false;
        }
        self.rests_until = None;
        let window = (self.expected * 2).min(LONGEST);
        let looks = self.expected <= LONGEST && now.saturating_duration_since(since) < window;
        self.looked = looks.then_some(now);
        looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that comes back after `gap`, `times` times; for how long it was looked for then.
    fn run(busy_poll: &mut BusyPoll, gap: Duration, times: u32) -> Duration {
        let (mut now, mut looked) = (Instant::now(), Duration::ZERO);
        for _ in 0..times {
            let begin = now;
            looked = Duration::ZERO;
            while looked < gap && busy_poll.looks(now) {
                now += Duration::from_micros(1);
                looked = now - begin;
            }
            now = now.max(begin + gap);
            busy_poll.received(now);
        }
        looked
    }

    #[test]
    fn fast_clients_are_looked_for_and_slow_ones_are_not() {
        let mut busy_poll = BusyPoll::default();
        let us = Duration::from_micros;
        assert_eq!(run(&mut busy_poll, us(5), 1), us(0), "nothing is known yet");
        assert_eq!(run(&mut busy_poll, us(5), 60), us(5), "found each time");
        let late = run(&mut busy_poll, Duration::from_secs(1), 1);
        assert!(late > us(0) && late <= LONGEST, "{late:?}");
        assert_eq!(run(&mut busy_poll, us(300), 10), us(0), "not worth it");
    }

    #[test]
    fn a_cpu_that_others_want_is_not_used_for_looking() {
        let us = Duration::from_micros;
        let mut busy_poll = BusyPoll::default();
        run(&mut busy_poll, us(5), 60);
        let now = Instant::now();
        assert!(busy_poll.looks(now), "it is expected");
        // Somebody else had the CPU between two looks.
        let back = now + us(250);
        assert!(!busy_poll.looks(back));
        busy_poll.received(back);
        let begin = back;
        let mut looks = 0;
        // It comes back as fast as before, for as long as we rest and ten times more.
        for turn in 1..=20 {
            let now = begin + Duration::from_millis(5) * turn;
            looks += u32::from(busy_poll.looks(now));
            busy_poll.received(now + us(5));
        }
        assert_eq!(looks, 1, "the last one, when the rest is over");
    }

    #[test]
    fn an_idle_client_is_looked_for_once() {
        let us = Duration::from_micros;
        let mut busy_poll = BusyPoll::default();
        run(&mut busy_poll, us(5), 60);
        let now = Instant::now();
        let looks = (0..100_000).filter(|at| busy_poll.looks(now + us(*at))).count();
        assert!(looks <= 40, "{looks}");
    }
}

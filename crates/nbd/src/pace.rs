//! Whether to look for a client's next request for a moment, or to sleep at once.
//!
//! To wake a reactor costs the client a system call's worth of time for every request, as long as
//! the server is the faster one. A client that is known to come back within microseconds is
//! looked for instead. One that shares our CPU cannot come back while we look: then the gaps
//! that are seen grow, and with them the looking ends by itself.

use std::time::{Duration, Instant};

/// Longest time to look: about what it costs both sides to sleep and to be woken.
const LONGEST: Duration = Duration::from_micros(40);
/// Gaps count up to this, so that a client that was away is believed again soon.
const GAP_MAX: Duration = Duration::from_micros(400);
/// Weight of a new gap, as a part of eight.
const WEIGHT: u32 = 8;

/// The gaps of one client: from when everything was taken to when there is more.
#[derive(Debug)]
pub(crate) struct Pace {
    expected: Duration,
    since: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { expected: GAP_MAX, since: None }
    }
}

impl Pace {
    /// There was more.
    pub(crate) fn received(&mut self, now: Instant) {
        let Some(since) = self.since.take() else { return };
        let gap = now.saturating_duration_since(since).min(GAP_MAX);
        self.expected = (self.expected * (WEIGHT - 1) + gap) / WEIGHT;
    }

    /// There is nothing; true: look again.
    pub(crate) fn looks(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let window = (self.expected * 2).min(LONGEST);
        self.expected <= LONGEST && now.saturating_duration_since(since) < window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that comes back after `gap`, `times` times; for how long it was looked for then.
    fn run(pace: &mut Pace, gap: Duration, times: u32) -> Duration {
        let (mut now, mut looked) = (Instant::now(), Duration::ZERO);
        for _ in 0..times {
            let begin = now;
            looked = Duration::ZERO;
            while looked < gap && pace.looks(now) {
                now += Duration::from_micros(1);
                looked = now - begin;
            }
            now = now.max(begin + gap);
            pace.received(now);
        }
        looked
    }

    #[test]
    fn fast_clients_are_looked_for_and_slow_ones_are_not() {
        let mut pace = Pace::default();
        let us = Duration::from_micros;
        assert_eq!(run(&mut pace, us(5), 1), us(0), "nothing is known yet");
        assert_eq!(run(&mut pace, us(5), 60), us(5), "found each time");
        let late = run(&mut pace, Duration::from_secs(1), 1);
        assert!(late > us(0) && late <= LONGEST, "{late:?}");
        assert_eq!(run(&mut pace, us(300), 10), us(0), "not worth it");
    }
}

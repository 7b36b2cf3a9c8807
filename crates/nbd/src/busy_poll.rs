//! Decides whether the reactor polls for a client's next request or sleeps at once.
//!
//! While the server is faster than the client, waking the reactor costs the client a system call
//! per request. So the reactor polls for clients that usually send again within microseconds.
//!
//! A client on the reactor's own CPU cannot run while the reactor polls. Its measured gaps grow,
//! which ends the polling. An idle client causes one poll phase of at most [`LONGEST`]. If another
//! thread needs the CPU or other work waits for this reactor, polling pauses: see [`TAKEN`].

use std::time::{Duration, Instant};

/// Longest poll phase: about the cost of a sleep and a wakeup for both sides.
const LONGEST: Duration = Duration::from_micros(40);
/// Upper bound of a measured gap. It lets polling resume soon after an idle client becomes active.
const GAP_MAX: Duration = Duration::from_micros(400);
/// Divisor of the moving average: a new gap counts one eighth.
const WEIGHT: u32 = 8;
/// Longest gap between two polls that counts as undisturbed. Polls are normally one or two
/// microseconds apart. After a longer gap, another thread used the CPU or the reactor had other
/// work. Polling would have taken that time.
const TAKEN: Duration = Duration::from_micros(200);
/// Pause of polling after such a gap.
const REST: Duration = Duration::from_millis(100);

/// Moving average of a client's gaps. A gap lasts from an empty socket to the next received data.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    expected: Duration,
    since: Option<Instant>,
    polled_at: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self { expected: GAP_MAX, since: None, polled_at: None, rests_until: None }
    }
}

impl BusyPoll {
    /// Records that data has arrived.
    pub(crate) fn received(&mut self, now: Instant) {
        self.polled_at = None;
        let Some(since) = self.since.take() else { return };
        let gap = now.saturating_duration_since(since).min(GAP_MAX);
        self.expected = (self.expected * (WEIGHT - 1) + gap) / WEIGHT;
    }

    /// Records that the socket is empty. Returns whether to poll again.
    pub(crate) fn should_poll(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let polled_at = self.polled_at.take();
        if polled_at.is_some_and(|polled_at| now.saturating_duration_since(polled_at) > TAKEN) {
            self.rests_until = now.checked_add(REST);
        }
        if self.rests_until.is_some_and(|until| now < until) {
            return false;
        }
        self.rests_until = None;
        let window = (self.expected * 2).min(LONGEST);
        let poll_again = self.expected <= LONGEST && now.saturating_duration_since(since) < window;
        self.polled_at = poll_again.then_some(now);
        poll_again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a client that sends `times` times with pauses of `gap`. Returns the duration of
    /// the last poll phase.
    fn run(busy_poll: &mut BusyPoll, gap: Duration, times: u32) -> Duration {
        let (mut now, mut polled) = (Instant::now(), Duration::ZERO);
        for _ in 0..times {
            let begin = now;
            polled = Duration::ZERO;
            while polled < gap && busy_poll.should_poll(now) {
                now += Duration::from_micros(1);
                polled = now - begin;
            }
            now = now.max(begin + gap);
            busy_poll.received(now);
        }
        polled
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
        assert!(busy_poll.should_poll(now), "it is expected");
        // Another thread used the CPU between two polls.
        let back = now + us(250);
        assert!(!busy_poll.should_poll(back));
        busy_poll.received(back);
        let begin = back;
        let mut polls = 0;
        // The client sends as fast as before, throughout the pause and beyond it.
        for turn in 1..=20 {
            let now = begin + Duration::from_millis(5) * turn;
            polls += u32::from(busy_poll.should_poll(now));
            busy_poll.received(now + us(5));
        }
        assert_eq!(polls, 1, "the last one, when the rest is over");
    }

    #[test]
    fn an_idle_client_is_looked_for_once() {
        let us = Duration::from_micros;
        let mut busy_poll = BusyPoll::default();
        run(&mut busy_poll, us(5), 60);
        let now = Instant::now();
        let polls = (0..100_000).filter(|at| busy_poll.should_poll(now + us(*at))).count();
        assert!(polls <= 40, "{polls}");
    }
}

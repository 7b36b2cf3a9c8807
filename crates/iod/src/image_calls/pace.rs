//! Pace of a copy beside the disks of guests: it works in short steps, and pauses between them.
//!
//! The time of the guests' requests during a step is compared with that during the pauses, when the
//! copy leaves the storage alone. While requests take longer beside the copy, pauses grow; they shrink
//! when requests do not notice it. Without requests there are no pauses. `model_tests` shows this pace
//! on models of storage.

use std::time::Duration;

/// Shortest time of a step. Each step reads the counters of all disks.
pub(super) const STEP: Duration = Duration::from_millis(5);
/// Time of a request beside the copy over that without it, from which on pauses grow.
const MOST_SLOWDOWN: f64 = 1.2;
/// Pause over the step before it: at first, at least, and at most. A copy that a busy guest notices
/// has 1% of the time, so that 99 of 100 requests do not meet it.
const FIRST_PAUSE: f64 = 1.0;
const LEAST_PAUSE: f64 = 0.25;
const MOST_PAUSE: f64 = 99.0;
/// Longest pause: what a step costs is known better than what storage does for long.
const LONGEST: Duration = Duration::from_secs(2);
/// Age of a request that is in the storage from which on the storage counts as slow.
const LATE: Duration = Duration::from_millis(100);
/// Weight of the last pause in the usual time of a request.
const RECENT: f64 = 0.2;
/// Shortest pause in usual times of a request: requests that the step has met end in its first half, and
/// others in its second half.
const PAUSE_REQUESTS: f64 = 4.0;

/// Requests of the disks of a process since their start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskLoad {
    /// Number of reads and writes that have ended.
    pub(crate) requests: u64,
    /// Time that they spent in the storage, in nanoseconds.
    pub(crate) total_ns: u64,
    /// Age of the oldest request that is in the storage now.
    pub(crate) oldest: Duration,
}

impl DiskLoad {
    /// Returns the mean time of a request since `before`, in nanoseconds. `None` without requests.
    fn mean_ns_since(self, before: Self) -> Option<f64> {
        let requests = self.requests.saturating_sub(before.requests);
        let total_ns = self.total_ns.saturating_sub(before.total_ns);
        (requests > 0).then(|| total_ns as f64 / requests as f64)
    }
}

/// Pauses of a copy.
#[derive(Debug)]
pub(super) struct Pace {
    /// Load at the end of the last step or pause.
    last: DiskLoad,
    /// Usual time of a request without the copy, in nanoseconds.
    usual_ns: Option<f64>,
    /// Pause over step.
    pause: f64,
}

impl Pace {
    /// Begins with the present load.
    pub(super) fn new(load: DiskLoad) -> Self {
        Self { last: load, usual_ns: None, pause: FIRST_PAUSE }
    }

    /// Returns the pause after a step of this length. `load` is that at its end.
    pub(super) fn after_step(&mut self, step: Duration, load: DiskLoad) -> Duration {
        let beside = load.mean_ns_since(self.last);
        self.last = load;
        let oldest_ns = load.oldest.as_nanos() as f64;
        let is_slow = match (beside, self.usual_ns) {
            _ if load.oldest > LATE => true,
            // No guest uses the storage.
            (None, _) if load.oldest.is_zero() => return Duration::ZERO,
            (_, None) => false,
            // A request that goes on longer than usual is slow, too.
            (beside, Some(usual)) => beside.unwrap_or(0.0).max(oldest_ns) > usual * MOST_SLOWDOWN,
        };
        let factor = if is_slow { 2.0 } else { 0.9 };
        if self.usual_ns.is_some() || is_slow {
            self.pause = (self.pause * factor).clamp(LEAST_PAUSE, MOST_PAUSE);
        }
        let least = Duration::from_nanos((self.usual_ns.unwrap_or(0.0) * PAUSE_REQUESTS) as u64);
        step.mul_f64(self.pause).max(least).min(LONGEST)
    }

    /// Notes the load in the middle of a pause: the requests that the step has met have ended, and tell
    /// nothing about the storage without the copy.
    pub(super) fn amid_pause(&mut self, load: DiskLoad) {
        self.last = load;
    }

    /// Notes the load at the end of a pause.
    pub(super) fn after_pause(&mut self, load: DiskLoad) {
        if let Some(alone) = load.mean_ns_since(self.last) {
            let before = self.usual_ns.unwrap_or(alone);
            self.usual_ns = Some(before * (1.0 - RECENT) + alone * RECENT);
        }
        self.last = load;
    }
}

#[cfg(test)]
mod model_tests;

#[cfg(test)]
mod tests {
    use super::*;

    /// Guests with a request each millisecond, which takes so many times longer beside the copy.
    struct Guests {
        load: DiskLoad,
        slowdown: f64,
    }

    impl Guests {
        fn run(&mut self, time: Duration, is_beside: bool) -> DiskLoad {
            let requests = time.as_millis() as u64;
            let each = 100_000.0 * if is_beside { self.slowdown } else { 1.0 };
            self.load.requests += requests;
            self.load.total_ns += (requests as f64 * each) as u64;
            self.load
        }
    }

    /// Returns the part of the time in which the copy works at last.
    fn share(slowdown: f64) -> f64 {
        let mut guests = Guests { load: DiskLoad::default(), slowdown };
        let mut pace = Pace::new(guests.load);
        let (mut worked, mut all) = (0.0, 0.0);
        for round in 0..400 {
            let step = Duration::from_millis(10);
            let pause = pace.after_step(step, guests.run(step, true));
            pace.amid_pause(guests.run(pause / 2, false));
            pace.after_pause(guests.run(pause / 2, false));
            if round >= 200 {
                worked += step.as_secs_f64();
                all += (step + pause).as_secs_f64();
            }
        }
        worked / all
    }

    #[test]
    fn guests_that_notice_the_copy_get_nearly_all_of_the_time() {
        assert!(share(3.0) < 0.015, "{}", share(3.0));
        assert!(share(1.1) > 0.7, "{}", share(1.1));
    }

    #[test]
    fn a_copy_without_guests_does_not_pause() {
        let mut pace = Pace::new(DiskLoad::default());
        let step = Duration::from_millis(10);
        assert_eq!(pace.after_step(step, DiskLoad::default()), Duration::ZERO);
        // A guest begins.
        let one = DiskLoad { requests: 1, total_ns: 100_000, ..DiskLoad::default() };
        assert_eq!(pace.after_step(step, one), step);
    }

    #[test]
    fn a_request_that_does_not_end_makes_pauses_longer() {
        let mut pace = Pace::new(DiskLoad::default());
        let late = DiskLoad { oldest: Duration::from_secs(1), ..DiskLoad::default() };
        let step = Duration::from_millis(10);
        let pauses: Vec<_> = (0..8).map(|_| pace.after_step(step, late).as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 990, 990]);
        assert_eq!(pace.after_step(Duration::from_secs(1), late), LONGEST);
    }
}

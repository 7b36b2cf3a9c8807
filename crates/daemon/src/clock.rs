//! Wall clock for clients and monotonic clock for measurements.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use xenapi::Date;

/// Both clocks of a host. The monotonic clock measures ages and deadlines. The wall clock is only
/// shown to clients, because it can be set.
#[derive(Clone)]
pub struct Clock {
    wall: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    steady: Arc<dyn Fn() -> Instant + Send + Sync>,
}

impl Clock {
    /// Creates the clocks of this host.
    pub fn of_host() -> Self {
        Self::new(SystemTime::now, Instant::now)
    }

    /// Creates a clock from these two time sources.
    pub fn new(
        wall: impl Fn() -> SystemTime + Send + Sync + 'static,
        steady: impl Fn() -> Instant + Send + Sync + 'static,
    ) -> Self {
        Self { wall: Arc::new(wall), steady: Arc::new(steady) }
    }

    /// Returns the wall-clock time for clients.
    pub fn date(&self) -> Date {
        date_of((self.wall)())
    }

    /// Returns the wall-clock time so long ago, for clients.
    pub fn date_before(&self, ago: Duration) -> Date {
        let now = (self.wall)();
        date_of(now.checked_sub(ago).unwrap_or(now))
    }

    /// Returns the monotonic time for ages and deadlines.
    pub fn now(&self) -> Instant {
        (self.steady)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.date())
    }
}

/// Converts a time to the date type of the API.
pub fn date_of(time: SystemTime) -> Date {
    let seconds = |since: Duration| i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Date(seconds(since)),
        Err(before) => Date(-seconds(before.duration())),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    use super::*;

    /// A test clock that moves only when it is set.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Hands {
        wall_s: Arc<AtomicI64>,
        steady_s: Arc<AtomicI64>,
    }

    impl Hands {
        pub(crate) fn clock(&self) -> Clock {
            let (wall, steady, start) =
                (self.wall_s.clone(), self.steady_s.clone(), Instant::now());
            let wall = move || {
                let seconds = wall.load(Ordering::Relaxed);
                let by = Duration::from_secs(seconds.unsigned_abs());
                if seconds < 0 { UNIX_EPOCH - by } else { UNIX_EPOCH + by }
            };
            let steady =
                move || start + Duration::from_secs(steady.load(Ordering::Relaxed).unsigned_abs());
            Clock::new(wall, steady)
        }

        /// Sets the wall clock.
        pub(crate) fn set(&self, seconds: i64) {
            self.wall_s.store(seconds, Ordering::Relaxed);
        }

        /// Advances both clocks.
        pub(crate) fn pass(&self, seconds: i64) {
            self.wall_s.fetch_add(seconds, Ordering::Relaxed);
            self.steady_s.fetch_add(seconds, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_clock_that_is_set_measures_nothing() {
        let hands = Hands::default();
        let clock = hands.clock();
        let before = clock.now();
        hands.set(-1);
        assert_eq!((clock.date(), clock.now()), (Date(-1), before));
        hands.set(1_467_331_199);
        assert_eq!(clock.date().to_string(), "20160630T23:59:59Z");
        hands.pass(60);
        assert_eq!(clock.now() - before, Duration::from_secs(60));
    }
}

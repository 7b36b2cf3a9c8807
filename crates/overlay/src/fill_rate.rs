//! Rate at which an overlay fills.

use std::time::{Duration, Instant};

/// Shortest time over which a rate is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// Rate over the last window that has ended, at the latest question.
#[derive(Debug)]
pub(crate) struct FillRate {
    began: Instant,
    grown: i64,
    bytes_per_second: Option<u64>,
}

impl FillRate {
    pub(crate) fn new(now: Instant) -> Self {
        Self { began: now, grown: 0, bytes_per_second: None }
    }

    /// Returns the rate in bytes a second, of a disk that has grown by `grown` bytes until `now`.
    /// `None` in the first window. A disk that shrinks has the rate 0.
    pub(crate) fn update(&mut self, now: Instant, grown: i64) -> Option<u64> {
        let time = now.saturating_duration_since(self.began);
        if time >= WINDOW {
            let bytes = u64::try_from(grown.saturating_sub(self.grown)).unwrap_or(0);
            let rate = u128::from(bytes) * 1000 / time.as_millis().max(1);
            self.bytes_per_second = Some(u64::try_from(rate).unwrap_or(u64::MAX));
            (self.began, self.grown) = (now, grown);
        }
        self.bytes_per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_window() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut rate = FillRate::new(start);
        assert_eq!(rate.update(at(9), 900), None);
        assert_eq!(rate.update(at(10), 1000), Some(100));
        assert_eq!(rate.update(at(11), 5000), Some(100), "the window has not ended");
        assert_eq!(rate.update(at(30), 5000), Some(200));
        assert_eq!(rate.update(at(40), 4000), Some(0), "it shrinks");
        assert_eq!(
            rate.update(at(50), i64::MAX),
            Some(u64::try_from(i64::MAX - 4000).unwrap() / 10)
        );
    }
}

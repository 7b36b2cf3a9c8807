//! Pauses of a keeper before it restarts a dead worker.

use std::time::Duration;

/// Pause after the second death in a row. It doubles with each further death.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Time after which a worker counts as stable: the next death counts as the first again.
const STABLE: Duration = Duration::from_secs(10);

/// Pause that depends on the number of deaths in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates a backoff with pauses of at most `longest`.
    pub(super) fn new(longest: Duration) -> Self {
        Self { longest, next: Duration::ZERO }
    }

    /// Returns the pause before the next start, after a worker died that lived for `lived`.
    pub(super) fn died(&mut self, lived: Duration) -> Duration {
        if lived >= STABLE {
            self.next = Duration::ZERO;
        }
        let pause = self.next;
        self.next = (pause * 2).max(FIRST_PAUSE).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_forgotten() {
        let mut backoff = Backoff::new(Duration::from_secs(1));
        let mut pauses = |lived| backoff.died(Duration::from_secs(lived)).as_millis();
        assert_eq!([(); 7].map(|()| pauses(1)), [0, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!([pauses(10), pauses(0), pauses(60), pauses(9)], [0, 100, 0, 100]);
        let mut never = Backoff::new(Duration::ZERO);
        assert_eq!([(); 3].map(|()| never.died(Duration::ZERO)), [Duration::ZERO; 3]);
    }
}

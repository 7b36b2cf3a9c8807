//! Budget for a poller's spins that find no work.

/// Divisor of the time that such spins may take: a quarter.
const PART: u64 = 4;
/// Most time that can be saved up, in nanoseconds.
const SAVED_MAX: u64 = 10_000_000;

/// Time for spins that find no work: a quarter of all time, and 10 ms at once. Past waits do not
/// determine future ones; the budget bounds the cost of a wrong prediction.
#[derive(Debug)]
pub(super) struct Budget {
    /// Time left in quarters of nanoseconds; negative if the last spin took more than was left.
    left: i64,
    at: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: (SAVED_MAX * PART) as i64, at: 0 }
    }
}

impl Budget {
    /// Returns whether time is left at `now`.
    pub(super) fn allows(&mut self, now: u64) -> bool {
        let earned = now.saturating_sub(self.at).min(SAVED_MAX * PART) as i64;
        self.at = now;
        self.left = (self.left + earned).min((SAVED_MAX * PART) as i64);
        self.left > 0
    }

    /// Charges a spin that found no work.
    pub(super) fn wasted(&mut self, ns: u64) {
        let spent = ns.min(SAVED_MAX * PART) * PART;
        self.left = self.left.saturating_sub(spent as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_all_time_is_wasted_in_the_long_run() {
        let (mut budget, mut now, mut wasted) = (Budget::default(), 1_000, 0);
        while now < 1_000_000_000 {
            if budget.allows(now) {
                budget.wasted(100_000);
                wasted += 100_000;
                now += 100_000;
            } else {
                now += 10_000;
            }
        }
        assert!((250_000_000..265_000_000).contains(&wasted), "{wasted}");
    }

    #[test]
    fn no_number_breaks_it() {
        let mut budget = Budget::default();
        budget.wasted(u64::MAX);
        assert!(!budget.allows(0));
        assert!(!budget.allows(1));
        // The debt of one spin is bounded, however long the spin was, and is paid off.
        let mut now = 0u64;
        while !budget.allows(now) {
            now += SAVED_MAX * PART;
        }
        assert!(now <= 10 * SAVED_MAX * PART, "{now}");
        assert!(budget.allows(u64::MAX) && budget.allows(0));
    }
}

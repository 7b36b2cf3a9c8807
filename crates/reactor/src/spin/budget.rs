//! What a poller may waste.

/// Part of the time that spins which found nothing may take.
const PART: u64 = 4;
/// What is saved up at most, in nanoseconds.
const SAVED_MAX: u64 = 10_000_000;

/// Time for spins that find nothing: a quarter of all time, and 10 ms at once. What waits were like
/// says nothing of what they will be; this bounds what it costs to be wrong.
#[derive(Debug)]
pub(super) struct Budget {
    /// In quarters of nanoseconds; less than nothing when the last spin took more than was left.
    left: i64,
    at: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: (SAVED_MAX * PART) as i64, at: 0 }
    }
}

impl Budget {
    /// There is something left at `now`.
    pub(super) fn allows(&mut self, now: u64) -> bool {
        let earned = now.saturating_sub(self.at).min(SAVED_MAX * PART) as i64;
        self.at = now;
        self.left = (self.left + earned).min((SAVED_MAX * PART) as i64);
        self.left > 0
    }

    /// A spin found nothing.
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
        // The debt of one spin, however long it was, is paid off.
        let mut now = 0u64;
        while !budget.allows(now) {
            now += SAVED_MAX * PART;
        }
        assert!(now <= 10 * SAVED_MAX * PART, "{now}");
        assert!(budget.allows(u64::MAX) && budget.allows(0));
    }
}

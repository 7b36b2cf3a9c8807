//! Tokens that come at a steady rate, shared by any number of takers without a lock.
//!
//! Tokens are numbered. A [`Bucket`] says which number is the next to be handed out: one word, and
//! all that is shared. A [`Line`] says how many have come by a time: a straight line, the same for
//! everybody, so it is copied to each taker. Whoever needs tokens takes the next numbers at once
//! and waits until the first of them has come. That makes a queue of all takers in the order in
//! which they came: nobody starves, and no taker waits for another's memory.
//!
//! - A taker waits for its *first* token only, however many it takes: what is larger than the
//!   bucket passes, and those behind it wait for the rest.
//! - Numbers that came while nobody took any are kept up to the line's capacity; older ones are
//!   passed over.
//! - Numbers that were taken stay taken when the line changes: only the time at which they come
//!   does. So a rate may be changed at any time, as often as anybody likes, and neither is
//!   anything charged twice nor given away.
//!
//! Arithmetic is in whole billionths of a token: at `n` tokens a second, exactly `n` of those come
//! in a nanosecond. Nothing is rounded, so nothing drifts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of a token: as many as nanoseconds in a second.
const PARTS: u128 = 1_000_000_000;

/// How many tokens have come by a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Tokens a second; at least 1.
    per_second: u64,
    /// Tokens kept while nobody takes any; at least 1.
    capacity: u64,
    /// From then on, in nanoseconds.
    since: u64,
    /// Parts that had come by then.
    base: u128,
}

impl Line {
    /// A line on which `capacity` tokens are there at once for whoever comes next to `bucket`.
    pub(crate) fn full(per_second: u64, capacity: u64, now: u64, bucket: &Bucket) -> Self {
        let (per_second, capacity) = (per_second.max(1), capacity.max(1));
        let taken = bucket.0.load(Ordering::Relaxed);
        let base = u128::from(taken.saturating_add(capacity)) * PARTS;
        Self { per_second, capacity, since: now, base }
    }

    /// The same tokens by now, and another rate from now on.
    pub(crate) fn bend(&self, per_second: u64, capacity: u64, now: u64) -> Self {
        let (per_second, capacity) = (per_second.max(1), capacity.max(1));
        Self { per_second, capacity, since: now, base: self.come(now) }
    }

    /// Parts that have come by `now`.
    fn come(&self, now: u64) -> u128 {
        let elapsed = now.saturating_sub(self.since);
        self.base.saturating_add(u128::from(self.per_second) * u128::from(elapsed))
    }

    /// When token `number` has come, in nanoseconds; in the past if it has.
    pub(crate) fn due(&self, number: u64) -> u64 {
        let parts = (u128::from(number) + 1) * PARTS;
        let left = parts.saturating_sub(self.base).div_ceil(self.per_second.into());
        u64::try_from(left).map_or(u64::MAX, |left| self.since.saturating_add(left))
    }

    /// The oldest number that is still kept at `now`.
    fn oldest(&self, now: u64) -> u64 {
        let parts = self.come(now).saturating_sub(u128::from(self.capacity) * PARTS);
        // Beyond u64 nothing can be numbered any more; 2^64 bytes take an age.
        u64::try_from(parts.div_ceil(PARTS)).unwrap_or(u64::MAX)
    }
}

/// The number of the next token.
#[derive(Debug, Default)]
pub(crate) struct Bucket(AtomicU64);

impl Bucket {
    /// Takes `cost` tokens and returns the number of the first.
    pub(crate) fn take(&self, line: &Line, now: u64, cost: u64) -> u64 {
        let oldest = line.oldest(now);
        let mut next = self.0.load(Ordering::Relaxed);
        loop {
            let first = next.max(oldest);
            let then = first.saturating_add(cost);
            // Only the number itself is shared: no other memory depends on its order.
            match self.0.compare_exchange_weak(next, then, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return first,
                Err(found) => next = found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Takers that ask again as soon as they were let pass: when each of `count` passes.
    fn greedy(bucket: &Bucket, line: &Line, mut now: u64, cost: u64, count: usize) -> Vec<u64> {
        let pass = |_| {
            now = now.max(line.due(bucket.take(line, now, cost)));
            now
        };
        (0..count).map(pass).collect()
    }

    #[test]
    fn a_full_bucket_passes_its_capacity_at_once_and_then_the_rate_exactly() {
        let bucket = Bucket::default();
        let line = Line::full(7, 20, 5 * SECOND, &bucket);
        let passed = greedy(&bucket, &line, 5 * SECOND, 1, 20 + 7000);
        assert!(passed[..20].iter().all(|at| *at == 5 * SECOND));
        // Seven in each second, for a thousand seconds, without a nanosecond of drift.
        for (nth, at) in (1u64..).zip(&passed[20..]) {
            assert_eq!(*at, 5 * SECOND + (nth * SECOND).div_ceil(7));
        }
    }

    #[test]
    fn more_than_the_bucket_holds_passes_and_the_next_one_pays() {
        let bucket = Bucket::default();
        let line = Line::full(100, 10, 0, &bucket);
        assert_eq!(greedy(&bucket, &line, 0, 1000, 1), [0]);
        // 990 of the thousand are still to come, and then its own.
        assert_eq!(greedy(&bucket, &line, 0, 1, 1), [991 * SECOND / 100]);
    }

    #[test]
    fn idle_time_is_kept_up_to_the_capacity() {
        let bucket = Bucket::default();
        let line = Line::full(10, 5, 0, &bucket);
        greedy(&bucket, &line, 0, 1, 5);
        let late = 1000 * SECOND;
        let passed = greedy(&bucket, &line, late, 1, 6);
        assert_eq!(passed[..5], [late; 5]);
        assert_eq!(passed[5], late + SECOND / 10);
    }

    #[test]
    fn what_waits_keeps_its_turn_when_the_rate_changes() {
        let bucket = Bucket::default();
        let slow = Line::full(1, 1, 0, &bucket);
        let tickets: Vec<_> = (0..11).map(|_| bucket.take(&slow, 0, 1)).collect();
        assert_eq!(slow.due(tickets[10]), 10 * SECOND);
        // After five seconds, ten times as fast: five are left, in half a second.
        let fast = slow.bend(10, 1, 5 * SECOND);
        assert_eq!(fast.due(tickets[5]), 5 * SECOND);
        assert_eq!(fast.due(tickets[10]), 5 * SECOND + SECOND / 2);
        // And stopped almost for good, the rest comes when it comes.
        let slow = fast.bend(1, 1, 5 * SECOND + SECOND / 4);
        assert_eq!(slow.due(tickets[10]), 5 * SECOND + SECOND / 4 + 5 * SECOND / 2);
    }

    #[test]
    fn extremes_neither_overflow_nor_wait_for_ever() {
        let bucket = Bucket::default();
        let line = Line::full(u64::MAX, u64::MAX, 0, &bucket);
        assert!(line.due(bucket.take(&line, u64::MAX, u64::MAX)) <= 1);
        assert!(line.due(bucket.take(&line, u64::MAX, u64::MAX)) <= SECOND);
        let line = Line::full(0, 0, u64::MAX, &Bucket::default());
        assert_eq!(line.due(u64::MAX), u64::MAX);
    }

    /// One taker's request: how long after the last one, and for how much.
    fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
        proptest::collection::vec((0..SECOND, 1u64..5000), 1..50)
    }

    proptest! {
        /// In no window does more pass than the capacity, what comes in it, and the one request
        /// that may overdraw.
        #[test]
        fn no_window_gets_more_than_its_share(
            rate in 1u64..1_000_000, capacity in 1u64..100_000, requests in requests(),
        ) {
            let bucket = Bucket::default();
            let line = Line::full(rate, capacity, 0, &bucket);
            let (mut now, mut passed) = (0, Vec::new());
            for (gap, cost) in requests {
                now += gap;
                now = now.max(line.due(bucket.take(&line, now, cost)));
                passed.push((now, cost));
            }
            for from in 0..passed.len() {
                let mut sum = 0u128;
                for (at, cost) in &passed[from..] {
                    // Without the last one: it needs its first token only.
                    let share = u128::from(capacity) * PARTS
                        + u128::from(rate) * u128::from(at - passed[from].0);
                    prop_assert!(sum * PARTS < share, "{sum} by {at}");
                    sum += u128::from(*cost);
                }
            }
        }

        /// Somebody who always wants more gets the whole rate, whatever the sizes.
        #[test]
        fn who_always_asks_gets_the_rate(
            rate in 1u64..1_000_000, capacity in 1u64..1000,
            costs in proptest::collection::vec(1u64..5000, 10..200),
        ) {
            let bucket = Bucket::default();
            let line = Line::full(rate, capacity, 0, &bucket);
            let (mut now, mut sum) = (0, 0u128);
            for cost in costs {
                now = now.max(line.due(bucket.take(&line, now, cost)));
                // At the moment at which it may pass, nothing that came was left unused.
                prop_assert!(u128::from(rate) * u128::from(now) <= sum * PARTS + PARTS + u128::from(rate));
                sum += u128::from(cost);
            }
        }

        /// However often the rate is rewritten: no more passes than the rates in force allow, and
        /// every turn comes in the order in which it was taken.
        #[test]
        fn changes_give_nothing_away_and_keep_the_order(
            capacity in 1u64..1000,
            steps in proptest::collection::vec((1u64..SECOND, 1u64..10_000, 1u64..50), 1..200),
        ) {
            let bucket = Bucket::default();
            let mut line = Line::full(100, capacity, 0, &bucket);
            let (mut now, mut allowed, mut rate) = (0u64, u128::from(capacity) * PARTS, 100u64);
            let (mut taken, mut last) = (0u128, 0);
            for (gap, next_rate, cost) in steps {
                allowed += u128::from(rate) * u128::from(gap);
                now += gap;
                line = line.bend(next_rate, capacity, now);
                rate = next_rate;
                let first = bucket.take(&line, now, cost);
                prop_assert!(first >= last);
                // Those that may pass now took no more than has ever come.
                if line.due(first) <= now {
                    prop_assert!(taken * PARTS < allowed);
                }
                (last, taken) = (first, taken + u128::from(cost));
            }
        }

        /// Takers on several threads' behalf: each gets numbers of its own.
        #[test]
        fn numbers_are_handed_out_once(costs in proptest::collection::vec(1u64..100, 1..100)) {
            let bucket = Bucket::default();
            let line = Line::full(1, 1, 0, &bucket);
            let mut next = 0;
            for cost in costs {
                prop_assert_eq!(bucket.take(&line, 0, cost), next);
                next += cost;
            }
        }
    }
}

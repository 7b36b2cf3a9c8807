//! Tests of one bucket against manual arithmetic and an oracle with unbounded numbers.

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn tokens(per_second: u64, capacity: u64) -> Rate {
    Rate { per_second, grain: 1, capacity }
}

/// Returns when each of `count` requests passes if takers ask again as soon as one passes.
fn greedy(
    bucket: &Bucket,
    refill_curve: &RefillCurve,
    mut now: u64,
    cost: u64,
    count: usize,
) -> Vec<u64> {
    let pass = |_| {
        now = now.max(refill_curve.due(bucket.take(refill_curve, now, cost)));
        now
    };
    (0..count).map(pass).collect()
}

#[test]
fn a_full_bucket_passes_its_capacity_at_once_and_then_the_rate_exactly() {
    let bucket = Bucket::default();
    let refill_curve = RefillCurve::full(tokens(7, 20), 5 * SECOND, &bucket);
    let passed = greedy(&bucket, &refill_curve, 5 * SECOND, 1, 20 + 7000);
    assert!(passed[..20].iter().all(|at| *at == 5 * SECOND));
    // Seven a second for a thousand seconds, without a nanosecond of drift.
    for (nth, at) in (1u64..).zip(&passed[20..]) {
        assert_eq!(*at, 5 * SECOND + (nth * SECOND).div_ceil(7));
    }
}

#[test]
fn more_than_the_bucket_holds_passes_and_the_next_one_pays() {
    let bucket = Bucket::default();
    let refill_curve = RefillCurve::full(tokens(100, 10), 0, &bucket);
    assert_eq!(greedy(&bucket, &refill_curve, 0, 1000, 1), [0]);
    // 990 of the thousand tokens must arrive first, then its own.
    assert_eq!(greedy(&bucket, &refill_curve, 0, 1, 1), [991 * SECOND / 100]);
}

#[test]
fn idle_time_is_kept_up_to_the_capacity() {
    let bucket = Bucket::default();
    let refill_curve = RefillCurve::full(tokens(10, 5), 0, &bucket);
    greedy(&bucket, &refill_curve, 0, 1, 5);
    let late = 1000 * SECOND;
    let passed = greedy(&bucket, &refill_curve, late, 1, 6);
    assert_eq!(passed[..5], [late; 5]);
    assert_eq!(passed[5], late + SECOND / 10);
}

#[test]
fn what_waits_keeps_its_turn_when_the_rate_changes() {
    let bucket = Bucket::default();
    let slow = RefillCurve::full(tokens(1, 1), 0, &bucket);
    let tickets: Vec<_> = (0..11).map(|_| bucket.take(&slow, 0, 1)).collect();
    assert_eq!(slow.due(tickets[10]), 10 * SECOND);
    // After five seconds the rate is ten times as high: five tokens remain, in half a second.
    let fast = slow.bend(tokens(10, 1), 5 * SECOND);
    assert_eq!(fast.due(tickets[5]), 5 * SECOND);
    assert_eq!(fast.due(tickets[10]), 5 * SECOND + SECOND / 2);
    // After a change to a low rate, the rest arrives at that rate.
    let slow = fast.bend(tokens(1, 1), 5 * SECOND + SECOND / 4);
    assert_eq!(slow.due(tickets[10]), 5 * SECOND + SECOND / 4 + 5 * SECOND / 2);
}

#[test]
fn extremes_neither_overflow_nor_wait_for_ever() {
    let bucket = Bucket::default();
    let refill_curve = RefillCurve::full(tokens(1 << 40, u64::MAX), 0, &bucket);
    let year = 365 * 86_400 * SECOND;
    assert!(refill_curve.due(bucket.take(&refill_curve, year / 4, u64::MAX)) <= year / 4);
    let refill_curve = RefillCurve::full(tokens(0, 0), u64::MAX, &Bucket::default());
    assert_eq!(refill_curve.due(5), u64::MAX);
}

#[test]
fn a_level_can_be_read_and_set() {
    let bucket = Bucket(u64::MAX.into());
    let refill_curve = RefillCurve::full(tokens(10, 100), 0, &bucket);
    assert_eq!(refill_curve.token_balance(&bucket, 0), 100);
    assert_eq!(refill_curve.token_balance(&bucket, 50 * SECOND), 100, "no more than fits");
    bucket.take(&refill_curve, 0, 130);
    assert_eq!(refill_curve.token_balance(&bucket, SECOND), -20);
    // Another bucket continues with this balance.
    let other = Bucket::default();
    let twin = RefillCurve::full(tokens(10, 100), 7, &other).refilled(-20, 7, &other);
    assert_eq!(twin.token_balance(&other, 7), -20);
    assert_eq!(twin.due(other.take(&twin, 7, 1)), 7 + 21 * SECOND / 10);
    // Extreme balances are limited to what fits.
    assert_eq!(twin.refilled(i64::MAX, 7, &other).token_balance(&other, 7), 100);
    let owed = twin.refilled(i64::MIN, 7, &other);
    assert_eq!(owed.token_balance(&other, 7), -(CAPACITY_MAX as i64));
    assert_eq!(
        owed.bend(tokens(1 << 40, 5), 7).token_balance(&other, 7 + 4200 * SECOND),
        5,
        "is paid"
    );
}

/// Oracle: the same arithmetic with numbers that never wrap.
#[derive(Debug)]
struct Oracle {
    rate: Rate,
    now: u64,
    /// Parts that have arrived, from long before the first token.
    come: i128,
    next: i128,
}

impl Oracle {
    fn token(&self) -> i128 {
        1_000_000_000 * i128::from(self.rate.grain)
    }

    fn full(rate: Rate) -> Self {
        let mut oracle = Self { rate, now: 0, come: 0, next: 0 };
        oracle.come = i128::from(rate.capacity) * oracle.token();
        oracle
    }

    fn pass(&mut self, ns: u64) {
        self.now += ns;
        self.come += i128::from(self.rate.per_second) * i128::from(ns);
    }

    fn take(&mut self, cost: u64) -> i128 {
        let token = self.token();
        let whole = self.come.div_euclid(token) + i128::from(self.come.rem_euclid(token) > 0);
        let first = self.next.max(whole - i128::from(self.rate.capacity));
        self.next = first + i128::from(cost.div_ceil(self.rate.grain));
        first
    }

    fn due(&self, number: i128) -> i128 {
        let (left, rate) =
            ((number + 1) * self.token() - self.come, i128::from(self.rate.per_second));
        i128::from(self.now) + left.div_euclid(rate) + i128::from(left.rem_euclid(rate) > 0)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Take(u64),
    Change { per_second: u64, capacity: u64 },
}

/// Generates numbers below 2^`bits`, with each magnitude equally likely.
fn any_size(bits: u32) -> impl Strategy<Value = u64> {
    (0..bits, any::<u64>()).prop_map(|(bits, random)| (1 << bits) | (random & ((1 << bits) - 1)))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (any_size(40), any_size(48))
        .prop_map(|(per_second, capacity)| Step::Change { per_second, capacity });
    let step = prop_oneof![
        // Up to a month.
        3 => any_size(51).prop_map(Step::Pass),
        5 => any_size(30).prop_map(Step::Take),
        2 => change,
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// Each ticket is due at the exact nanosecond for any rates, sizes and clock jumps, even
    /// where numbers wrap. So no request waits forever.
    #[test]
    fn turns_come_when_exact_arithmetic_says(
        bytes in any::<bool>(), first in any::<u64>(), wraps in any::<bool>(), steps in steps(),
    ) {
        let first = if wraps { u64::MAX - (first & 0xffff) } else { first };
        let grain = if bytes { 512 } else { 1 };
        // Tokens of single requests arrive more slowly.
        let slower = if bytes { 0 } else { 8 };
        let rate = |per_second: u64, capacity| Rate { per_second: (per_second >> slower).max(1), grain, capacity };
        let bucket = Bucket(first.into());
        let mut oracle = Oracle::full(rate(1000, 100));
        let mut refill_curve = RefillCurve::full(rate(1000, 100), 0, &bucket);
        let mut turns = Vec::new();
        for step in steps {
            match step {
                Step::Pass(ns) => oracle.pass(ns),
                Step::Take(cost) => {
                    turns.push((oracle.take(cost), bucket.take(&refill_curve, oracle.now, cost)));
                }
                Step::Change { per_second, capacity } => {
                    oracle.rate = rate(per_second, capacity);
                    refill_curve = refill_curve.bend(oracle.rate, oracle.now);
                }
            }
            let saved = (oracle.come.div_euclid(oracle.token()) - oracle.next).min(oracle.rate.capacity.into());
            prop_assert_eq!(i128::from(refill_curve.token_balance(&bucket, oracle.now)), saved);
            let now = i128::from(oracle.now);
            for (number, ours) in turns.iter().rev().take(8) {
                let (due, ours) = (oracle.due(*number), i128::from(refill_curve.due(*ours)));
                if due <= now {
                    prop_assert!(ours <= now, "{ours} and not {due}");
                } else {
                    prop_assert_eq!(ours, due.min(u64::MAX.into()));
                }
            }
        }
    }
}

/// Generates the requests of one taker: delay after the previous one, and cost.
fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((0..SECOND, 1u64..5000), 1..50)
}

proptest! {
    /// No window passes more units than the capacity, the refill in it, and the one request
    /// that may overdraw.
    #[test]
    fn no_window_gets_more_than_its_share(
        rate in 1u64..1_000_000, capacity in 1u64..100_000, requests in requests(),
    ) {
        let bucket = Bucket::default();
        let refill_curve = RefillCurve::full(tokens(rate, capacity), 0, &bucket);
        let (mut now, mut passed) = (0, Vec::new());
        for (gap, cost) in requests {
            now += gap;
            now = now.max(refill_curve.due(bucket.take(&refill_curve, now, cost)));
            passed.push((now, cost));
        }
        for from in 0..passed.len() {
            let mut sum = 0u128;
            for (at, cost) in &passed[from..] {
                // Without the last request: it needs only its first token.
                let share = u128::from(capacity) * PARTS
                    + u128::from(rate) * u128::from(at - passed[from].0);
                prop_assert!(sum * PARTS < share, "{sum} by {at}");
                sum += u128::from(*cost);
            }
        }
    }

    /// A taker that always asks gets the whole rate, for any sizes.
    #[test]
    fn who_always_asks_gets_the_rate(
        rate in 1u64..1_000_000, capacity in 1u64..1000,
        costs in proptest::collection::vec(1u64..5000, 10..200),
    ) {
        let bucket = Bucket::default();
        let refill_curve = RefillCurve::full(tokens(rate, capacity), 0, &bucket);
        let (mut now, mut sum) = (0, 0u128);
        for cost in costs {
            now = now.max(refill_curve.due(bucket.take(&refill_curve, now, cost)));
            // When the request may pass, no arrived token was left unused.
            prop_assert!(u128::from(rate) * u128::from(now) <= sum * PARTS + PARTS + u128::from(rate));
            sum += u128::from(cost);
        }
    }

    /// Rate changes never let more pass than the rates in force allow. Tickets are due
    /// in the order in which they were taken.
    #[test]
    fn changes_give_nothing_away_and_keep_the_order(
        capacity in 1u64..1000,
        steps in proptest::collection::vec((1u64..SECOND, 1u64..10_000, 1u64..50), 1..200),
    ) {
        let bucket = Bucket::default();
        let mut refill_curve = RefillCurve::full(tokens(100, capacity), 0, &bucket);
        let (mut now, mut allowed, mut rate) = (0u64, u128::from(capacity) * PARTS, 100u64);
        let (mut taken, mut last) = (0u128, 0);
        for (gap, next_rate, cost) in steps {
            allowed += u128::from(rate) * u128::from(gap);
            now += gap;
            refill_curve = refill_curve.bend(tokens(next_rate, capacity), now);
            rate = next_rate;
            let first = bucket.take(&refill_curve, now, cost);
            prop_assert!(first >= last);
            // Requests that may pass now took no more than has ever arrived.
            if refill_curve.due(first) <= now {
                prop_assert!(taken * PARTS < allowed);
            }
            (last, taken) = (first, taken + u128::from(cost));
        }
    }

    /// Takers on several threads get distinct numbers.
    #[test]
    fn numbers_are_handed_out_once(costs in proptest::collection::vec(1u64..100, 1..100)) {
        let bucket = Bucket::default();
        let refill_curve = RefillCurve::full(tokens(1, 1), 0, &bucket);
        let mut next = 0;
        for cost in costs {
            prop_assert_eq!(bucket.take(&refill_curve, 0, cost), next);
            next += cost;
        }
    }
}

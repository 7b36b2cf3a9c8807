//! Compares rate limits with arithmetic by hand.

use std::sync::atomic::AtomicU64;
use std::thread;

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Returns when each of `count` requests passes if the caller retries as soon as permitted.
fn greedy(rate_limiter: &RateLimiter, mut now: u64, units: u64, count: usize) -> Vec<u64> {
    let pass = |_| {
        while let Err(at) = rate_limiter.admit(units, now) {
            assert!(at > now, "asking again does not help");
            now = at;
        }
        now
    };
    (0..count).map(pass).collect()
}

#[test]
fn the_burst_passes_at_once_and_then_the_rate() {
    let rate_limiter = RateLimiter::new(Rate { per_second: 1000, burst: 10 }, 7);
    let passed = greedy(&rate_limiter, 7, 1, 1010);
    assert!(passed[..10].iter().all(|at| *at == 7));
    for (nth, at) in (1u64..).zip(&passed[10..]) {
        assert!(at.abs_diff(7 + nth * SECOND / 1000) <= 1, "{nth} {at}");
    }
}

#[test]
fn what_is_owed_goes_along_to_a_successor() {
    let rate = Rate { per_second: 1000, burst: 10 };
    let (rate_limiter, other) = (RateLimiter::new(rate, 7), RateLimiter::new(rate, 0));
    assert_eq!(rate_limiter.debt_ns(7), 0);
    greedy(&rate_limiter, 7, 1, 8);
    assert!(
        rate_limiter.debt_ns(7).abs_diff(8 * SECOND / 1000) <= 1,
        "{}",
        rate_limiter.debt_ns(7)
    );
    // On another clock.
    other.charge(rate_limiter.debt_ns(7), 100);
    assert_eq!(greedy(&other, 100, 1, 2), [100; 2]);
    assert!(other.admit(1, 100).is_err() && rate_limiter.debt_ns(SECOND) == 0);
    other.charge(u64::MAX, 0);
    assert!(other.admit(1, 0).is_err_and(|at| at <= 3601 * SECOND));
}

#[test]
fn more_than_the_burst_passes_and_the_next_one_pays() {
    let rate_limiter = RateLimiter::new(Rate { per_second: 100, burst: 10 }, 0);
    assert_eq!(greedy(&rate_limiter, 0, 1000, 1), [0]);
    let next = greedy(&rate_limiter, 0, 1, 1)[0];
    assert!(next.abs_diff(991 * SECOND / 100) <= 1, "{next}");
}

#[test]
fn a_pause_is_saved_up_to_the_burst() {
    let rate_limiter = RateLimiter::new(Rate { per_second: 10, burst: 5 }, 0);
    greedy(&rate_limiter, 0, 1, 5);
    let late = 1000 * SECOND;
    let passed = greedy(&rate_limiter, late, 1, 6);
    assert_eq!(passed[..5], [late; 5]);
    assert!(passed[5].abs_diff(late + SECOND / 10) <= 1);
}

#[test]
fn extremes_neither_overflow_nor_wait_for_ever() {
    let rate_limiter = RateLimiter::new(Rate { per_second: 0, burst: 0 }, u64::MAX);
    assert_eq!(rate_limiter.admit(u64::MAX, u64::MAX), Ok(()));
    assert_eq!(rate_limiter.admit(1, u64::MAX), Err(u64::MAX));
    let rate_limiter = RateLimiter::new(Rate { per_second: u64::MAX, burst: u64::MAX }, 0);
    assert!(greedy(&rate_limiter, 0, 1 << 40, 1000).iter().all(|at| *at == 0));
    // A year without requests.
    let rate_limiter = RateLimiter::new(Rate { per_second: 1, burst: 1 }, 0);
    assert_eq!(rate_limiter.admit(1, 365 * 86_400 * SECOND), Ok(()));
    let rate = Rate::bytes(1000);
    assert_eq!((rate.burst, Rate::bytes(1 << 30).burst), (131_072, (1 << 30) / 20));
}

#[test]
fn threads_share_one_cap() {
    let rate_limiter = RateLimiter::new(Rate { per_second: 1_000_000, burst: 1000 }, 0);
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for now in 0..100_000 {
                    if rate_limiter.admit(1, now * 100).is_ok() {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    // The units of 10 ms at the rate, and the burst. Threads do not run simultaneously, which only
    // reduces the result.
    let passed = passed.into_inner();
    assert!(passed <= 11_001, "{passed}");
    assert!(passed > 1000, "{passed}");
}

#[test]
fn who_is_given_another_cap_is_given_no_other_burst() {
    let of = |per_second| RateLimiter::new(Rate { per_second, burst: 1000 }, 0);
    let former = of(1000);
    assert_eq!(former.admit(800, 0), Ok(()));
    for per_second in [1, 1000, 10_000] {
        let next = of(per_second);
        next.follow(&former, 0);
        assert_eq!(next.debt_ns(0), 800 * SECOND / per_second, "{per_second}");
        next.follow(&former, 1000 * SECOND);
        assert_eq!(next.debt_ns(1000 * SECOND), 0);
    }
    // A request larger than the burst does not burden the next limiter: one unit passes after one
    // unit's time.
    assert_eq!(former.admit(5000, 0), Ok(()));
    for per_second in [1, 1000, 10_000] {
        let next = of(per_second);
        next.follow(&former, 0);
        assert_eq!(next.admit(1, 0), Err(SECOND / per_second), "{per_second}");
    }
}

proptest! {
    /// In any span of time at most the burst, one more request, and the units of the rate pass. A
    /// caller that waits as long as told passes, so that the rate is also reached.
    #[test]
    fn no_span_has_more_than_its_rate(
        per_second in 1u64..1 << 33,
        burst in 0u64..1 << 20,
        asked in prop::collection::vec((0u64..1 << 22, 1u64..70_000, any::<bool>()), 1..200),
    ) {
        let rate_limiter = RateLimiter::new(Rate { per_second, burst }, 0);
        let (mut now, mut passed) = (0, Vec::new());
        for (pause, units, patient) in asked {
            now += pause;
            let mut answer = rate_limiter.admit(units, now);
            if let (Err(at), true) = (answer, patient) {
                prop_assert!(at > now);
                now = at;
                answer = rate_limiter.admit(units, now);
                prop_assert_eq!(answer, Ok(()));
            }
            if answer.is_ok() {
                passed.push((now, units));
            }
        }
        for (nth, (from, _)) in passed.iter().enumerate() {
            let mut sum: u128 = 0;
            for (to, units) in &passed[nth..] {
                let given = u128::from(to - from) * u128::from(per_second) / u128::from(SECOND);
                // Times are rounded up, which grants nothing but the last part of a unit.
                let most = given + u128::from(burst) + u128::from(per_second / SECOND) + 2;
                prop_assert!(sum <= most, "{sum} of {most}");
                sum += u128::from(*units);
            }
        }
    }
}

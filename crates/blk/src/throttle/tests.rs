//! Tests of caps against a simulated clock.

use super::*;

const SECOND: u64 = 1_000_000_000;
const WRITE: RequestKind = RequestKind::Write { durable: false };

/// Queues of one disk that always have requests: each sends the next when one passes.
struct Guests {
    throttle: Throttle,
    queues: Vec<(QueueThrottle, Option<TokenGrant>)>,
    now: u64,
}

impl Guests {
    fn new(caps: Caps, queues: usize) -> Self {
        let throttle = Throttle::default();
        throttle.set(caps, 0);
        let queues = (0..queues).map(|_| (QueueThrottle::default(), None)).collect();
        Self { throttle, queues, now: 0 }
    }

    /// Serves requests of `len` bytes until `end`. Returns how many passed, by queue.
    fn run(&mut self, kind: RequestKind, len: u64, end: u64) -> Vec<u64> {
        let mut passed = vec![0; self.queues.len()];
        for (queue_throttle, token_grant) in &mut self.queues {
            queue_throttle.refresh(&self.throttle);
            let take = || queue_throttle.ticket(&self.throttle, kind, len, self.now).unwrap();
            token_grant.get_or_insert_with(take);
        }
        loop {
            let due = |(queue_throttle, token_grant): &(QueueThrottle, Option<TokenGrant>)| {
                queue_throttle.due(token_grant.as_ref().unwrap())
            };
            let all = self.queues.iter().map(due).enumerate();
            let (next, when) = all.min_by_key(|(_, due)| *due).unwrap();
            let when = when.max(self.now);
            if when >= end {
                self.now = end;
                return passed;
            }
            self.now = when;
            passed[next] += 1;
            let (queue_throttle, token_grant) = &mut self.queues[next];
            *token_grant = queue_throttle.ticket(&self.throttle, kind, len, self.now);
        }
    }
}

fn requests(per_second: u64, burst: Option<(u64, u32)>) -> Caps {
    Caps { requests: Some(Cap { per_second, burst }), bytes: None }
}

fn bytes(per_second: u64) -> Caps {
    Caps { requests: None, bytes: Some(Cap { per_second, burst: None }) }
}

#[test]
fn the_long_run_is_the_cap() {
    for rate in [1, 3, 100, 1009] {
        let mut guests = Guests::new(requests(rate, None), 4);
        let passed: u64 = guests.run(WRITE, 4096, 300 * SECOND).iter().sum();
        // The slack, and the first one.
        let allowed = rate * 300 + rate / 10 + 1;
        assert!((rate * 300..=allowed).contains(&passed), "{passed} at {rate}");
    }
    for (rate, len) in [(1 << 20, 4096), (100 << 20, 1 << 20), (1 << 20, 4 << 20)] {
        let mut guests = Guests::new(bytes(rate), 2);
        let moved: u64 =
            guests.run(RequestKind::Read, len, 300 * SECOND).iter().map(|n| n * len).sum();
        // One request may overdraw.
        let allowed = rate * 300 + rate / 10 + len;
        assert!((rate * 300..=allowed).contains(&moved), "{moved} at {rate} by {len}");
    }
}

#[test]
fn a_burst_lasts_as_long_as_configured() {
    let mut guests = Guests::new(requests(1000, Some((5000, 10))), 2);
    let sum = |passed: Vec<u64>| passed.iter().sum::<u64>();
    let mut burst = 0;
    for second in 1..=10 {
        let passed = sum(guests.run(WRITE, 512, second * SECOND));
        let slack = if second == 1 { 500 } else { 0 };
        assert!(passed <= 5000 + slack + 2, "{passed} in second {second}");
        burst += passed;
    }
    assert!((50_000..=50_110).contains(&burst), "{burst}: ten seconds of it");
    // The burst is used up, except for the slack.
    let after = sum(guests.run(WRITE, 512, 20 * SECOND));
    assert!((9_900..=10_110).contains(&after), "{after}");
    // Half the burst refills in half of its refill time.
    guests.now += 20 * SECOND;
    let (from, mut passed) = (guests.now, 0);
    passed += sum(guests.run(WRITE, 512, from + 5 * SECOND));
    assert!((24_900..=25_600).contains(&passed), "{passed}");
    let after = sum(guests.run(WRITE, 512, from + 10 * SECOND));
    assert!((5_000..=5_700).contains(&after), "{after}");
}

#[test]
fn queues_share_a_cap_in_turn() {
    let mut guests = Guests::new(requests(1001, None), 8);
    let passed = guests.run(WRITE, 512, 60 * SECOND);
    let (least, most) = (passed.iter().min().unwrap(), passed.iter().max().unwrap());
    // The first queue gets all of the slack.
    assert!(most - least <= 101, "{passed:?}");
}

#[test]
fn rewriting_the_caps_every_second_starves_nobody_and_gives_nothing_away() {
    let mut guests = Guests::new(requests(1000, None), 4);
    let mut total = 0;
    let mut allowed = 100;
    for second in 1..=300 {
        let rate = [1000, 10, 300, 1][second as usize % 4];
        guests.throttle.set(requests(rate, None), guests.now);
        let passed = guests.run(WRITE, 512, second * SECOND);
        total += passed.iter().sum::<u64>();
        allowed += rate;
        assert!(total <= allowed + 4, "{total} of {allowed} after {second} s");
    }
    assert!(total * 100 >= allowed * 97, "{total} of {allowed}");
    // Setting the same rate again changes nothing.
    let mut guests = Guests::new(requests(7, None), 1);
    let mut total = 0;
    for second in 1..=3000 {
        guests.throttle.set(requests(7, None), guests.now);
        total += guests.run(WRITE, 512, second * SECOND / 10)[0];
    }
    assert!((2090..=2101).contains(&total), "{total}");
}

#[test]
fn what_waits_goes_on_when_the_cap_is_lifted() {
    let throttle = Throttle::default();
    throttle.set(requests(1, None), 0);
    let mut queue_throttle = QueueThrottle::default();
    assert!(queue_throttle.refresh(&throttle) && !queue_throttle.refresh(&throttle));
    let turns: Vec<_> =
        (0..100).map(|_| queue_throttle.ticket(&throttle, WRITE, 512, 0).unwrap()).collect();
    assert_eq!(queue_throttle.due(&turns[99]), 99 * SECOND);
    throttle.set(requests(100, None), SECOND);
    queue_throttle.refresh(&throttle);
    assert!(queue_throttle.due(&turns[99]) < 2 * SECOND);
    throttle.set(Caps::default(), SECOND);
    queue_throttle.refresh(&throttle);
    assert_eq!(queue_throttle.due(&turns[99]), 0);
    assert!(queue_throttle.ticket(&throttle, WRITE, 512, SECOND).is_none());
    // After a time without a cap, no queue pays for requests of that time.
    throttle.set(requests(1, None), 2 * SECOND);
    queue_throttle.refresh(&throttle);
    let token_grant = queue_throttle.ticket(&throttle, WRITE, 512, 2 * SECOND).unwrap();
    assert!(queue_throttle.due(&token_grant) <= 2 * SECOND);
}

#[test]
fn both_caps_hold_and_what_carries_no_data_costs_no_bytes() {
    let caps = Caps { bytes: bytes(1 << 20).bytes, ..requests(10, None) };
    let mut small = Guests::new(caps, 1);
    let passed = small.run(WRITE, 512, 100 * SECOND)[0];
    assert!((1000..=1002).contains(&passed), "{passed}: the requests hold");
    let mut large = Guests::new(caps, 1);
    let passed = large.run(WRITE, 1 << 20, 100 * SECOND)[0];
    assert!((100..=102).contains(&passed), "{passed}: the bytes hold");
    let mut zeroes = Guests::new(caps, 1);
    let passed = zeroes.run(RequestKind::Discard, 1 << 30, 100 * SECOND)[0];
    assert!((1000..=1002).contains(&passed), "{passed}");
    let (throttle, mut queue_throttle) = (Throttle::default(), QueueThrottle::default());
    throttle.set(caps, 0);
    queue_throttle.refresh(&throttle);
    assert!(
        queue_throttle.ticket(&throttle, RequestKind::Flush, 0, 0).is_none(),
        "a flush is never held back"
    );
}

#[test]
fn several_threads_take_from_one_bucket_and_the_sum_is_the_rate() {
    let throttle = Throttle::default();
    throttle.set(requests(1, None), 0);
    let last = |queue_throttle: &QueueThrottle| {
        let take =
            |_| queue_throttle.due(&queue_throttle.ticket(&throttle, WRITE, 512, 0).unwrap());
        (0..1000).map(take).max().unwrap()
    };
    let all = std::thread::scope(|scope| {
        let thread = || {
            let mut queue_throttle = QueueThrottle::default();
            queue_throttle.refresh(&throttle);
            last(&queue_throttle)
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(thread)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    });
    assert_eq!(all, 3999 * SECOND, "four thousand turns, each its own");
}

/// Sets the highest accepted caps, lower ones and none, repeatedly. The last one applies.
#[test]
fn extreme_caps_leave_nothing_behind() {
    let most = Caps {
        requests: Some(Cap { per_second: 1, burst: Some((u64::MAX, u32::MAX)) }),
        bytes: Some(Cap { per_second: u64::MAX, burst: Some((u64::MAX, u32::MAX)) }),
    };
    let mut guests = Guests::new(most, 2);
    for round in 0..20_000u64 {
        guests.now += 1_000_000;
        let caps = [most, requests(1000, None), bytes(1 << 20), Caps::default()];
        guests.throttle.set(caps[round as usize % 4], guests.now);
        let (queue_throttle, token_grant) = &mut guests.queues[0];
        queue_throttle.refresh(&guests.throttle);
        *token_grant = queue_throttle.ticket(&guests.throttle, WRITE, 512, guests.now);
    }
    guests.queues.iter_mut().for_each(|(_, token_grant)| *token_grant = None);
    guests.throttle.set(requests(1000, None), guests.now);
    let from = guests.now;
    let passed: u64 = guests.run(WRITE, 4096, from + 100 * SECOND).iter().sum();
    assert!((97_000..=100_110).contains(&passed), "{passed}");
}

#[test]
fn what_is_saved_up_goes_along_and_a_crash_gains_nothing() {
    let caps = requests(100, Some((1000, 10)));
    let sum = |guests: &mut Guests, end| guests.run(WRITE, 512, end).iter().sum::<u64>();
    let mut first = Guests::new(caps, 2);
    let burst = sum(&mut first, 5 * SECOND);
    assert!((5000..=5110).contains(&burst), "{burst}");
    // Half of the burst is left, and the other process gets exactly that.
    let mut second = Guests::new(caps, 2);
    second.throttle.refill(first.throttle.token_balance(first.now), 0);
    let rest = sum(&mut second, 20 * SECOND);
    // The rest of the burst, and twenty seconds.
    let left = 9010 - burst + 500;
    assert!((left + 1990..=left + 2010).contains(&rest), "{rest} where {left} were left");
    let mut third = Guests::new(caps, 2);
    third.throttle.refill(TokenBalance::default(), 0);
    let none = sum(&mut third, 10 * SECOND);
    assert!((990..=1001).contains(&none), "{none}");
}

//! Tests that reactors poll for frames instead of being woken, if configured.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::guest::*;
use net::port::PortId;
use reactor::{POLL_MAX_NS, PollMode, PollPolicy, PollReason, PollState};
use testkit::cpus::QUIET_DEADLINE;

const SOON: Duration = Duration::from_secs(20);

fn policy(mode: PollMode) -> PollPolicy {
    // Independent of other work on the host: no guard about free CPUs.
    PollPolicy { mode, idle_percent: 0, ..PollPolicy::default() }
}

fn state(lan: &Lan, port: u16) -> PollState {
    lan.fabric.queues(PortId(port))[0].poll
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::yield_now();
    }
}

/// Sends a frame to the broadcast address without a kick.
fn put(guest: &mut Guest, bytes: usize) -> bool {
    guest.tx.put(&[&NOTHING[..], &plain(EVERYBODY, 1, bytes)].concat(), &[]);
    guest.tx.driver.publish()
}

#[test]
fn a_queue_that_is_always_looked_at_wants_no_kick() {
    for reactor in [0, 1] {
        let lan = Lan::new(2);
        lan.fabric.set_polling(policy(PollMode::Always));
        let mut a = Guest::new(&lan, 1, 0, all());
        let mut b = Guest::new(&lan, 2, reactor, all());
        b.rx.post(RING, 2048);
        for bytes in 60..124 {
            assert!(!put(&mut a, bytes), "a kick is wanted");
            a.tx.left(1);
            assert_eq!(b.rx.receive().frame.len(), bytes);
        }
        let polled = state(&lan, 1);
        assert_eq!(polled.reason, PollReason::Always);
        assert!(polled.armed());
        eventually("polls are counted", || {
            let now = state(&lan, 1);
            now.hits > 0 && now.spun_ns > 0
        });
        // A sleeping reactor is woken by a kick again.
        lan.fabric.set_polling(policy(PollMode::Off));
        eventually("it is off", || state(&lan, 1).reason == PollReason::Off);
        a.send(NOTHING, &plain(EVERYBODY, 1, 200));
        assert_eq!(b.rx.receive().frame.len(), 200);
    }
}

#[test]
fn a_queue_whose_waits_are_short_is_looked_at() {
    let lan = Lan::new(1);
    // However slow this host is, no wait is too long to spin through.
    lan.fabric.set_polling(PollPolicy { max_ns: POLL_MAX_NS, ..policy(PollMode::Auto) });
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut b = Guest::new(&lan, 2, 0, all());
    b.rx.post(RING, 2048);
    let until = Instant::now() + QUIET_DEADLINE;
    loop {
        a.send(NOTHING, &plain(EVERYBODY, 1, 60));
        b.rx.receive();
        b.rx.post(1, 2048);
        let now = state(&lan, 1);
        if now.reason == PollReason::Pays && now.hits > 100 {
            break;
        }
        assert!(Instant::now() < until, "never, or other work left no CPU: {now:?}");
    }
}

#[test]
fn an_idle_reactor_sleeps_though_it_may_look() {
    let lan = Lan::new(2);
    lan.fabric.set_polling(policy(PollMode::Auto));
    let mut all_of_them: Vec<_> =
        (1..9).map(|port| Guest::new(&lan, port, usize::from(port) % 2, all())).collect();
    all_of_them.iter_mut().for_each(|guest| guest.rx.post(8, 2048));
    lan.settle();
    let turns = |lan: &Lan| {
        let all = lan.reactors.iter().map(|one| one.handle().counters().turns());
        all.sum::<u64>()
    };
    // A last poll may be in progress; after that there are none.
    eventually("they sleep", || {
        let before = turns(&lan);
        std::thread::sleep(Duration::from_millis(50));
        turns(&lan) == before
    });
}

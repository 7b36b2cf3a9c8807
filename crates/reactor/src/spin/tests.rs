//! Waits on a clock that the test sets, and pollers on a real reactor.

use std::sync::Arc;

use super::*;
use crate::clock::Clock;
use crate::cpus::SpinRequest;

const US: u64 = 1_000;
/// Waits that are slept through before the first probe.
const FIRST: u64 = 32;

/// Waits of a poller, with its surroundings.
struct Bench {
    poll_control: PollControl,
    wait_tracker: WaitTracker,
    clock: Clock,
    guards: SpinGuards,
    spin_request: Arc<SpinRequest>,
    now: u64,
}

impl Bench {
    fn new(policy: PollPolicy) -> Self {
        let poll_control = PollControl::default();
        poll_control.set(policy);
        let spin_request = Arc::<SpinRequest>::default();
        Self {
            wait_tracker: WaitTracker::new(&poll_control),
            poll_control,
            clock: Clock::default(),
            guards: SpinGuards::alone(spin_request.clone()),
            spin_request,
            now: 1_000_000,
        }
    }

    /// Creates a bench that has slept long enough to decide that a probe is worth it.
    fn willing(mode: PollMode) -> Self {
        let mut bench = Self::new(policy(mode));
        (0..FIRST).for_each(|_| _ = bench.wait(WaitTarget::Driver, 5 * US));
        bench
    }

    fn poll_idle(&mut self, wait_target: WaitTarget) -> bool {
        self.clock.set(self.now);
        self.wait_tracker.poll_idle(
            &self.poll_control,
            wait_target,
            &mut self.clock,
            &mut self.guards,
        )
    }

    /// Simulates a wait of `took_ns` that is polled every 500 ns. Returns whether it was spun to
    /// its end.
    fn wait(&mut self, wait_target: WaitTarget, took_ns: u64) -> bool {
        let end = self.now + took_ns;
        let mut awake = true;
        while awake && self.now < end {
            awake = self.poll_idle(wait_target);
            self.now = (self.now + 500).min(end);
        }
        self.now = end;
        self.wait_tracker.poll_found_work(&self.poll_control, self.now, &mut self.guards);
        self.now += 2 * US;
        awake
    }

    fn state(&self) -> PollState {
        self.poll_control.state()
    }
}

fn policy(mode: PollMode) -> PollPolicy {
    PollPolicy { mode, ..PollPolicy::default() }
}

#[test]
fn short_waits_are_spun_and_long_ones_slept() {
    let mut bench = Bench::new(policy(PollMode::Auto));
    bench.guards.woke(9 * US);
    assert_eq!(bench.state().reason, PollReason::Unknown);
    for _ in 0..500 {
        bench.wait(WaitTarget::Driver, 20 * US);
    }
    let state = bench.state();
    let hits = 500 - FIRST;
    assert_eq!((state.reason, state.hits, state.misses), (PollReason::Pays, hits, 0));
    assert_eq!(state.saved_ns, hits * 9 * US);
    assert_eq!(state.spun_ns, hits * 19_500, "from the second look on");
    for _ in 0..500 {
        bench.wait(WaitTarget::Driver, 900 * US);
    }
    let after = bench.state();
    assert_eq!(after.reason, PollReason::Refused(SpinRefusal::TooLong));
    assert!(after.misses < 150 && after.refused[0] > 350, "{after:?}");
    assert!(!after.armed());
}

#[test]
fn the_waits_for_driver_and_device_are_judged_apart() {
    let mut bench = Bench::new(policy(PollMode::Auto));
    for _ in 0..200 {
        bench.wait(WaitTarget::Driver, 5 * US);
        bench.wait(WaitTarget::Device, 3_000 * US);
    }
    assert!(bench.wait(WaitTarget::Driver, 5 * US));
    assert!(!bench.wait(WaitTarget::Device, 5 * US), "it sleeps at once");
}

#[test]
fn a_device_is_looked_at_while_it_is_busy_half_of_the_time() {
    let mut bench = Bench::new(policy(PollMode::Auto));
    let mut hits_of = |thought: u64| {
        let before = bench.state().hits;
        for _ in 0..1_000 {
            bench.wait(WaitTarget::Driver, thought);
            bench.wait(WaitTarget::Device, 70 * US);
        }
        bench.state().hits - before
    };
    // The driver's waits are too long to spin through.
    assert_eq!(hits_of(200 * US), 0);
    let hits = hits_of(60 * US);
    assert!(hits > 800, "{hits}");
    let hits = hits_of(200 * US);
    assert!(hits < 200, "{hits}");
}

#[test]
fn settings_hold_from_the_next_look_on() {
    let mut bench = Bench::new(policy(PollMode::Off));
    assert!(!bench.poll_idle(WaitTarget::Driver));
    assert_eq!(bench.state().reason, PollReason::Off);
    bench.poll_control.set(policy(PollMode::Always));
    for _ in 0..10_000 {
        assert!(bench.poll_idle(WaitTarget::Driver));
        bench.now += US;
    }
    assert!(bench.state().spun_ns > 8_000 * US, "told while it spins: {:?}", bench.state());
    bench.wait_tracker.poll_found_work(&bench.poll_control, bench.now, &mut bench.guards);
    assert_eq!((bench.state().hits, bench.state().spun_ns), (1, 9_999 * US));
    // During a spin.
    assert!(bench.poll_idle(WaitTarget::Driver));
    bench.poll_control.set(policy(PollMode::Off));
    assert!(!bench.poll_idle(WaitTarget::Driver));
    bench.poll_control.set(policy(PollMode::Auto));
    assert!(!bench.poll_idle(WaitTarget::Driver));
    assert_eq!(bench.state().reason, PollReason::Unknown);
    (0..FIRST).for_each(|_| _ = bench.wait(WaitTarget::Driver, 5 * US));
    assert!(bench.poll_idle(WaitTarget::Driver), "a probe");
    bench.poll_control.set(PollPolicy { max_ns: 0, ..policy(PollMode::Auto) });
    assert!(!bench.poll_idle(WaitTarget::Driver));
    assert_eq!(bench.state().reason, PollReason::Refused(SpinRefusal::TooLong));
}

#[test]
fn what_only_an_event_can_end_is_not_spun() {
    for mode in [PollMode::Auto, PollMode::Always] {
        let mut bench = Bench::willing(mode);
        assert!(bench.poll_idle(WaitTarget::Driver));
        assert!(!bench.poll_idle(WaitTarget::Event), "stopped in the middle of a spin");
        assert!(bench.poll_idle(WaitTarget::Driver));
    }
}

#[test]
fn without_a_free_cpu_nothing_is_spun_and_nothing_is_learnt() {
    let mut bench = Bench::new(policy(PollMode::Auto));
    for _ in 0..100 {
        bench.wait(WaitTarget::Driver, 5 * US);
    }
    bench.spin_request.publish_for_test(740, false);
    for _ in 0..100 {
        assert!(!bench.wait(WaitTarget::Driver, 5_000 * US));
    }
    let state = bench.state();
    assert_eq!(state.reason, PollReason::Refused(SpinRefusal::NoFreeCpu));
    assert_eq!((state.hits, state.refused), (100 - FIRST, [0, 100, 0, 0, 0]));
    bench.poll_control.set(PollPolicy { idle_percent: 74, ..policy(PollMode::Auto) });
    assert!(bench.wait(WaitTarget::Driver, 5 * US), "so much is free");
    bench.poll_control.set(PollPolicy { idle_percent: 0, ..policy(PollMode::Auto) });
    bench.spin_request.publish_for_test(0, false);
    assert!(bench.wait(WaitTarget::Driver, 5 * US), "none is asked for");
    bench.spin_request.publish_for_test(0, true);
    assert!(bench.wait(WaitTarget::Driver, 5 * US), "nor of a quota");
    bench.poll_control.set(PollPolicy { idle_percent: 1, ..policy(PollMode::Auto) });
    assert!(!bench.wait(WaitTarget::Driver, 5 * US));
    let state = bench.state();
    assert_eq!(state.reason, PollReason::Refused(SpinRefusal::QuotaUsed));
    assert_eq!(state.refused, [0, 100, 0, 0, 1]);
}

#[test]
fn a_window_that_always_misses_is_bounded_by_the_budget() {
    // Waits that end alternately 1 us before and after the window do not change it.
    let mut bench = Bench::new(PollPolicy { max_ns: POLL_MAX_NS, ..policy(PollMode::Auto) });
    let began = bench.now;
    let mut hit = false;
    for _ in 0..2_000 {
        hit = !hit;
        bench.wait(WaitTarget::Driver, if hit { 10 * US } else { 11_000 * US });
    }
    let state = bench.state();
    let wasted = state.spun_ns - state.hits * 10 * US;
    assert!(wasted * 10 < (bench.now - began) * 3, "{state:?} in {} ns", bench.now - began);
}

#[test]
fn a_clock_that_jumps_ends_a_spin_and_breaks_nothing() {
    let mut bench = Bench::willing(PollMode::Auto);
    assert!(bench.poll_idle(WaitTarget::Driver) && bench.poll_idle(WaitTarget::Driver));
    bench.now += 1 << 60;
    assert!(!bench.poll_idle(WaitTarget::Driver));
    bench.now = 5;
    bench.wait_tracker.poll_found_work(&bench.poll_control, bench.now, &mut bench.guards);
    bench.wait(WaitTarget::Driver, 5 * US);
    bench.now = u64::MAX - 10 * US;
    bench.wait(WaitTarget::Driver, 5 * US);
}

#[test]
fn a_policy_survives_its_packing() {
    let all = [PollMode::Off, PollMode::Auto, PollMode::Always];
    for mode in all {
        for (max_ns, idle_percent) in [(0, 0), (128_000, 75), (POLL_MAX_NS, 100)] {
            let (poll_control, policy) =
                (PollControl::default(), PollPolicy { mode, max_ns, idle_percent });
            poll_control.set(policy);
            assert_eq!(poll_control.policy(), policy);
        }
    }
    let poll_control = PollControl::default();
    poll_control.set(PollPolicy { mode: PollMode::Auto, max_ns: u64::MAX, idle_percent: 255 });
    let most = PollPolicy { mode: PollMode::Auto, max_ns: POLL_MAX_NS, idle_percent: 100 };
    assert_eq!(poll_control.policy(), most);
}

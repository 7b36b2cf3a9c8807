//! Tests of a queue that polls for work instead of being woken.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::guest::{Gate, Guest, IN, OUT, SOON, polled};
use blk::BlkDevice;
use reactor::{POLL_MAX_NS, PollMode, PollPolicy, PollReason};
use testkit::cpus::QUIET_DEADLINE;

/// Returns a policy that spins even on a busy machine, because tests run in parallel.
fn willing(mode: PollMode) -> PollPolicy {
    PollPolicy { mode, max_ns: POLL_MAX_NS, idle_percent: 0 }
}

fn null() -> Arc<dyn disk::Disk> {
    Arc::new(disk::NullDisk::new(1 << 20, 512, false))
}

fn soon(what: &str, is: impl FnMut() -> bool) {
    within(SOON, what, is);
}

/// Waits for a condition that needs a moment in which no other process takes the CPUs. While they
/// do, spinning rightly does not pay, and a queue tries it ever less often. So each attempt sets the
/// policy again, and begins anew by that.
fn on_free_cpus(what: &str, is: impl FnMut() -> bool) {
    within(QUIET_DEADLINE, what, is);
}

fn within(deadline: Duration, what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + deadline;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

/// Wakes the reactor once, because savings are known only after that.
fn waking_is_timed(guest: &Guest) {
    let handle = guest.reactor.handle();
    for _ in 0..2 {
        let counters = handle.clone();
        let sleeps = handle.call(move |_| counters.counters().sleeps()).unwrap();
        soon("it sleeps again", || handle.counters().sleeps() > sleeps);
    }
}

fn hits(device: &BlkDevice) -> u64 {
    device.poll_state().hits
}

#[test]
fn a_driver_that_comes_back_at_once_is_waited_for() {
    let device = polled(null(), 1, PollMode::Off);
    let mut guest = Guest::new(&device, true);
    waking_is_timed(&guest);
    on_free_cpus("it spins, and that pays", || {
        device.set_poll(willing(PollMode::Auto));
        (0..200).for_each(|_| assert_eq!(guest.run(IN, 0, (512, true)).0, 0));
        let state = device.poll_state();
        let pays = state.reason == PollReason::Pays && state.saved_ns > 0;
        state.hits > 100 && state.armed() && state.spun_ns > 0 && pays
    });
    // Its reactor writes both until it sleeps.
    soon("its queue has the same", || device.queue_states()[0].poll == device.poll_state());
    // Read before the last request, because the reactor may sleep at once after it.
    let sleeps = guest.reactor.handle().counters().sleeps();
    assert_eq!(guest.run(IN, 0, (512, true)).0, 0);
    let reactor = guest.reactor.clone();
    soon("it sleeps", || reactor.handle().counters().sleeps() > sleeps);
    let counters = reactor.handle().counters();
    assert!(counters.spun_ns() > 0);
    assert_eq!(guest.run(IN, 0, (512, true)).0, 0, "and is woken again");
}

#[test]
fn a_disk_that_answers_is_waited_for() {
    let gate = Arc::new(Gate::opened());
    let device = polled(gate, 1, PollMode::Off);
    let mut guest = Guest::new(&device, true);
    on_free_cpus("it spins", || {
        device.set_poll(willing(PollMode::Auto));
        (0..200).for_each(|_| assert_eq!(guest.run(OUT, 0, (512, false)).0, 0));
        hits(&device) > 20
    });
}

#[test]
fn settings_change_under_load() {
    let device = polled(null(), 1, PollMode::Off);
    let mut guest = Guest::new(&device, true);
    let modes = [PollMode::Always, PollMode::Off, PollMode::Auto, PollMode::Off, PollMode::Auto];
    for (round, mode) in modes.into_iter().cycle().take(200).enumerate() {
        device.set_poll(PollPolicy { max_ns: (round as u64 % 3) * 1000, ..willing(mode) });
        if round % 2 == 0 {
            guest.queue.as_ref().unwrap().recheck_throttle();
        }
        for _ in 0..5 {
            assert_eq!(guest.run(IN, 0, (512, true)).0, 0);
        }
        let expected = match mode {
            PollMode::Off => PollReason::Off,
            PollMode::Always => PollReason::Always,
            PollMode::Auto => continue,
        };
        soon("the setting holds", || device.poll_state().reason == expected);
    }
    assert_eq!(guest.queue.take().unwrap().stop().unwrap(), 1000);
}

#[test]
fn what_is_stopped_in_the_middle_of_a_spin_ends() {
    for mode in [PollMode::Always, PollMode::Auto] {
        for round in 0..50u16 {
            let device = polled(null(), 1, PollMode::Off);
            device.set_poll(willing(mode));
            let mut guest = Guest::new(&device, true);
            let mut requests = 0;
            on_free_cpus("it spins", || {
                if requests % 200 == 199 {
                    device.set_poll(willing(mode));
                }
                assert_eq!(guest.run(IN, 0, (512, true)).0, 0);
                requests += 1;
                requests >= round % 4 && device.poll_state().armed()
            });
            assert_eq!(guest.queue.take().unwrap().stop().unwrap(), requests);
        }
    }
}

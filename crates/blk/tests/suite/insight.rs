//! Tests of the latency and slow-request reports of a device.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::guest::{FLUSH, GET_ID, Gate, Guest, IN, OUT, SOON, device};
use blk::{BlkDevice, Class, DeviceOptions, Op, Stage, clock_ns};
use reactor::{PollPolicy, Reactor};

/// Calls `ask` until it returns a value: published data lags behind by a turn.
fn soon<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let until = std::time::Instant::now() + SOON;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(std::time::Instant::now() < until, "it does not come");
        std::thread::yield_now();
    }
}

#[test]
fn each_stage_is_counted_once_for_each_request() {
    let device = device(Arc::new(disk::NullDisk::new(1 << 20, 512, false)), 1, false);
    let mut guest = Guest::new(&device, true);
    for _ in 0..10 {
        guest.run(IN, 0, (4096, true));
        guest.run(OUT, 0, (4096, false));
    }
    guest.run(FLUSH, 0, (0, false));
    guest.run(GET_ID, 0, (20, true));
    guest.queue.take().unwrap().stop().unwrap();
    let count = |stage, op| device.durations(stage, op).map_or(0, |all| all.count());
    for stage in [Stage::Queue, Stage::Device, Stage::Total] {
        assert_eq!((count(stage, Op::Read), count(stage, Op::Write)), (10, 10), "{stage:?}");
        assert_eq!((count(stage, Op::Flush), count(stage, Op::Other)), (1, 0), "{stage:?}");
    }
    for op in Op::ALL {
        assert_eq!(count(Stage::Cap, op), 0, "nothing was held back");
        assert_eq!(count(Stage::Completion, op), 0, "they ended where they were submitted");
    }
    let records = device.slow();
    assert!(!records.is_empty(), "the slowest of the minute is kept");
    assert_eq!(device.oldest(), None);
}

#[test]
fn a_queue_that_is_polled_counts_every_request_whatever_it_times() {
    let device = device(Arc::new(disk::NullDisk::new(1 << 20, 512, false)), 1, true);
    let mut guest = Guest::new(&device, true);
    for round in 1..=20 {
        for _ in 0..50 {
            guest.run(IN, 0, (4096, true));
            guest.run(OUT, 0, (4096, false));
        }
        // The queue spins forever and records all counted turns when it is idle.
        for stage in [Stage::Queue, Stage::Device, Stage::Total] {
            for op in [Op::Read, Op::Write] {
                let count = || device.durations(stage, op).map_or(0, |all| all.count());
                soon(|| (count() >= round * 50).then_some(()));
                assert_eq!(count(), round * 50, "{stage:?} {op:?}");
            }
        }
    }
    guest.run(IN, 0, (4096, true));
    guest.queue.take().unwrap().stop().unwrap();
    assert_eq!(device.durations(Stage::Total, Op::Read).unwrap().count(), 1001);
}

#[test]
fn a_request_that_fails_at_once_is_recorded_as_failed() {
    let device = device(Arc::new(Gate::failing()), 1, false);
    let mut guest = Guest::new(&device, true);
    guest.run(IN, 0, (4096, true));
    guest.queue.take().unwrap().stop().unwrap();
    assert_eq!(device.stats().errors, 1);
    let records = device.slow();
    assert!(!records.is_empty() && records.iter().all(|one| one.failed), "{records:?}");
}

#[test]
fn what_is_not_recorded_is_not_there() {
    let disk = Arc::new(disk::NullDisk::new(1 << 20, 512, false));
    let options = DeviceOptions {
        id: "test".into(),
        queues: 1,
        serial: String::new(),
        poll: PollPolicy::default(),
        record: false,
    };
    let device = BlkDevice::new(disk, &options);
    let mut guest = Guest::new(&device, true);
    guest.run(IN, 0, (4096, true));
    guest.queue.take().unwrap().stop().unwrap();
    let stats = device.stats();
    assert_eq!((stats.requests.read, stats.latency.count), (1, 0));
    assert!(device.slow().is_empty());
}

#[test]
fn a_request_that_hangs_is_seen_while_it_hangs_and_afterwards() {
    let gate = Gate::closed();
    let device = device(Arc::new(gate.clone()), 1, true);
    let mut guest = Guest::new(&device, true);
    let before = clock_ns();
    for slot in 0..3 {
        guest.put(slot, OUT, 8 * u64::from(slot), (4096, false));
    }
    guest.publish();
    let oldest = soon(|| device.oldest().filter(|oldest| oldest.stage == Stage::Device));
    assert_eq!(oldest.request, Some((Class::Write, 0, 4096)));
    assert!(oldest.known_ns <= oldest.entered_ns && oldest.entered_ns <= clock_ns());
    assert_eq!(device.queue_states()[0].in_flight, 3);
    // Longer than the limit of a slow request.
    std::thread::sleep(Duration::from_millis(30));
    assert!(clock_ns() - device.oldest().unwrap().known_ns >= 30_000_000);
    gate.open();
    for _ in 0..3 {
        guest.used();
    }
    guest.queue.take().unwrap().stop().unwrap();
    assert_eq!(device.oldest(), None);
    let slow = device.slow().into_iter().max_by_key(|one| one.total_ns()).unwrap();
    let [queue, cap, device_ns, completion] = slow.stages_ns;
    assert!(device_ns >= 30_000_000 && device_ns > queue + completion && cap == 0, "{slow:?}");
    assert_eq!((slow.class, slow.offset, slow.len, slow.others), (Class::Write, 0, 4096, 2));
    assert!(slow.known_ns >= before && !slow.failed);
    let all = device.durations(Stage::Device, Op::Write).unwrap().summary();
    assert!(all.count == 3 && all.max_ns >= 30_000_000, "{all:?}");
    assert_eq!(device.durations(Stage::Completion, Op::Write).unwrap().count(), 3);
}

#[test]
fn a_neighbour_that_keeps_the_reactor_is_named() {
    let slow = Duration::from_millis(5);
    let (busy, victim) = (
        device(Arc::new(Gate::slow(slow)), 1, true),
        device(Arc::new(disk::NullDisk::new(1 << 20, 512, false)), 1, true),
    );
    let reactor = Arc::new(Reactor::spawn("shared").unwrap());
    let mut neighbour = Guest::with(&busy, reactor.clone(), true, !0);
    let mut guest = Guest::with(&victim, reactor, true, !0);
    // Retry until a request arrives while the thread serves the neighbour.
    for _ in 0..100 {
        neighbour.put(0, IN, 0, (512, true));
        neighbour.publish();
        std::thread::sleep(slow / 4);
        guest.run(IN, 0, (512, true));
        neighbour.used();
        if victim.queue_states()[0].neighbour.is_some() {
            break;
        }
    }
    let (label, time, when) = victim.queue_states()[0].neighbour.unwrap();
    assert_eq!(label, busy.label());
    assert!(time >= 5_000_000 && when <= clock_ns(), "{time} ns");
    let slow = victim.slow().into_iter().max_by_key(|one| one.total_ns()).unwrap();
    assert_eq!(slow.neighbour.map(|(label, _)| label), Some(busy.label()), "{slow:?}");
    assert!(slow.stages_ns[0] > slow.stages_ns[2], "it waited in the ring: {slow:?}");
    assert!(busy.queue_states()[0].longest_turn_ns >= 5_000_000);
}

//! Rings that move between reactors under load, during other events.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use model::spec::DiskSpec;
use serde_json::{Value, json};
use testkit::driver::{Driver, Options, Queue};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};

use crate::pool::{Pool, PoolSize};
use crate::served_disk::ServedDisk;

const BYTES: u64 = 4 << 20;
/// Time that the guest works between two events.
const SPELL: Duration = Duration::from_millis(20);
/// Time in which any work makes progress, even on a slow machine.
const STILL: Duration = Duration::from_secs(20);

/// Serves a disk, and returns it with its pool.
pub(in crate::served_disk) fn serve(
    folder: &Path,
    reactors: usize,
    extra: Value,
) -> (Arc<ServedDisk>, Arc<Pool>) {
    let mut spec = json!({"id": "d", "socket": folder.join("s"), "queues": 2,
        "backend": {"memory": BYTES}});
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let spec: DiskSpec = serde_json::from_value(spec).unwrap();
    let pool = Arc::new(Pool::start(PoolSize::asked(reactors)).unwrap());
    let served_disk = ServedDisk::open(spec, Default::default(), Arc::clone(&pool)).unwrap();
    served_disk.listen().unwrap();
    served_disk.activate().unwrap();
    served_disk.serve(served_disk.source(), None).unwrap();
    (served_disk, pool)
}

/// Moves queues in turn until `over` is set, and at least `least` times.
fn stir(pool: &Pool, reactors: usize, least: u64, over: &AtomicBool) {
    let (mut moves, mut moved) = (pool.moves(), Instant::now());
    while moves < least || !over.load(Ordering::Relaxed) {
        (0..reactors).for_each(|at| {
            pool.shift(at);
        });
        if pool.moves() > moves {
            (moves, moved) = (pool.moves(), Instant::now());
        }
        assert!(moved.elapsed() < STILL, "no more than {moves} moves");
    }
}

/// Waits until this many leases exist. The balancer's own moves take a second lease for a moment.
fn places(pool: &Pool, expected: usize) {
    let began = Instant::now();
    loop {
        let taken: usize = pool.reactors().iter().map(|(_, queues)| *queues).sum();
        if taken == expected {
            break;
        }
        assert!(began.elapsed() < STILL, "{taken} places are taken and not {expected}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a guest under load whose queues move all the time, until they have moved `least` times.
/// `happen` triggers an event on guest or disk between two periods of work.
fn moved(
    extra: Value,
    shape: Shape,
    least: u64,
    mut happen: impl FnMut(&Arc<ServedDisk>, &mut ReconnectingGuest),
) {
    const REACTORS: usize = 3;
    let folder = tempfile::tempdir().unwrap();
    let (served_disk, pool) = serve(folder.path(), REACTORS, extra);
    let mut guest = ReconnectingGuest::connect(&folder.path().join("s"), shape).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stirring = scope.spawn(|| stir(&pool, REACTORS, least, &over));
        while pool.moves() < least && !stirring.is_finished() {
            assert_eq!(guest.run(Instant::now() + SPELL).unwrap(), End::Time);
            happen(&served_disk, &mut guest);
        }
        guest.finish().unwrap();
        over.store(true, Ordering::Relaxed);
    });
    let (tally, moves) = (guest.tally(), pool.moves());
    assert!(moves >= least && tally.compared >= 100, "{moves} moves, {tally:?}");
    // At the end each queue has exactly one lease.
    places(&pool, 2);
    drop(guest);
    served_disk.detach().unwrap();
    places(&pool, 0);
}

fn shape(seed: u64, event_idx: bool) -> Shape {
    Shape { queues: 2, event_idx, seed, ..Shape::default() }
}

fn least() -> u64 {
    testkit::rounds(300, 10_000) as u64
}

#[test]
fn queues_of_a_disk_in_memory_move_under_load() {
    for event_idx in [false, true] {
        moved(json!({"poll": "off"}), shape(1, event_idx), least(), |_, _| {});
    }
}

#[test]
fn queues_move_in_the_middle_of_a_spin() {
    for event_idx in [false, true] {
        moved(json!({"poll": "always"}), shape(2, event_idx), least(), |_, _| {});
    }
}

#[test]
fn queues_of_a_file_move_with_requests_in_the_kernel() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(BYTES).unwrap();
    let extra = json!({"backend": {"file": image}, "cache": "writeback"});
    moved(extra, shape(3, true), least(), |_, _| {});
}

#[test]
fn queues_move_while_their_machine_stops_goes_on_and_starts_anew() {
    let mut turn = 0;
    moved(json!({"poll": "always"}), shape(4, true), least(), |served_disk, guest| {
        turn += 1;
        match turn % 4 {
            0 => {
                let stopped = guest.stop().unwrap();
                guest.cont(stopped).unwrap();
            }
            1 => {
                guest.hang_up();
                guest.reconnect().unwrap();
            }
            2 => {
                served_disk.pause().unwrap();
                served_disk.resume().unwrap();
            }
            _ => {}
        }
    });
}

#[test]
fn queues_that_a_cap_holds_move() {
    let caps = json!({"iops": 3000});
    let shape = Shape { depth: 8, ..shape(5, true) };
    moved(json!({"caps": caps}), shape, least() / 10, |_, _| {});
}

const SLOTS: u16 = 16;
const BLOCK: usize = 4096;

/// Runs a driver without an in-flight region. It writes a block in each slot and reads it again,
/// until it must end. Every request completes once, and each block has the last written data. The
/// driver sleeps, so that a lost call or kick shows as a hang.
fn write_and_read(queue: &mut Queue, number: u64, over: impl Fn() -> bool) -> u64 {
    let place = |slot: u16| (number * u64::from(SLOTS) + u64::from(slot)) * BLOCK as u64;
    let block = |slot: u16, turn: u64| {
        let stamp = [place(slot), turn].map(u64::to_le_bytes).concat();
        stamp.repeat(BLOCK / stamp.len())
    };
    // Turn in flight in each slot. An even turn is a write.
    let mut out: Vec<Option<u64>> = vec![None; SLOTS.into()];
    let begin = |queue: &mut Queue, slot: u16, turn: u64| {
        if turn.is_multiple_of(2) {
            queue.fill(slot, &block(slot, turn)).unwrap();
            queue.write(place(slot), slot, BLOCK).unwrap();
        } else {
            queue.fill(slot, &[0; BLOCK]).unwrap();
            queue.read(place(slot), slot, BLOCK).unwrap();
        }
        Some(turn)
    };
    queue.want_calls(true);
    for slot in 0..SLOTS {
        out[usize::from(slot)] = begin(queue, slot, 0);
    }
    let mut ended = Vec::new();
    let mut total = 0;
    let mut ending = false;
    while out.iter().any(Option::is_some) {
        queue.kick().unwrap();
        queue.completions(|slot, result| ended.push((slot, result)));
        if ended.is_empty() {
            assert!(queue.sleep_until(Duration::from_secs(30)).unwrap(), "lost: {out:?}");
        }
        ending |= over();
        for (slot, result) in ended.drain(..) {
            assert_eq!(result, 0);
            let turn = out[usize::from(slot)].take().expect("completed twice");
            if !turn.is_multiple_of(2) {
                assert!(queue.buffer(slot, BLOCK).unwrap() == block(slot, turn - 1), "{turn}");
            }
            total += 1;
            if !ending {
                out[usize::from(slot)] = begin(queue, slot, turn + 1);
            }
        }
    }
    total
}

#[test]
fn queues_move_under_a_driver_that_keeps_no_record() {
    const REACTORS: usize = 2;
    for (poll, event_idx) in [("off", true), ("off", false), ("always", true), ("always", false)] {
        let folder = tempfile::tempdir().unwrap();
        let (served_disk, pool) = serve(folder.path(), REACTORS, json!({"poll": poll}));
        let options = Options { queues: 2, slots: SLOTS, event_idx, ..Options::default() };
        let queues = Driver::connect(&folder.path().join("s"), &options).unwrap().queues;
        std::thread::scope(|scope| {
            let pool = &*pool;
            for (mut queue, number) in queues.into_iter().zip(0..) {
                scope.spawn(move || {
                    let enough = || pool.moves() >= least();
                    let total = write_and_read(&mut queue, number, enough);
                    assert!(total > u64::from(SLOTS), "{total}");
                });
            }
            stir(pool, REACTORS, least(), &AtomicBool::new(true));
        });
        served_disk.detach().unwrap();
    }
}

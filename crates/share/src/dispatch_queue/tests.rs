//! Dispatch queues by hand: every step and its effect.

mod threads;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::profile::{Cost, Turn};
use crate::share::DiskConfig;
use crate::state::CELLS;
use crate::stats::WaitReason;

type Memory = Arc<[AtomicU64]>;
type Queue = DispatchQueue<Memory, u32>;

const MS: u64 = 1_000_000;
/// Device time of a read without bytes, in nanoseconds; ten of them are the knee.
const COST: u64 = 100_000;
const READ: Op = Op { kind: OpKind::Read, bytes: 0, urgent: false, whole: false, first: false };

fn profile() -> Profile {
    let cost = Cost { request_ns: COST, byte_ps: 100 };
    Profile {
        read: cost,
        write: cost,
        flush_ns: COST,
        knee_ns: 10 * COST,
        requests_min: 2,
        latency_ns: MS,
        piece: None,
        turn: None,
    }
}

fn memory() -> Memory {
    (0..CELLS).map(|_| AtomicU64::new(0)).collect()
}

fn open(memory: &Memory, process: u64) -> Arc<Share<Memory>> {
    let share = Share::open(Arc::clone(memory), process).unwrap();
    share.update_profile(&profile()).unwrap();
    share
}

fn add(share: &Share<Memory>) -> DiskId {
    share.add_disk("d", DiskConfig::default()).unwrap()
}

/// Submits a request that is sent at once.
fn send(queue: &mut Queue, disk: DiskId, now: u64) -> Permit {
    match queue.submit(disk, READ, 0, now) {
        Submitted::Send(permit) => permit,
        other => panic!("the request is {other:?}"),
    }
}

/// Makes the storage contended, and fills it with reads of `disk`. Returns their permits.
fn fill(queue: &mut Queue, disk: DiskId, other: DiskId, now: u64) -> Vec<Permit> {
    let permit = send(queue, other, now);
    queue.complete(permit, now);
    (0..10).map(|_| send(queue, disk, now)).collect()
}

#[test]
fn a_disk_alone_is_not_counted_until_another_one_comes() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let mut queue = Queue::open(&share).unwrap();
    assert!(send(&mut queue, first, MS).is_counted(), "the first request looks who is there");
    let permits: Vec<_> = (0..100).map(|_| send(&mut queue, first, MS)).collect();
    assert!(permits.iter().all(|permit| !permit.is_counted()));
    assert!(send(&mut queue, second, 2 * MS).is_counted());
    assert!(send(&mut queue, first, 2 * MS).is_counted());
    // The second one rests for 100 ms.
    for at in 3..220 {
        let permit = send(&mut queue, first, at * MS);
        queue.complete(permit, at * MS);
    }
    assert!(!send(&mut queue, first, 220 * MS).is_counted());
}

#[test]
fn requests_beyond_the_knee_are_held_until_a_token_is_free() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let mut queue = Queue::open(&share).unwrap();
    let mut permits = fill(&mut queue, first, second, MS);
    assert_eq!(queue.submit(second, READ, 7, MS), Submitted::Held);
    assert_eq!(queue.next(MS), None);
    assert_eq!(share.wait_reason(second), Some(WaitReason::Behind(first)));
    assert_eq!(share.wait_reason(first), None);
    assert_eq!(queue.deadline(), Some(2 * MS));
    queue.complete(permits.pop().unwrap(), 2 * MS);
    let dispatch = queue.next(2 * MS).expect("a token is free");
    assert_eq!((dispatch.disk, dispatch.key, dispatch.last), (second, 7, true));
    assert_eq!(share.wait_reason(second), None);
    assert_eq!(share.disk_stats(second).waited_ns, MS);
    assert_eq!(share.stats().in_flight, 10);
}

#[test]
fn a_queue_holds_a_quantum_of_a_disk() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let mut queue = Queue::open(&share).unwrap();
    let mut permits = fill(&mut queue, first, second, MS);
    assert_eq!(queue.submit(second, READ, 1, MS), Submitted::Held);
    assert_eq!(queue.submit(second, READ, 2, MS), Submitted::Held);
    assert_eq!(queue.submit(second, READ, 3, MS), Submitted::Full);
    queue.complete(permits.pop().unwrap(), MS);
    assert_eq!(queue.next(MS).map(|dispatch| dispatch.key), Some(1));
    assert_eq!(queue.submit(second, READ, 3, MS), Submitted::Held);
    // Another submitter has its turn, however much the first one holds.
    assert_eq!(queue.submit(second, Op { first: true, ..READ }, 4, MS), Submitted::Held);
    permits.into_iter().for_each(|permit| queue.complete(permit, MS));
    let order = std::iter::from_fn(|| queue.next(MS)).map(|dispatch| dispatch.key);
    assert_eq!(order.collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn flushes_and_metadata_never_wait() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let mut queue = Queue::open(&share).unwrap();
    let _full = fill(&mut queue, first, second, MS);
    for op in [Op::new(OpKind::Flush, 0), Op { urgent: true, ..READ }] {
        assert!(matches!(queue.submit(second, op, 1, MS), Submitted::Send(_)), "{op:?}");
    }
    // The disk pays: its next read goes after the other disk's.
    assert_eq!(queue.submit(second, READ, 2, MS), Submitted::Held);
    assert_eq!(queue.submit(first, READ, 1, MS), Submitted::Held);
    let slot = |disk| charge::key(share.disk(disk), false, MS);
    assert!(slot(second) > slot(first) - 10 * COST, "the debt is in the key");
    assert_eq!(share.disk(second).disk(DiskCell::Debt).load(Relaxed), 2 * COST);
}

#[test]
fn two_discards_are_in_flight_at_most() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let (mut one, mut two) = (Queue::open(&share).unwrap(), Queue::open(&share).unwrap());
    let discard = Op::new(OpKind::Discard, 0);
    assert_eq!(one.submit(first, discard, 1, MS), Submitted::Held);
    assert_eq!(one.submit(first, discard, 2, MS), Submitted::Held);
    assert_eq!(two.submit(second, discard, 3, MS), Submitted::Held);
    assert_eq!(two.submit(second, READ, 4, MS), Submitted::Held);
    let mut sent: Vec<_> = std::iter::from_fn(|| one.next(MS)).collect();
    assert_eq!(sent.len(), 2);
    // The read passes the discard, which waits.
    assert_eq!(two.next(MS).map(|dispatch| dispatch.key), Some(4));
    assert_eq!(two.next(MS), None);
    one.complete(sent.pop().unwrap().permit, 2 * MS);
    assert_eq!(one.next(2 * MS), None);
    assert_eq!(one.take_kick(), Some(two.reactor()));
    assert_eq!(two.next(2 * MS).map(|dispatch| dispatch.key), Some(3));
}

#[test]
fn a_discard_that_waits_keeps_no_request_back_and_earns_no_credit() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let (mut one, mut two) = (Queue::open(&share).unwrap(), Queue::open(&share).unwrap());
    let discard = Op::new(OpKind::Discard, 0);
    for key in [1, 2] {
        assert_eq!(one.submit(first, discard, key, MS), Submitted::Held);
        assert!(one.next(MS).is_some());
    }
    assert_eq!(two.submit(second, discard, 3, MS), Submitted::Held);
    assert_eq!(two.next(MS), None);
    // The first disk uses what the second one leaves.
    let mut permits: Vec<_> = (0..8).map(|_| send(&mut one, first, MS)).collect();
    for _ in 0..100 {
        assert_eq!(one.submit(first, READ, 4, MS), Submitted::Held);
        one.complete(permits.pop().unwrap(), MS);
        permits.extend(one.next(MS).map(|dispatch| dispatch.permit));
    }
    // More than the credit, so it is held only if it is the first.
    let large = Op::new(OpKind::Read, 8 << 20);
    assert_eq!(two.submit(second, large, 5, MS), Submitted::Held);
    let key = |disk| charge::key(share.disk(disk), false, MS);
    assert!(key(second) + 4 * COST > key(first), "{} {}", key(second), key(first));
    permits.into_iter().for_each(|permit| one.complete(permit, MS));
    assert_eq!(two.next(MS).map(|dispatch| dispatch.key), Some(5));
}

#[test]
fn a_freed_token_goes_to_the_reactor_with_the_lowest_tag() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let (mut one, mut two) = (Queue::open(&share).unwrap(), Queue::open(&share).unwrap());
    let mut permits = fill(&mut one, first, second, MS);
    assert_eq!(one.submit(first, READ, 1, MS), Submitted::Held);
    assert_eq!(two.submit(second, READ, 2, MS), Submitted::Held);
    assert_eq!((one.next(MS), two.next(MS)), (None, None));
    one.complete(permits.pop().unwrap(), MS);
    assert_eq!(one.next(MS), None, "the second disk has had less");
    assert_eq!(one.take_kick(), Some(two.reactor()));
    assert_eq!(one.take_kick(), None);
    // A reactor that does not take its kick in a millisecond holds no other.
    assert_eq!(one.next(2 * MS), None);
    assert_eq!(one.next(2 * MS + 1).map(|dispatch| dispatch.key), Some(1));
    // The late reactor finds no token, and gets the next one.
    assert_eq!(two.next(3 * MS), None);
    one.complete(permits.pop().unwrap(), 3 * MS);
    assert_eq!(two.next(3 * MS).map(|dispatch| dispatch.key), Some(2));
}

#[test]
fn a_disk_that_returns_is_not_put_behind_one_that_waits() {
    let share = open(&memory(), 1);
    let light = share.add_disk("d", DiskConfig { weight: 1, ..DiskConfig::default() }).unwrap();
    let (waiting, returning) = (add(&share), add(&share));
    let (mut one, mut late) = (Queue::open(&share).unwrap(), Queue::open(&share).unwrap());
    let mut permits = fill(&mut one, light, returning, MS);
    assert_eq!(late.submit(waiting, READ, 1, MS), Submitted::Held);
    assert_eq!(late.next(MS), None);
    // The late reactor does not take its kick, and the light disk's tag goes far.
    for now in [MS, 3 * MS, 4 * MS, 5 * MS] {
        let _ = one.submit(light, READ, 2, now);
        one.complete(permits.pop().unwrap(), now);
        permits.extend(one.next(now).map(|dispatch| dispatch.permit));
    }
    assert_eq!(late.submit(returning, READ, 3, 6 * MS), Submitted::Held);
    let key = |disk| charge::key(share.disk(disk), false, MS);
    assert!(key(light) > key(waiting) + 20 * MS, "{} {}", key(light), key(waiting));
    assert!(key(returning) <= key(waiting), "{} {}", key(returning), key(waiting));
}

#[test]
fn a_large_request_is_split_while_the_storage_is_idle() {
    let share = open(&memory(), 1);
    let piece = crate::profile::Piece { bytes: 65_536, gain_percent: 50 };
    share.update_profile(&Profile { piece: Some(piece), ..profile() }).unwrap();
    let disk = add(&share);
    let mut queue = Queue::open(&share).unwrap();
    let large = Op::new(OpKind::Read, 200_000);
    assert_eq!(queue.submit(disk, large, 9, MS), Submitted::Held);
    let pieces: Vec<_> = std::iter::from_fn(|| queue.next(MS))
        .map(|dispatch| (dispatch.key, dispatch.offset, dispatch.bytes, dispatch.last))
        .collect();
    let expected = [
        (9, 0, 65_536, false),
        (9, 65_536, 65_536, false),
        (9, 131_072, 65_536, false),
        (9, 196_608, 3_392, true),
    ];
    assert_eq!(pieces, expected);
    assert_eq!(share.disk_stats(disk).splits, 1);
}

#[test]
fn a_killed_process_leaves_no_token() {
    let memory = memory();
    let (share, killed) = (open(&memory, 1), open(&memory, 2));
    let (disk, other) = (add(&share), add(&killed));
    let mut queue = Queue::open(&share).unwrap();
    let mut dead = Queue::open(&killed).unwrap();
    let permit = send(&mut queue, disk, MS);
    queue.complete(permit, MS);
    std::mem::forget(fill(&mut dead, other, other, MS));
    assert_eq!(dead.submit(other, READ, 1, MS), Submitted::Held);
    assert_eq!(dead.next(MS), None);
    std::mem::forget(dead);
    assert_eq!(queue.submit(disk, READ, 5, MS), Submitted::Held);
    assert_eq!(queue.next(MS), None);
    share.release_process(2);
    assert_eq!(queue.next(MS).map(|dispatch| dispatch.key), Some(5));
    assert_eq!(share.stats().in_flight, 1);
    assert_eq!(add(&killed), other, "its slots are free");
}

#[test]
fn a_closed_queue_returns_its_tokens() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let mut queue = Queue::open(&share).unwrap();
    let _permits = fill(&mut queue, first, second, MS);
    assert_eq!(queue.submit(second, READ, 1, MS), Submitted::Held);
    drop(queue);
    assert_eq!(share.stats().in_flight, 0);
    assert_eq!((share.disk_stats(first).in_flight, share.disk_stats(second).held), (0, 0));
}

#[test]
fn a_new_profile_is_used_from_the_next_request_on() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let mut queue = Queue::open(&share).unwrap();
    let _permits = fill(&mut queue, first, second, MS);
    assert_eq!(queue.submit(second, READ, 1, MS), Submitted::Held);
    assert_eq!(queue.next(MS), None);
    share.update_profile(&Profile { knee_ns: 20 * COST, ..profile() }).unwrap();
    assert!(queue.next(MS).is_some());
}

#[test]
fn a_turn_ends_when_its_disk_stays_idle() {
    let share = open(&memory(), 1);
    let turn = Turn { bytes: 64 << 20, idle_ns: 2 * MS };
    share.update_profile(&Profile { turn: Some(turn), ..profile() }).unwrap();
    let (first, second) = (add(&share), add(&share));
    let mut queue = Queue::open(&share).unwrap();
    assert_eq!(queue.submit(first, READ, 1, MS), Submitted::Held);
    assert_eq!(queue.submit(second, READ, 2, MS), Submitted::Held);
    let dispatch = queue.next(MS).expect("its turn begins");
    assert_eq!(dispatch.key, 1);
    assert_eq!(queue.next(MS), None);
    queue.complete(dispatch.permit, 2 * MS);
    assert_eq!(queue.next(2 * MS), None, "the device waits for the first disk");
    assert_eq!(queue.deadline(), Some(3 * MS));
    assert_eq!(queue.next(4 * MS).map(|dispatch| dispatch.key), Some(2));
}

#[test]
fn what_fails_at_once_is_charged_as_a_request_without_bytes() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let mut queue = Queue::open(&share).unwrap();
    let permits = fill(&mut queue, first, second, MS);
    permits.into_iter().for_each(|permit| queue.complete(permit, MS));
    // More than half of the knee, so it is charged.
    let write = Op { kind: OpKind::Write, bytes: 8 << 20, ..READ };
    let cost = COST + (8 << 20) / 10;
    let tag = |share: &Share<Memory>| share.disk(second).disk(DiskCell::Tag).load(Relaxed);
    let mut refund = |after: u64| {
        let Submitted::Send(permit) = queue.submit(second, write, 7, MS) else {
            panic!("it waits")
        };
        let charged = (tag(&share), share.disk_stats(second).served_ns);
        queue.fail(permit, MS + after);
        (charged.0 - tag(&share), charged.1 - share.disk_stats(second).served_ns)
    };
    assert_eq!(refund(10), (cost - COST, cost - COST));
    // One that took a while is charged for that.
    assert_eq!(refund(5 * COST), (cost - 5 * COST, cost - 5 * COST));
    // A device that reports an error of its own took its time.
    assert_eq!(refund(1000 * MS), (0, 0));
    assert_eq!(share.stats().in_flight, 0);
}

#[test]
fn what_went_past_the_queues_is_owed_while_others_want_the_storage() {
    let share = open(&memory(), 1);
    let (first, second) = (add(&share), add(&share));
    let mut queue = Queue::open(&share).unwrap();
    let owed = |disk| share.disk_stats(disk).owed_ns;
    let flush = Op::new(OpKind::Flush, 0);
    let permit = send(&mut queue, first, MS);
    share.charge(first, flush);
    assert_eq!(owed(first), 0, "it is alone");
    queue.complete(permit, MS);
    let permits = fill(&mut queue, first, second, MS);
    share.charge(second, flush);
    share.charge(second, Op::new(OpKind::Write, 4096));
    assert_eq!(owed(second), 2 * COST + 4096 / 10);
    permits.into_iter().for_each(|permit| queue.complete(permit, MS));
    share.charge(first, flush);
    assert_eq!(owed(first), 0, "the storage is idle");
    // The next request that is charged pays.
    let write = Op { kind: OpKind::Write, bytes: 8 << 20, ..READ };
    assert!(matches!(queue.submit(second, write, 7, MS), Submitted::Send(_)));
    assert_eq!(owed(second), 0);
    assert_eq!(share.disk_stats(second).served_ns, 3 * COST + 4096 / 10 + (8 << 20) / 10);
}

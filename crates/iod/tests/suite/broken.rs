//! Rings that a driver has broken: what reports say, and for how long.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::frames::{attach, frame, guest, send};
use crate::common::*;
use model::report::{BrokenRing, RingKind};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::openmetrics::{Page, read, value};
use testkit::process::{PROCESS_DEADLINE, eventually};
use testkit::raw::guest::{WaitEvent, drain};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Malformed, Setup};

/// Entries by which the available index jumps, more than the ring has.
const JUMP: u16 = 1000;

/// Publishes an available index that no driver may publish. Returns the former one.
fn jump(guest: &mut Guest, queue: usize) -> u16 {
    let offered = guest.queues[queue].ring.avail_idx;
    guest.queues[queue].ring.set_avail_idx(&guest.memory, offered.wrapping_add(JUMP)).unwrap();
    offered
}

/// Waits until the device has reported a broken ring to the front-end.
fn wait_for_error(guest: &mut Guest, queue: usize) {
    assert_eq!(guest.wait(queue, PROCESS_DEADLINE).unwrap(), WaitEvent::QueueError);
    drain(&guest.queues[queue].err).unwrap();
}

fn break_ring(guest: &mut Guest, queue: usize) -> u16 {
    let offered = jump(guest, queue);
    guest.kick(queue).unwrap();
    wait_for_error(guest, queue);
    offered
}

fn of_disk(caller: &mut Caller) -> (Vec<BrokenRing>, u64) {
    let disk = caller.stats().disks.remove(0);
    (disk.broken_rings, disk.broken_rings_total)
}

fn of_nic(caller: &mut Caller, id: &str) -> Vec<BrokenRing> {
    let port = caller.stats().ports.into_iter().find(|port| port.id == id).unwrap();
    port.broken_rings
}

fn metrics(caller: &mut Caller) -> Page {
    let reply = caller.call("metrics", Value::Null).unwrap();
    read(reply["openmetrics"].as_str().unwrap()).unwrap()
}

/// Returns what identifies a broken ring, without its age.
fn identity(all: &[BrokenRing]) -> Vec<(u16, RingKind, &str, f64)> {
    all.iter().map(|one| (one.queue, one.kind, one.cause.as_str(), one.unix_seconds)).collect()
}

#[test]
fn a_disk_tells_its_broken_ring_until_it_starts_again() {
    let io = Io::start();
    let mut caller = io.caller();
    let mut spec = io.spec("d", json!({"memory": 1 << 20}));
    spec["queues"] = json!(2);
    caller.disk("disk.attach", spec);
    let setup = Setup { queues: 2, ..Setup::default() };
    let mut guest = Guest::start(&io.socket("d"), &setup).unwrap();
    assert_eq!(guest.run(1, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    assert_eq!(of_disk(&mut caller), (Vec::new(), 0));

    let offered = break_ring(&mut guest, 1);
    let (broken, total) = of_disk(&mut caller);
    assert_eq!((broken.len(), broken[0].queue, total), (1, 1, 1), "{broken:?}");
    assert_eq!(broken[0].cause, "available index jumped from 1 to 1001 in a ring of 128");
    let page = metrics(&mut caller);
    let d = ("disk", "d");
    assert_eq!(value(&page, "ringway_disk_broken_rings", "", &[d]), 1.0);
    assert_eq!(value(&page, "ringway_disk_ring_breaks", "_total", &[d]), 1.0);
    let rule = ("cause", "available index jumped from N to N in a ring of N");
    let labels = [d, ("queue", "1"), rule];
    assert!(value(&page, "ringway_disk_broken_ring_seconds", "", &labels) >= 0.0);

    // A pause and an upgrade do not start the ring, so both keep what is known of it.
    caller.disk("disk.pause", json!({"id": "d"}));
    caller.disk("disk.resume", json!({"id": "d"}));
    assert_eq!(identity(&of_disk(&mut caller).0), identity(&broken));
    caller.call("upgrade", Value::Null).unwrap();
    let mut caller = io.caller();
    let (after, total) = of_disk(&mut caller);
    assert_eq!(identity(&after), identity(&broken));
    // Counts of a new worker begin at zero.
    assert_eq!(total, 0);

    guest.queues[1].ring.set_avail_idx(&guest.memory, offered).unwrap();
    assert_eq!(guest.stop_queue(1).unwrap(), offered);
    guest.start_queue(1, offered).unwrap();
    assert_eq!(guest.run(1, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    assert_eq!(of_disk(&mut caller), (Vec::new(), 0));

    // The state ends with the front-end, too.
    break_ring(&mut guest, 0);
    assert_eq!(of_disk(&mut caller).0.len(), 1);
    drop(guest);
    eventually("the session ends", || of_disk(&mut caller).0.is_empty());
    assert_eq!(of_disk(&mut caller).1, 1);
}

/// As of a DIMM that is plugged into a running machine and is not shared.
#[test]
fn an_address_outside_memory_is_an_error_and_no_broken_ring() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    let address = format!("{:#x}", guest.memory.end());
    for _ in 0..3 {
        let outcome = Malformed::DataOutside.inflict(&mut guest, 0, PROCESS_DEADLINE).unwrap();
        assert_eq!(outcome.status, Some(status::IOERR), "{outcome:?}");
        assert_eq!(guest.run(0, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    }
    let disk = caller.stats().disks.remove(0);
    assert_eq!((disk.errors, disk.requests.write, disk.broken_rings_total), (3, 3, 0));
    // Nobody could answer this one.
    let outcome = Malformed::StatusOutside.inflict(&mut guest, 0, PROCESS_DEADLINE).unwrap();
    assert_eq!(outcome.event, WaitEvent::QueueError);
    let (broken, total) = of_disk(&mut caller);
    assert_eq!((broken.len(), total), (1, 1));
    assert!(broken[0].cause.contains(&address), "{broken:?}");
    assert!(io.process.terminate().unwrap().success());
    let log = io.process.stderr();
    let fails: Vec<_> = log.lines().filter(|line| line.contains("a request fails")).collect();
    let hint = format!("at {address} is in no memory that the front-end shares");
    let told = |line: &&str| line.contains(&hint) && line.contains("share=on");
    assert!(fails.len() == 2 && fails.iter().all(told), "the first and the second: {log}");
    assert!(log.contains("needs memory that is not shared"), "{log}");
    assert!(!log.contains("driver broke"), "{log}");
}

/// The front-end of a dead worker starts its rings again, so the next one finds the fault itself.
#[test]
fn a_ring_that_is_still_broken_after_a_restart_is_told_again() {
    let io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    break_ring(&mut guest, 0);
    let before = of_disk(&mut caller).0;
    let worker = io.process.worker_pid().unwrap().unwrap();
    kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
    guest.frontend.connection.wait_closed().unwrap();
    let mut again = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    break_ring(&mut again, 0);
    let mut caller = io.caller();
    let (after, total) = of_disk(&mut caller);
    assert_eq!((after[0].cause.as_str(), total), (before[0].cause.as_str(), 1));
    assert!(after[0].unix_seconds > before[0].unix_seconds);
}

#[test]
fn a_nic_tells_its_broken_rings_until_they_start_again() {
    let io = Io::start_with(&["--reactors", "1"]);
    (1..).zip(["a", "b"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    let [mut a, mut b] = ["a", "b"].map(|id| guest(&io.socket(id), 1));
    let mut caller = io.caller();
    let sent = break_ring(&mut b, 1);
    // A receive ring is read when a frame comes.
    let posted = jump(&mut b, 0);
    assert_eq!(identity(&of_nic(&mut caller, "b")).len(), 1);
    // The buffers that were there before the jump are used first.
    for _ in 0..=posted {
        send(&mut a, &frame(0xff, 1, "hello"));
    }
    wait_for_error(&mut b, 0);
    let broken = of_nic(&mut caller, "b");
    let kinds: Vec<_> = broken.iter().map(|one| (one.queue, one.kind)).collect();
    assert_eq!(kinds, [(0, RingKind::Receive), (1, RingKind::Transmit)]);
    assert!(broken.iter().all(|one| one.cause.starts_with("available index jumped")), "{broken:?}");
    assert_eq!(of_nic(&mut caller, "a"), []);
    let page = metrics(&mut caller);
    assert_eq!(value(&page, "ringway_nic_broken_rings", "", &[("nic", "b")]), 2.0);
    assert_eq!(value(&page, "ringway_nic_ring_breaks", "_total", &[("nic", "b")]), 2.0);
    assert_eq!(value(&page, "ringway_nic_broken_rings", "", &[("nic", "a")]), 0.0);

    caller.call("upgrade", Value::Null).unwrap();
    let mut caller = io.caller();
    assert_eq!(identity(&of_nic(&mut caller, "b")), identity(&broken));
    for (queue, index) in [(0, posted), (1, sent)] {
        b.queues[queue].ring.set_avail_idx(&b.memory, index).unwrap();
        b.stop_queue(queue).unwrap();
        b.start_queue(queue, index).unwrap();
    }
    assert_eq!(of_nic(&mut caller, "b"), []);
    send(&mut b, &frame(0xff, 2, "back"));
    let back = a.receive_frame(0, PROCESS_DEADLINE).unwrap().expect("no frame came");
    assert_eq!(back.bytes, frame(0xff, 2, "back"));
}

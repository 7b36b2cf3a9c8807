//! Storage that hangs: stops end at their deadline, other disks are not disturbed, and the disk
//! continues when the storage answers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use crate::common::*;
use model::report::{DiskState, DiskStats};
use model::rpc::{RpcError, code};
use serde_json::{Value, json};
use testkit::process::PROCESS_DEADLINE;
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::storage::Hanging;

const DEADLINE: Duration = Duration::from_millis(400);
/// Upper bound that tells a stop from a hang, even on a busy machine.
const SOON: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 20;

fn attach(io: &Io, caller: &mut Caller, id: &str, path: &Path, cache: &str) {
    let mut spec = io.spec(id, json!({"file": path}));
    spec["cache"] = json!(cache);
    spec["stop_deadline_ms"] = json!(DEADLINE.as_millis() as u64);
    caller.disk("disk.attach", spec);
}

fn guest(io: &Io, id: &str) -> Guest {
    Guest::start(&io.socket(id), &Setup::default()).unwrap()
}

/// Submits writes that the storage does not complete.
fn hang(hanging: &Hanging, guest: &mut Guest) {
    assert_eq!(guest.run(0, &Request::write(0, &[1; 4096])).unwrap().status, status::OK);
    hanging.hang().unwrap();
    guest.submit_all(0, &[8, 16].map(|at| Request::write(at, &[2; 4096]))).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
}

/// Returns the 99th percentile of a few hundred writes.
fn p99(guest: &mut Guest) -> Duration {
    let mut one = || {
        let (done, took) = timed(|| guest.run(0, &Request::write(0, &[3; 4096])));
        assert_eq!(done.unwrap().status, status::OK);
        took
    };
    let mut all: Vec<_> = (0..400).map(|_| one()).collect();
    all.sort();
    all[395]
}

fn disk(caller: &mut Caller, id: &str) -> DiskStats {
    caller.stats().disks.into_iter().find(|disk| disk.id == id).unwrap()
}

fn refused(outcome: Result<Value, RpcError>, path: &Path) -> String {
    let error = outcome.unwrap_err();
    assert_eq!(error.code, code::FAILED, "{error}");
    let named = error.message.contains(path.to_str().unwrap());
    assert!(named && error.message.contains("mend the storage"), "{error}");
    error.message
}

#[test]
fn a_ring_that_does_not_stop_ends_its_session_and_no_other() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", BYTES).unwrap();
    // The neighbour shares the only reactor.
    let io = Io::start_with(&["--reactors", "1"]);
    let mut caller = io.caller();
    attach(&io, &mut caller, "d1", &path, "none");
    caller.disk("disk.attach", io.spec("d2", json!({"memory": BYTES})));
    let (mut stuck, mut well) = (guest(&io, "d1"), guest(&io, "d2"));
    let without = p99(&mut well);
    hang(&hanging, &mut stuck);

    let (stopped, took) = timed(|| stuck.stop_queue(0));
    assert!(stopped.is_err(), "an answer would say that nothing is in flight");
    assert!(took >= DEADLINE && took < SOON, "{took:?}");
    let shown = disk(&mut caller, "d1");
    let what = shown.stuck.unwrap();
    assert_eq!((shown.state, what.requests), (DiskState::Stuck, 2));
    assert!(what.verb.contains("stop of a ring"), "{}", what.verb);
    let alert = shown.alert.unwrap();
    assert!(alert.contains(path.to_str().unwrap()) && alert.contains("mend"), "{alert}");

    // The neighbour is served as before, and verbs on it are not slower.
    let with = p99(&mut well);
    assert!(with < 10 * without + Duration::from_millis(20), "{with:?} after {without:?}");
    caller.disk("disk.pause", json!({"id": "d2"}));
    caller.disk("disk.resume", json!({"id": "d2"}));
    assert_eq!(well.run(0, &Request::read(0, 512)).unwrap().data, [3; 512]);

    // A front-end that reconnects gets replies, but its requests wait, because abandoned I/O could
    // still land.
    let mut back = guest(&io, "d1");
    assert_eq!(back.config().unwrap().capacity_sectors, BYTES as u64 / 512);
    let pending = back.submit(0, &Request::read(0, 512)).unwrap();
    back.kick(0).unwrap();
    assert_eq!(back.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
    hanging.answer().unwrap();
    assert_eq!(back.finish(0, &pending).unwrap().data, [1; 512]);
    let shown = disk(&mut caller, "d1");
    assert_eq!((shown.state, shown.stuck, shown.alert), (DiskState::Active, None, None));
}

#[test]
fn verbs_end_at_the_deadline_and_say_what_is_left() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", BYTES).unwrap();
    let io = Io::start();
    let mut caller = io.caller();
    let d1 = json!({"id": "d1"});
    attach(&io, &mut caller, "d1", &path, "none");
    let mut first = guest(&io, "d1");
    hang(&hanging, &mut first);
    let (outcome, took) = timed(|| caller.call("disk.pause", d1.clone()));
    let text = refused(outcome, &path);
    assert!(took < SOON && text.contains("2 requests"), "{took:?}: {text}");
    first.frontend.connection.wait_closed().unwrap();
    let shown = disk(&mut caller, "d1");
    assert_eq!((shown.state, shown.stuck.unwrap().verb.as_str()), (DiskState::Stuck, "disk.pause"));
    // The disk stays paused, and cannot be resumed before the storage has completed its I/O.
    refused(caller.call("disk.resume", d1.clone()), &path);
    // A resize and the release of the lock need the same storage.
    refused(caller.call("disk.resize", json!({"id": "d1", "size": 2 * BYTES})), &path);
    let text = refused(caller.call("disk.deactivate", d1.clone()), &path);
    assert!(text.contains("lock"), "{text}");
    refused(caller.call("disk.activate", d1.clone()), &path);

    hanging.answer().unwrap();
    eventually("the storage is back", || disk(&mut caller, "d1").stuck.is_none());
    assert_eq!(disk(&mut caller, "d1").state, DiskState::Attached);
    assert_eq!(caller.disk("disk.activate", d1.clone()).state, DiskState::Active);
    let mut again = guest(&io, "d1");
    assert_eq!(again.run(0, &Request::read(0, 512)).unwrap().data, [1; 512]);
    // A resize that hangs: the verb ends, and the disk is stuck until the storage answers.
    hanging.hang().unwrap();
    let grow = json!({"id": "d1", "size": 2 * BYTES});
    let (outcome, took) = timed(|| caller.call("disk.resize", grow));
    refused(outcome, &path);
    assert!(took < SOON, "{took:?}");
    hanging.answer().unwrap();
    eventually("the storage is back", || disk(&mut caller, "d1").stuck.is_none());
}

#[test]
fn a_disk_is_detached_within_the_deadline_and_its_lock_follows() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", BYTES).unwrap();
    let io = Io::start();
    let mut caller = io.caller();
    attach(&io, &mut caller, "d1", &path, "none");
    let mut first = guest(&io, "d1");
    hang(&hanging, &mut first);
    let (outcome, took) = timed(|| caller.call("disk.detach", json!({"id": "d1"})));
    let text = refused(outcome, &path);
    assert!(took < SOON && text.contains("lock"), "{took:?}: {text}");
    assert_eq!(caller.state("d1"), None);
    assert!(!io.socket("d1").exists());
    // No writer is admitted beside abandoned I/O.
    let mut twin = io.spec("d2", json!({"file": path}));
    twin["activate"] = json!(false);
    caller.disk("disk.attach", twin);
    let error = caller.call("disk.activate", json!({"id": "d2"})).unwrap_err();
    assert!(error.message.contains("in use"), "{error}");
    // Not even under the same id.
    let (same, took) = timed(|| {
        let mut spec = io.spec("d1", json!({"file": path}));
        spec["stop_deadline_ms"] = json!(DEADLINE.as_millis() as u64);
        caller.call("disk.attach", spec)
    });
    refused(same, &path);
    assert!(took < SOON && caller.state("d1").is_none(), "{took:?}");
    hanging.answer().unwrap();
    let d2 = json!({"id": "d2"});
    eventually("the lock is free", || caller.call("disk.activate", d2.clone()).is_ok());
    let mut second = guest(&io, "d2");
    // The kernel had these writes, and has completed them.
    assert_eq!(second.run(0, &Request::read(8, 512)).unwrap().data, [2; 512]);
}

#[test]
fn a_flush_that_hangs_keeps_no_verb() {
    let hanging = Hanging::new().unwrap();
    let device = hanging.device("a", BYTES).unwrap();
    let io = Io::start();
    let mut caller = io.caller();
    attach(&io, &mut caller, "d1", &device, "writeback");
    let mut first = guest(&io, "d1");
    hanging.hang().unwrap();
    // The write ends in the page cache. The device would get it at the flush.
    assert_eq!(first.run(0, &Request::write(0, &[1; 4096])).unwrap().status, status::OK);
    let (outcome, took) = timed(|| caller.call("disk.deactivate", json!({"id": "d1"})));
    let text = refused(outcome, &device);
    assert!(took >= DEADLINE && took < SOON && text.contains("a flush"), "{took:?}: {text}");
    assert_eq!(disk(&mut caller, "d1").state, DiskState::Stuck);
    hanging.answer().unwrap();
    eventually("the flush ends", || disk(&mut caller, "d1").stuck.is_none());
    assert_eq!(disk(&mut caller, "d1").state, DiskState::Attached);
    caller.disk("disk.activate", json!({"id": "d1"}));
    caller.call("disk.detach", json!({"id": "d1"})).unwrap();
}

#[test]
fn a_shutdown_waits_for_no_disk_longer_than_its_deadline() {
    let hanging = Hanging::new().unwrap();
    let mut io = Io::start();
    let mut caller = io.caller();
    let mut guests = Vec::new();
    // Two disks hang in the kernel's workers, and one as a device does.
    let device = hanging.device("d", BYTES).unwrap();
    for (id, path) in [
        ("a", hanging.image("a", BYTES).unwrap()),
        ("b", hanging.image("b", BYTES).unwrap()),
        ("d", device),
    ] {
        attach(&io, &mut caller, id, &path, "none");
        guests.push(guest(&io, id));
    }
    let good = image(&io.folder, "good.raw", BYTES as u64);
    attach(&io, &mut caller, "g", Path::new(&good), "writeback");
    let mut well = guest(&io, "g");
    assert_eq!(well.run(0, &Request::write(0, &[7; 512])).unwrap().status, status::OK);
    hanging.hang().unwrap();
    for guest in &mut guests {
        guest.submit(0, &Request::write(0, &[2; 4096])).unwrap();
        guest.kick(0).unwrap();
    }
    assert_eq!(guests[0].wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
    let (answer, took) = timed(|| caller.call("shutdown", Value::Null));
    assert_eq!(answer.unwrap(), json!({}));
    assert!(took < SOON, "{took:?}");
    for guest in &mut guests {
        guest.frontend.connection.wait_closed().unwrap();
    }
    well.frontend.connection.wait_closed().unwrap();
    eventually("no socket is left", || names(&io.folder) == ["good.raw"]);
    assert_eq!(std::fs::read(&good).unwrap()[..512], [7; 512]);
    // The kernel ends a process only when all its threads have left the file system.
    hanging.answer().unwrap();
    assert!(io.process.wait(PROCESS_DEADLINE).unwrap().success());
}

#[test]
fn one_disk_alone_ends_at_its_deadline_too() {
    let hanging = Hanging::new().unwrap();
    let device = hanging.device("a", BYTES).unwrap();
    let folder = folder();
    let socket = folder.path().join("s");
    let options = ["--blk-file", device.to_str().unwrap(), "--stop-deadline", "400ms"];
    let mut blk = blk(&socket, &options);
    let mut guest = Guest::start(&socket, &Setup::default()).unwrap();
    hanging.hang().unwrap();
    guest.submit(0, &Request::write(0, &[2; 4096])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
    // The storage still hangs, but requests of a block device block no thread of this process.
    let status = blk.terminate().unwrap();
    let stderr = blk.stderr();
    assert!(status.code() == Some(1) && stderr.contains("mend the storage"), "{status}: {stderr}");
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn any_number_of_requests_that_hang_leave_the_neighbours_their_workers() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", BYTES).unwrap();
    // Both disks use the kernel workers of the only reactor.
    let io = Io::start_with(&["--reactors", "1"]);
    let mut caller = io.caller();
    attach(&io, &mut caller, "d1", &path, "none");
    let good = image(&io.folder, "good.raw", BYTES as u64);
    attach(&io, &mut caller, "d2", Path::new(&good), "writeback");
    let setup = Setup { queue_size: 1024, ..Setup::default() };
    let mut stuck = Guest::start(&io.socket("d1"), &setup).unwrap();
    let mut well = guest(&io, "d2");
    hanging.hang().unwrap();
    for at in 0..300 {
        stuck.submit(0, &Request::write(at % 256 * 8, &[2; 4096])).unwrap();
    }
    stuck.kick(0).unwrap();
    assert_eq!(stuck.wait(0, Duration::from_millis(200)).unwrap(), WaitEvent::Silent);
    for at in 0..20 {
        let (done, took) = timed(|| well.run(0, &Request::write(at * 8, &[7; 4096])));
        assert_eq!(done.unwrap().status, status::OK);
        assert!(took < SOON, "{took:?}");
        assert_eq!(well.run(0, &Request::flush()).unwrap().status, status::OK);
    }
    hanging.answer().unwrap();
}

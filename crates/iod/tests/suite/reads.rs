//! Reads that hang: they are shown, every verb ends at its deadline, and other disks are not
//! disturbed.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::{Duration, Instant};

use crate::common::*;
use model::report::{DiskState, RequestKind, Stage};
use model::rpc::code;
use serde_json::json;
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::storage::Stalling;

const DEADLINE: Duration = Duration::from_millis(400);
/// Upper bound that tells a call from a hang, even on a busy machine.
const SOON: Duration = Duration::from_secs(20);

fn guest(io: &Io, id: &str) -> Guest {
    Guest::start(&io.socket(id), &Setup::default()).unwrap()
}

/// Starts disk `d1` with reads that hang, and `d2` on the same reactor.
fn hung(stalling: &Stalling, cache: &str) -> (Io, Guest) {
    let io = Io::start_with(&["--reactors", "1"]);
    let mut caller = io.caller();
    let mut spec = io.spec("d1", json!({"file": stalling.device()}));
    spec["cache"] = json!(cache);
    spec["stop_deadline_ms"] = json!(DEADLINE.as_millis() as u64);
    caller.disk("disk.attach", spec);
    caller.disk("disk.attach", io.spec("d2", json!({"memory": 1 << 20})));
    let mut guest = guest(&io, "d1");
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().data, [0xcc; 512]);
    stalling.enclose(io.process.worker_pid().unwrap().unwrap()).unwrap();
    stalling.hang().unwrap();
    // Offsets beyond the kernel's read-ahead.
    guest.submit_all(0, &[1024, 1032].map(|at| Request::read(at, 4096))).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
    (io, guest)
}

/// Checks that a call fails at the deadline and reports two abandoned requests.
fn refused(caller: &mut Caller, stalling: &Stalling, method: &str) {
    let began = Instant::now();
    let error = caller.call(method, json!({"id": "d1"})).unwrap_err();
    assert!(began.elapsed() < SOON, "{method}: {:?}", began.elapsed());
    assert_eq!(error.code, code::FAILED, "{error}");
    for part in ["2 requests", "mend the storage", stalling.device().to_str().unwrap()] {
        assert!(error.message.contains(part), "{method}: {part} is not in {error}");
    }
}

#[test]
fn reads_that_hang_are_shown_and_a_pause_ends_at_its_deadline() {
    for cache in ["none", "writeback"] {
        let Some(stalling) = Stalling::new(1 << 20, 0xcc).unwrap() else { return };
        let (io, guest_) = hung(&stalling, cache);
        let mut caller = io.caller();
        let disk = |caller: &mut Caller| {
            caller.stats().disks.into_iter().find(|disk| disk.id == "d1").unwrap()
        };
        let oldest = disk(&mut caller).oldest.unwrap();
        assert_eq!(
            (oldest.kind, oldest.stage),
            (Some(RequestKind::Read), Stage::Device),
            "{cache}"
        );
        assert_eq!((oldest.offset, oldest.bytes), (1024 * 512, 4096), "{cache}");
        let mut well = guest(&io, "d2");
        assert_eq!(well.run(0, &Request::write(0, &[3; 512])).unwrap().status, status::OK);

        refused(&mut caller, &stalling, "disk.pause");
        let shown = disk(&mut caller);
        assert_eq!((shown.state, shown.stuck.unwrap().requests), (DiskState::Stuck, 2), "{cache}");
        assert_eq!(well.run(0, &Request::read(0, 512)).unwrap().data, [3; 512]);
        stalling.answer().unwrap();
        eventually("the storage is back", || disk(&mut caller).stuck.is_none());
        caller.disk("disk.resume", json!({"id": "d1"}));
        drop(guest_);
        let mut again = guest(&io, "d1");
        assert_eq!(again.run(0, &Request::read(1024, 512)).unwrap().data, [0xcc; 512]);
    }
}

#[test]
fn a_disk_whose_reads_hang_is_detached_and_its_lock_follows() {
    for cache in ["none", "writeback"] {
        let Some(stalling) = Stalling::new(1 << 20, 0xcc).unwrap() else { return };
        let (io, _guest) = hung(&stalling, cache);
        let mut caller = io.caller();
        refused(&mut caller, &stalling, "disk.detach");
        assert_eq!(caller.state("d1"), None);
        let mut twin = io.spec("d3", json!({"file": stalling.device()}));
        twin["activate"] = json!(false);
        caller.disk("disk.attach", twin);
        let error = caller.call("disk.activate", json!({"id": "d3"})).unwrap_err();
        assert!(error.message.contains("in use"), "{cache}: {error}");
        stalling.answer().unwrap();
        eventually("the lock is free", || {
            caller.call("disk.activate", json!({"id": "d3"})).is_ok()
        });
        let mut again = guest(&io, "d3");
        assert_eq!(again.run(0, &Request::read(1024, 512)).unwrap().data, [0xcc; 512]);
    }
}

#[test]
fn one_disk_whose_reads_hang_ends_at_its_deadline() {
    let Some(stalling) = Stalling::new(1 << 20, 0xcc).unwrap() else { return };
    let folder = folder();
    let socket = folder.path().join("s");
    let options = ["--blk-file", stalling.device().to_str().unwrap(), "--stop-deadline", "400ms"];
    let mut blk = blk(&socket, &options);
    let mut guest = Guest::start(&socket, &Setup::default()).unwrap();
    stalling.enclose(blk.id()).unwrap();
    stalling.hang().unwrap();
    guest.submit(0, &Request::read(0, 4096)).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
    // The storage still hangs, but no thread of this process waits for a direct read.
    let status = blk.terminate().unwrap();
    let stderr = blk.stderr();
    assert!(status.code() == Some(1) && stderr.contains("mend the storage"), "{status}: {stderr}");
    assert_eq!(names(&folder), [""; 0]);
}

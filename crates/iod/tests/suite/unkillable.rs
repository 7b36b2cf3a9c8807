//! Killed workers that do not end, because one of their threads sleeps in hung storage.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::AsFd;
use std::time::Duration;

use crate::common::*;
use model::report::DiskState;
use rustix::process::Signal;
use serde_json::json;
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Worker};
use testkit::raw::guest::{WaitEvent, wait_readable};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::storage::Hanging;

const CANNOT_END: &str = "the former worker cannot end: storage hangs";

/// Starts a disk whose storage hangs with a write of its guest, beside another disk without
/// problems.
fn hung(io: &Io, hanging: &Hanging) -> Guest {
    let path = hanging.image("a", 1 << 20).unwrap();
    let mut caller = io.caller();
    let mut spec = io.spec("hangs", json!({"file": path}));
    spec["stop_deadline_ms"] = json!(300);
    caller.disk("disk.attach", spec);
    caller.disk("disk.attach", io.spec("well", json!({"memory": 1 << 20})));
    let mut guest = Guest::start(&io.socket("hangs"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(0, &[1; 4096])).unwrap().status, status::OK);
    hanging.hang().unwrap();
    guest.submit(0, &Request::write(8, &[2; 4096])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
    guest
}

fn has_ended(worker: &Worker, patience: Duration) -> bool {
    wait_readable(&[worker.ended().as_fd()], patience).unwrap().is_some()
}

#[test]
fn one_that_is_killed_is_replaced_all_the_same() {
    let hanging = Hanging::new().unwrap();
    let mut io = Io::start();
    let _lost = hung(&io, &hanging);
    let worker = io.process.worker().unwrap().unwrap();
    worker.signal(Signal::KILL).unwrap();
    // The keeper gets no event, and logs what it finds.
    eventually("it is noticed", || io.process.stderr().contains(CANNOT_END));
    assert!(!has_ended(&worker, Duration::ZERO), "its storage hangs");
    let stderr = io.process.stderr();
    assert!(stderr.contains("ends when the storage answers"), "{stderr}");

    // Callers get replies, and disks on other storage are served at once.
    let mut caller = io.caller();
    let stats = caller.stats();
    assert_ne!(stats.pid, worker.id());
    let keeper = stats.keeper.unwrap();
    let how = keeper.last_exit.unwrap();
    assert!(keeper.restarts == 1 && how.contains("cannot end: storage hangs"), "{how}");
    let mut well = Guest::start(&io.socket("well"), &Setup::default()).unwrap();
    assert_eq!(well.run(0, &Request::write(0, &[3; 512])).unwrap().status, status::OK);
    // The hung disk waits for the lock of the unkillable process, and its guest waits in the
    // backlog.
    assert_ne!(caller.state("hangs"), Some(DiskState::Active));

    hanging.answer().unwrap();
    assert!(has_ended(&worker, PROCESS_DEADLINE));
    let mut guest = Guest::start(&io.socket("hangs"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().data, [1; 512]);
    eventually("that is told too", || io.process.stderr().contains("has ended"));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn one_that_is_to_end_is_left_behind_and_named() {
    let hanging = Hanging::new().unwrap();
    let mut io = Io::start();
    let _lost = hung(&io, &hanging);
    let worker = io.process.worker().unwrap().unwrap();
    io.process.signal(Signal::TERM).unwrap();
    let status = io.process.wait(PROCESS_DEADLINE).unwrap();
    let stderr = io.process.stderr();
    assert_eq!(status.code(), Some(1), "{stderr}");
    let named = format!("process {} is abandoned, it cannot end", worker.id());
    assert!(stderr.contains(&named), "{stderr}");
    assert!(!has_ended(&worker, Duration::ZERO));
    hanging.answer().unwrap();
    assert!(has_ended(&worker, PROCESS_DEADLINE));
}

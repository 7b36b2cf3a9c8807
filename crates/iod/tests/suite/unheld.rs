//! Verbs that succeed but cannot preserve the change.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use crate::common::*;
use model::report::DiskState;
use model::rpc::code;
use rustix::process::Signal;
use serde_json::json;
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

/// Time in which a wrongly served request would show.
const LOOK: Duration = Duration::from_millis(100);

/// Checks that a call fails because no descriptors are left to send to the keeper.
fn not_held(caller: &mut Caller, verb: &str) {
    let error = caller.call(verb, json!({"id": "d"})).unwrap_err();
    assert!(error.code == code::FAILED && error.message.contains("share sockets"), "{error}");
}

fn started() -> (Io, Caller, Guest) {
    let io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    let guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    (io, caller, guest)
}

#[test]
fn a_pause_after_a_resume_that_was_not_held_is_a_pause() {
    let (mut io, mut caller, mut guest) = started();
    let d = json!({"id": "d"});
    caller.disk("disk.pause", d.clone());
    // The keeper does not answer in time.
    io.process.signal(Signal::STOP).unwrap();
    let error = caller.call("disk.resume", d.clone()).unwrap_err();
    assert!(error.code == code::FAILED && error.message.contains("does not answer"), "{error}");
    assert_eq!(guest.run(0, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    io.process.signal(Signal::CONT).unwrap();
    assert_eq!(caller.disk("disk.pause", d.clone()).state, DiskState::Paused);
    let pending = guest.submit(0, &Request::write(1, &[2; 512])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, LOOK).unwrap(), WaitEvent::Silent, "it is paused");
    caller.disk("disk.resume", d);
    assert_eq!(guest.finish(0, &pending).unwrap().status, status::OK);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn what_was_not_held_is_held_when_it_is_asked_for_again() {
    for (verb, state) in
        [("disk.pause", DiskState::Paused), ("disk.deactivate", DiskState::Attached)]
    {
        let (mut io, mut caller, _guest) = started();
        let worker = io.process.worker().unwrap().unwrap();
        let files = limit_open_files(worker.id(), 0);
        for _ in 0..2 {
            not_held(&mut caller, verb);
            assert_eq!(caller.state("d"), Some(state), "it is done all the same");
        }
        limit_open_files(worker.id(), files);
        // The keeper would restore another state to a successor.
        let error = caller.call("upgrade", json!({})).unwrap_err();
        assert!(error.message.contains("repeat the last verb"), "{error}");
        assert_eq!(caller.disk(verb, json!({"id": "d"})).state, state);
        worker.kill().unwrap();
        io.process.next_worker(Some(worker.id())).unwrap();
        let mut caller = io.caller();
        eventually("it is as it was left", || caller.state("d") == Some(state));
        assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    }
}

#[test]
fn a_keeper_that_can_have_no_more_descriptors_says_so_and_the_worker_goes_on() {
    let (mut io, mut caller, mut guest) = started();
    let worker = io.process.worker().unwrap().unwrap();
    let keeper = io.process.id();
    // This limit allows only the keeper's open descriptors. With fewer, it could not even poll
    // them.
    let files = limit_open_files(keeper, 8);
    let error = caller.call("disk.attach", io.spec("e", json!({"memory": 4096}))).unwrap_err();
    assert!(error.message.contains("the keeper refused"), "{error}");
    assert!(error.message.contains("raise its limit of open files"), "{error}");
    limit_open_files(keeper, files);
    assert_eq!(guest.run(0, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    caller.disk("disk.attach", io.spec("e", json!({"memory": 4096})));
    assert_eq!(caller.stats().pid, worker.id());
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}

//! `disk.pause` and `disk.resume`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use crate::common::*;
use model::report::DiskState;
use model::rpc::code;
use serde_json::json;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::wire::protocol;
use testkit::raw::{Guest, Setup};

/// Time in which a wrongly served request would show.
const LOOK: Duration = Duration::from_millis(100);

fn started() -> (Io, Caller, Guest) {
    let io = Io::start();
    let path = image(&io.folder, "a.raw", 1 << 20);
    let mut caller = io.caller();
    let mut spec = io.spec("d1", json!({"file": path}));
    spec["cache"] = json!("writeback");
    caller.disk("disk.attach", spec);
    let guest = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
    (io, caller, guest)
}

#[test]
fn a_paused_disk_keeps_its_lock_and_its_front_end_and_goes_on() {
    let (io, mut caller, mut guest) = started();
    let d1 = json!({"id": "d1"});
    assert_eq!(guest.run(0, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    for _ in 0..2 {
        assert_eq!(caller.disk("disk.pause", d1.clone()).state, DiskState::Paused);
    }
    let pending = guest.submit(0, &Request::write(1, &[2; 512])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, LOOK).unwrap(), WaitEvent::Silent, "nothing is served");
    // The front-end stays connected and gets replies. Its ring stops and starts without being
    // served.
    assert_eq!(guest.config().unwrap().capacity_sectors, 2048);
    assert_eq!(guest.stop_queue(0).unwrap(), 1);
    guest.start_queue(0, 1).unwrap();
    assert_eq!(guest.wait(0, LOOK).unwrap(), WaitEvent::Silent, "nothing is served");
    let disk = &caller.stats().disks[0];
    assert!(disk.connected && disk.state == DiskState::Paused && disk.requests.write == 1);
    // This disk has the lock.
    let mut twin = io.spec("d2", json!({"file": io.socket("a.raw")}));
    twin["cache"] = json!("writeback");
    let error = caller.call("disk.attach", twin).unwrap_err();
    assert!(error.code == code::FAILED && error.message.contains("in use"), "{error}");
    for _ in 0..2 {
        assert_eq!(caller.disk("disk.resume", d1.clone()).state, DiskState::Active);
    }
    assert_eq!(guest.finish(0, &pending).unwrap().status, status::OK);
    assert_eq!(guest.run(0, &Request::read(1, 512)).unwrap().data, [2; 512]);
}

#[test]
fn other_verbs_on_a_paused_disk() {
    let (io, mut caller, mut guest) = started();
    let d1 = json!({"id": "d1"});
    caller.disk("disk.pause", d1.clone());
    let error = caller.call("disk.activate", d1.clone()).unwrap_err();
    assert!(error.code == code::WRONG_STATE && error.message.contains("resume it"), "{error}");
    // A resize needs the lock, which the paused disk has.
    let reply = caller.disk("disk.resize", json!({"id": "d1", "size": 2 << 20}));
    assert_eq!((reply.state, reply.geometry.size_bytes), (DiskState::Paused, 2 << 20));
    // After a deactivate the disk is not paused any more.
    assert_eq!(caller.disk("disk.deactivate", d1.clone()).state, DiskState::Attached);
    for verb in ["disk.pause", "disk.resume"] {
        let error = caller.call(verb, d1.clone()).unwrap_err();
        assert!(error.code == code::WRONG_STATE && error.message.contains("activate"), "{error}");
    }
    assert_eq!(caller.disk("disk.activate", d1.clone()).state, DiskState::Active);
    assert_eq!(guest.run(0, &Request::write(3000, &[1; 512])).unwrap().status, status::OK);
    caller.disk("disk.pause", d1.clone());
    assert_eq!(caller.call("disk.detach", d1).unwrap(), json!({}));
    guest.frontend.connection.wait_closed().unwrap();
    assert_eq!(names(&io.folder), ["a.raw", "control", "control.lock"]);
}

#[test]
fn a_front_end_that_comes_during_the_pause_is_served_after_it() {
    let (io, mut caller, guest) = started();
    let d1 = json!({"id": "d1"});
    caller.disk("disk.pause", d1.clone());
    drop(guest);
    let mut guest = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
    let pending = guest.submit(0, &Request::read(0, 512)).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, LOOK).unwrap(), WaitEvent::Silent, "nothing is served");
    caller.disk("disk.resume", d1);
    assert_eq!(guest.finish(0, &pending).unwrap().status, status::OK);
}

#[test]
fn pausing_again_and_again_under_load_loses_nothing() {
    let (_io, mut caller, mut guest) = started();
    let d1 = json!({"id": "d1"});
    for round in 0u8..20 {
        let writes: Vec<_> =
            (0..8).map(|at| Request::write(at * 8, &[round + at as u8; 4096])).collect();
        let pending = guest.submit_all(0, &writes).unwrap();
        guest.kick(0).unwrap();
        caller.disk("disk.pause", d1.clone());
        caller.disk("disk.resume", d1.clone());
        let done = guest.finish_all(0, &pending).unwrap();
        assert!(done.iter().all(|one| one.status == status::OK), "{done:?}");
    }
    for at in 0..8u8 {
        let read = guest.run(0, &Request::read(u64::from(at) * 8, 4096)).unwrap();
        assert_eq!(read.data, vec![19 + at; 4096]);
    }
}

#[test]
fn a_front_end_that_lets_its_error_signal_wait_keeps_nobody() {
    let io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    let protocol = protocol::ALL_KNOWN | protocol::INFLIGHT_SHMFD;
    let setup = Setup { protocol, ..Setup::default() };
    let mut guest = Guest::start(&io.socket("d"), &setup).unwrap();
    let area = guest.frontend.get_inflight(1, setup.queue_size).unwrap();
    guest.frontend.set_inflight(&area).unwrap();
    assert_eq!(guest.run(0, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    caller.disk("disk.pause", json!({"id": "d"}));
    // An invalid in-flight region, and an error descriptor that is full.
    rustix::io::pwrite(&area.fd, &[9], 128 + 8).unwrap();
    let err = &guest.queues[0].err;
    rustix::io::write(err, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::io::ioctl_fionbio(err, false).unwrap();
    caller.disk("disk.resume", json!({"id": "d"}));
    caller.disk("disk.pause", json!({"id": "d"}));
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
}

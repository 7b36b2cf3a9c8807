//! VMs that are stopped or reset while their storage hangs, and continued.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::*;
use model::report::{DiskState, DiskStats};
use serde_json::json;
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::wire::{self, Message};
use testkit::raw::{Guest, Setup};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};
use testkit::storage::Hanging;

const DEADLINE: Duration = Duration::from_millis(400);
/// Upper bound that tells a stop from a hang, even on a busy machine.
const SOON: Duration = Duration::from_secs(20);
const A_WHILE: Duration = Duration::from_millis(100);
const BYTES: usize = 4 << 20;

/// Disk on hung storage, with a guest that has requests in flight on its rings.
struct Hung {
    guest: ReconnectingGuest,
    caller: Caller,
    _io: Io,
    hanging: Hanging,
}

impl Hung {
    fn new(cache: &str) -> Self {
        let hanging = Hanging::new().unwrap();
        let path = hanging.image("a", BYTES).unwrap();
        let io = Io::start();
        let mut caller = io.caller();
        attach(&io, &mut caller, &path, cache);
        let shape = Shape { queues: 2, depth: 16, ..Shape::default() };
        let mut guest = ReconnectingGuest::connect(&io.socket("d1"), shape).unwrap();
        assert_eq!(guest.run(Instant::now() + A_WHILE).unwrap(), End::Time);
        hanging.hang().unwrap();
        assert_eq!(guest.run(Instant::now() + A_WHILE).unwrap(), End::Time);
        assert!(guest.outstanding() > 0);
        Self { guest, caller, _io: io, hanging }
    }

    fn disk(&mut self) -> DiskStats {
        self.caller.stats().disks.swap_remove(0)
    }

    fn work(&mut self) {
        assert_eq!(self.guest.run(Instant::now() + A_WHILE).unwrap(), End::Time);
    }

    /// Checks that everything completes once with the right contents after the storage is back.
    fn finishes(mut self) {
        self.hanging.answer().unwrap();
        let before = self.guest.tally().completed;
        eventually("the disk is back", || self.caller.state("d1") == Some(DiskState::Active));
        self.work();
        assert!(self.guest.tally().completed > before);
        assert!(self.disk().resubmitted > 0, "what was left went on from the records");
        self.guest.finish().unwrap();
    }
}

fn attach(io: &Io, caller: &mut Caller, path: &Path, cache: &str) {
    let mut spec = io.spec("d1", json!({"file": path}));
    spec["cache"] = json!(cache);
    spec["queues"] = json!(2);
    spec["stop_deadline_ms"] = json!(DEADLINE.as_millis() as u64);
    caller.disk("disk.attach", spec);
}

#[test]
fn it_is_stopped_at_the_deadline_and_goes_on_when_the_storage_does() {
    let mut hung = Hung::new("none");
    let (stopped, took) = timed(|| hung.guest.stop());
    // One deadline applies to all rings.
    assert!(took >= DEADLINE && took < SOON, "{took:?}");
    let shown = hung.disk();
    assert_eq!((shown.state, shown.connected), (DiskState::Stuck, true));
    // A guest that continues on hung storage waits, and is stopped again at once.
    hung.guest.cont(stopped.unwrap()).unwrap();
    hung.work();
    let (stopped, took) = timed(|| hung.guest.stop());
    assert!(took < DEADLINE, "{took:?}");
    hung.guest.cont(stopped.unwrap()).unwrap();
    assert_eq!(hung.disk().state, DiskState::Stuck);
    hung.finishes();
}

#[test]
fn it_goes_on_when_the_storage_came_back_while_it_was_stopped() {
    let mut hung = Hung::new("writeback");
    let stopped = hung.guest.stop().unwrap();
    hung.hanging.answer().unwrap();
    eventually("the storage is back", || hung.disk().stuck.is_none());
    hung.hanging.hang().unwrap();
    hung.guest.cont(stopped).unwrap();
    hung.work();
    hung.finishes();
}

#[test]
fn a_verb_that_gives_its_queues_up_leaves_a_front_end_with_a_record_alone() {
    let mut hung = Hung::new("none");
    let error = hung.caller.call("disk.pause", json!({"id": "d1"})).unwrap_err();
    assert!(error.message.contains("mend the storage"), "{error}");
    hung.work();
    assert!(hung.disk().connected);
    hung.hanging.answer().unwrap();
    eventually("the storage is back", || hung.disk().stuck.is_none());
    assert_eq!(hung.disk().state, DiskState::Paused);
    hung.hanging.hang().unwrap();
    hung.caller.disk("disk.resume", json!({"id": "d1"}));
    hung.finishes();
}

#[test]
fn whoever_changes_what_its_records_are_about_is_sent_away() {
    let mut hung = Hung::new("none");
    hung.caller.call("disk.pause", json!({"id": "d1"})).unwrap_err();
    // A new region of the front-end in this state would lose the requests.
    let fresh = hung.guest.frontend().unwrap().get_inflight(2, 128).unwrap();
    assert!(hung.guest.frontend().unwrap().set_inflight(&fresh).is_err());
    assert_eq!(hung.guest.run(Instant::now() + SOON).unwrap(), End::Closed);
    hung.hanging.answer().unwrap();
    eventually("the storage is back", || hung.disk().stuck.is_none());
    hung.caller.disk("disk.resume", json!({"id": "d1"}));
    hung.guest.reconnect().unwrap();
    hung.guest.finish().unwrap();
}

/// Resets the device of a guest with any requests in flight.
fn reset(guest: &mut Guest) -> testkit::Result<()> {
    guest.frontend.send(Message::new(wire::Request::RESET_DEVICE))
}

#[test]
fn a_reset_while_the_storage_hangs_ends_in_time_and_the_next_front_end_waits() {
    for poll in ["off", "always"] {
        let hanging = Hanging::new().unwrap();
        let path = hanging.image("a", BYTES).unwrap();
        let io = Io::start();
        let mut caller = io.caller();
        let mut spec = io.spec("d1", json!({"file": path}));
        (spec["poll"], spec["stop_deadline_ms"]) =
            (json!(poll), json!(DEADLINE.as_millis() as u64));
        caller.disk("disk.attach", spec);
        let mut guest = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
        assert_eq!(guest.run(0, &Request::write(0, &[1; 4096])).unwrap().status, status::OK);
        hanging.hang().unwrap();
        guest.submit(0, &Request::write(8, &[2; 4096])).unwrap();
        guest.kick(0).unwrap();
        assert_eq!(guest.wait(0, A_WHILE).unwrap(), WaitEvent::Silent);
        let (result, took) = timed(|| reset(&mut guest));
        assert!(result.is_err(), "a reset that was done would say that nothing is in flight");
        assert!(took >= DEADLINE && took < SOON, "{took:?}");
        assert_eq!(caller.state("d1"), Some(DiskState::Stuck));
        let mut next = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
        let pending = next.submit(0, &Request::read(0, 4096)).unwrap();
        next.kick(0).unwrap();
        assert_eq!(next.wait(0, A_WHILE).unwrap(), WaitEvent::Silent);
        hanging.answer().unwrap();
        assert_eq!(next.finish(0, &pending).unwrap().data, [1; 4096]);
        eventually("the disk is back", || caller.state("d1") == Some(DiskState::Active));
    }
}

#[test]
fn a_device_is_reset_in_the_middle_of_a_spin() {
    let io = Io::start();
    let mut caller = io.caller();
    let mut spec = io.spec("d1", json!({"memory": BYTES}));
    spec["poll"] = json!("always");
    caller.disk("disk.attach", spec);
    for turn in 0..testkit::rounds(50, 1000) as u64 {
        let mut guest = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
        let block = turn % 32;
        let data = [turn as u8; 4096];
        assert_eq!(guest.run(0, &Request::write(block * 8, &data)).unwrap().status, status::OK);
        guest.submit_all(0, &[0; 16].map(|_| Request::read(block * 8, 4096))).unwrap();
        guest.kick(0).unwrap();
        reset(&mut guest).unwrap();
        // No thread writes to a ring after its reset: every used entry is written before the reply.
        let used = |guest: &Guest| guest.queues[0].ring.used_idx(&guest.memory).unwrap();
        let before = used(&guest);
        assert!(before >= 1);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(used(&guest), before);
    }
}

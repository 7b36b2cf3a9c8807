//! Disks on full storage.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::*;
use image::qcow2::{CreateOptions, create_file};
use model::report::DiskState;
use serde_json::{Value, json};
use testkit::in_namespace::in_little_room;
use testkit::process::eventually;
use testkit::raw::guest::{Pending, WaitEvent};
use testkit::raw::request::{Request, kind, status};
use testkit::raw::{Guest, Setup};

const NAME: &str =
    concat!(module_path!(), "::who_waits_for_room_is_told_once_and_when_there_is_room_again");

#[test]
fn who_waits_for_room_is_told_once_and_when_there_is_room_again() {
    in_little_room(NAME, 8, inside).unwrap();
}

/// Call that is answered at once.
const STATS: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}\n";

/// Sends a call that waits for a change of the disks on full storage.
fn ask(caller: &mut Caller, known: &[&str]) {
    let params = json!({"known": known});
    let call = json!({"jsonrpc": "2.0", "id": 9, "method": "disk.wait_full", "params": params});
    caller.send_line(format!("{call}\n").as_bytes());
}

fn result(caller: &mut Caller) -> Value {
    caller.receive().unwrap().outcome().unwrap()
}

fn inside(dir: &Path) {
    waits_for_room(dir, false, |path| json!({"file": path}));
    let part = |path: &Path| json!({"child": {"file": path}, "offset": 1 << 20, "size": 1 << 20});
    waits_for_room(dir, false, |path| json!({"raw": part(path)}));
    waits_for_room(dir, true, |path| json!({"qcow2": {"file": path}}));
}

fn waits_for_room(dir: &Path, create_qcow2: bool, backend: impl Fn(&Path) -> Value) {
    let (image, filler) = (dir.join("image"), dir.join("filler"));
    if create_qcow2 {
        create_file(&image, &CreateOptions::new(64 << 20)).unwrap();
    } else {
        std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    }
    std::fs::write(&filler, vec![1; 16 << 20]).unwrap_err();
    let mut io = Io::start();
    let mut caller = io.caller();
    let spec = |id: &str| {
        let mut spec = io.spec(id, backend(&image));
        spec["cache"] = json!("writeback");
        spec
    };
    caller.disk("disk.attach", spec("full"));
    caller.disk("disk.attach", io.spec("other", json!({"null": 1 << 20})));
    // Without what it knows, a caller does not wait.
    assert_eq!(caller.call("disk.wait_full", json!({})).unwrap(), json!({"disks": []}));

    let mut waiter = io.caller();
    ask(&mut waiter, &[]);
    let mut guest = Guest::start(&io.socket("full"), &Setup::default()).unwrap();
    let pending = guest.submit(0, &Request::write(0, &[7; 4096])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(result(&mut waiter), json!({"disks": ["full"]}));
    assert_eq!(caller.stats().disks[0].state, DiskState::Waiting);
    ask(&mut waiter, &["full"]);
    // A caller that has gone does not occupy one of the few connections.
    let mut gone: Vec<_> = (0..40).map(|_| io.caller()).collect();
    gone.iter_mut().for_each(|gone| ask(gone, &["full"]));
    drop(gone);
    eventually("those who have gone are forgotten", || {
        let mut others: Vec<_> = (0..40).map(|_| io.caller()).collect();
        others.iter_mut().all(|other| {
            // A rejected caller gets an error without an id.
            let _ = other.stream().write_all(STATS);
            let mut line = String::new();
            other.read_line(&mut line);
            line.contains("\"id\":1")
        })
    });

    std::fs::remove_file(&filler).unwrap();
    assert_eq!(guest.finish(0, &pending).unwrap().status, status::OK);
    assert_eq!(result(&mut waiter), json!({"disks": []}));
    assert_eq!(caller.stats().disks[0].state, DiskState::Active);

    // A worker that ends or hands over lets its callers go.
    ask(&mut waiter, &[]);
    caller.call("upgrade", json!({})).unwrap();
    assert!(waiter.receive().is_none_or(|reply| reply.error.is_some()));
    drop(guest);
    let text = io.process.stderr();
    let lines = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!((lines("is full: writes wait"), lines("no write waits")), (1, 1), "{text}");
    let line = text.lines().find(|line| line.contains("is full: writes wait")).unwrap();
    assert!(line.contains("full") && line.contains(image.to_str().unwrap()), "{line}");
    std::fs::remove_file(&image).unwrap();
}

/// A qcow2 image on storage that a filler has made full, and a `ringway-io` that serves it.
struct FullImage {
    io: Io,
    image: PathBuf,
    filler: PathBuf,
}

impl FullImage {
    /// Creates the image and attaches it. The guest has written 2 MiB before the storage is full.
    fn start(dir: &Path, on_full: &str) -> (Self, Guest) {
        let (image, filler) = (dir.join("image"), dir.join("filler"));
        create_file(&image, &CreateOptions::new(256 << 20)).unwrap();
        let mut io = Io::start();
        let mut spec = io.spec("full", json!({"qcow2": {"file": image}}));
        (spec["cache"], spec["on_full"]) = (json!("writeback"), json!(on_full));
        spec["stop_deadline_ms"] = json!(2000);
        io.caller().disk("disk.attach", spec);
        let mut guest = Guest::start(&io.socket("full"), &Setup::default()).unwrap();
        for at in 0..32 {
            let write = Request::write(at * CLUSTER_SECTORS, &[1; 64 << 10]);
            assert_eq!(guest.run(0, &write).unwrap().status, status::OK);
        }
        assert_eq!(guest.run(0, &Request::flush()).unwrap().status, status::OK);
        let error = std::fs::write(&filler, vec![1; 64 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{}", io.process.stderr());
        (Self { io, image, filler }, guest)
    }

    fn waiting(&self) -> u64 {
        self.io.caller().stats().disks[0].waiting
    }

    /// Writes to new clusters until a write waits: the file has grown ahead. Returns that write.
    fn use_up(&self, guest: &mut Guest) -> Pending {
        for at in 2000.. {
            let write = Request::write(at * CLUSTER_SECTORS, &[3; 512]);
            let pending = guest.submit(0, &write).unwrap();
            guest.kick(0).unwrap();
            let mut event = WaitEvent::Silent;
            while event == WaitEvent::Silent {
                if self.waiting() > 0 {
                    return pending;
                }
                event = guest.wait(0, Duration::from_millis(20)).unwrap();
            }
        }
        unreachable!("numbers do not end")
    }

    /// Ends the server, and checks the image with QEMU's tool.
    fn end(mut self) {
        assert!(self.io.process.terminate().unwrap().success(), "{}", self.io.process.stderr());
        let output = Command::new("qemu-img").arg("check").arg(&self.image).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        std::fs::remove_file(&self.image).unwrap();
        let _ = std::fs::remove_file(&self.filler);
    }
}

/// Sectors of a cluster of 64 KiB.
const CLUSTER_SECTORS: u64 = 128;

/// Returns writes to clusters that the image does not have.
fn new_writes() -> Vec<Request> {
    (0..8).map(|at| Request::write((1000 + at * 3) * CLUSTER_SECTORS, &[2; 4096])).collect()
}

const MAPPED: &str =
    concat!(module_path!(), "::writes_to_a_qcow2_image_wait_for_room_and_a_discard_gives_some");

#[test]
fn writes_to_a_qcow2_image_wait_for_room_and_a_discard_gives_some() {
    in_little_room(MAPPED, 24, |dir| {
        let (full, mut guest) = FullImage::start(dir, "wait");
        let mut pending = vec![full.use_up(&mut guest)];
        pending.extend(guest.submit_all(0, &new_writes()).unwrap());
        guest.kick(0).unwrap();
        eventually("all of them wait", || full.waiting() == 9);
        // Known places need no room, and what is discarded is room.
        let write = Request::write(0, &[4; 4096]);
        assert_eq!(guest.run(0, &write).unwrap().status, status::OK);
        let discard = Request::range(kind::DISCARD, 0, 64 << 11, 0);
        pending.push(guest.submit(0, &discard).unwrap());
        guest.kick(0).unwrap();
        for done in guest.finish_all(0, &pending).unwrap() {
            assert_eq!(done.status, status::OK);
        }
        eventually("none waits", || full.waiting() == 0);
        drop(guest);
        full.end();
    })
    .unwrap();
}

const FAILS: &str =
    concat!(module_path!(), "::writes_to_a_full_qcow2_image_fail_at_once_if_they_must_not_wait");

#[test]
fn writes_to_a_full_qcow2_image_fail_at_once_if_they_must_not_wait() {
    in_little_room(FAILS, 24, |dir| {
        let (full, mut guest) = FullImage::start(dir, "error");
        let write = |at| Request::write(at * CLUSTER_SECTORS, &[3; 512]);
        let mut next = 2000..;
        while guest.run(0, &write(next.next().unwrap())).unwrap().status == status::OK {}
        assert_eq!(guest.run(0, &write(3000)).unwrap().status, status::IOERR);
        assert_eq!(full.waiting(), 0);
        // It is not lost: flushes and writes to known places go on.
        assert_eq!(guest.run(0, &Request::flush()).unwrap().status, status::OK);
        assert_eq!(guest.run(0, &write(0)).unwrap().status, status::OK);
        std::fs::remove_file(&full.filler).unwrap();
        assert_eq!(guest.run(0, &write(3000)).unwrap().status, status::OK);
        drop(guest);
        full.end();
    })
    .unwrap();
}

const VERBS: &str =
    concat!(module_path!(), "::an_upgrade_takes_writes_along_that_wait_and_a_detach_fails_them");

#[test]
fn an_upgrade_takes_writes_along_that_wait_and_a_detach_fails_them() {
    in_little_room(VERBS, 24, |dir| {
        let (full, mut guest) = FullImage::start(dir, "wait");
        let mut pending = vec![full.use_up(&mut guest)];
        pending.extend(guest.submit_all(0, &new_writes()).unwrap());
        guest.kick(0).unwrap();
        eventually("all of them wait", || full.waiting() == 9);
        full.io.caller().call("upgrade", Value::Null).unwrap();
        eventually("they wait again", || full.waiting() == 9);
        // A ring that stops leaves them on record, and they are submitted again.
        let base = guest.stop_queue(0).unwrap();
        guest.start_queue(0, base).unwrap();
        eventually("they wait again", || full.waiting() == 9);
        full.io.caller().call("disk.detach", json!({"id": "full"})).unwrap();
        drop(guest);
        full.end();
    })
    .unwrap();
}

//! Upgrades beside front-ends whose sessions no worker can take over, and beside full storage.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::actor::play;
use crate::common::frames::*;
use crate::common::*;
use crate::upgrade::{Loaded, shape, upgrade, upgrade_loaded};
use model::report::DiskState;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde_json::json;
use testkit::in_namespace::in_little_room;
use testkit::process::eventually;
use testkit::raw::frontend::InflightArea;
use testkit::raw::guest::Pending;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup, WaitEvent};
use testkit::reconnecting::ReconnectingGuest;

/// Restarts the ring of a guest with this in-flight region.
fn record_in(guest: &mut Guest, area: &InflightArea) {
    let base = guest.stop_queue(0).unwrap();
    guest.frontend.set_inflight(area).unwrap();
    guest.start_queue(0, base).unwrap();
}

fn recorded(socket: &Path) -> (Guest, InflightArea) {
    let mut guest = Guest::start(socket, &Setup::default()).unwrap();
    let area = guest.frontend.get_inflight(1, Setup::default().queue_size).unwrap();
    record_in(&mut guest, &area);
    (guest, area)
}

/// A front-end's own file in place of the region that was made for it.
fn own_file(area: &InflightArea) -> InflightArea {
    let fd = memfd_create("own", MemfdFlags::CLOEXEC).unwrap();
    let &InflightArea { mmap_size, queues, queue_size, .. } = area;
    ftruncate(&fd, mmap_size).unwrap();
    InflightArea { fd, mmap_size, mmap_offset: 0, queues, queue_size }
}

fn cut(guest: &Guest, kept: u64) {
    guest.memory.truncate(guest.memory.regions()[0].mmap_offset + kept).unwrap();
}

fn seal(guest: &Guest) {
    // Present mappings stay writable, and no other process can map the memory like that.
    fcntl_add_seals(guest.memory.file(), SealFlags::FUTURE_WRITE).unwrap();
}

fn overwrite(fd: &OwnedFd, at: u64) {
    std::fs::File::from(fd.try_clone().unwrap()).write_all_at(b"no region", at).unwrap();
}

type Change = fn(&Guest, &InflightArea);

/// Ways in which a front-end makes its session impossible to continue in another process, and the
/// reason in the log. The ring and its last requests are not touched.
const CHANGES: [(&str, Change, &str); 5] = [
    ("empty", |guest, _| guest.memory.truncate(0).unwrap(), "truncated"),
    ("half", |guest, _| cut(guest, 4 << 20), "file behind the memory region has"),
    ("sealed", |guest, _| seal(guest), "Operation not permitted"),
    ("foreign", |_, area| overwrite(&area.fd, area.mmap_offset), "not made by this program"),
    ("short", |_, area| ftruncate(&area.fd, 64).unwrap(), "in-flight region cannot be mapped"),
];

#[test]
fn a_session_that_no_other_worker_can_continue_ends_alone() {
    let mut io = Io::start();
    let mut caller = io.caller();
    for id in CHANGES.iter().map(|(id, ..)| *id).chain(["well"]) {
        caller.disk("disk.attach", io.spec(id, json!({"memory": 4 << 20})));
    }
    let well = ReconnectingGuest::connect(&io.socket("well"), shape(1, 16, 5)).unwrap();
    let well = Loaded::start(well);
    let mut bad = Vec::new();
    for (id, change, _) in CHANGES {
        let (mut guest, mut area) = recorded(&io.socket(id));
        if id == "short" {
            area = own_file(&area);
            record_in(&mut guest, &area);
        }
        assert_eq!(guest.run(0, &Request::write(8, &[9; 512])).unwrap().status, status::OK);
        change(&guest, &area);
        bad.push(guest);
    }
    let reply = upgrade_loaded(&mut caller, None).unwrap();
    assert_eq!(reply.disks, 1 + CHANGES.len() as u64);
    bad.iter_mut().for_each(|guest| guest.frontend.connection.wait_closed().unwrap());
    // Each disk listens for the next front-end.
    for (id, ..) in CHANGES {
        let mut next = Guest::start(&io.socket(id), &Setup::default()).unwrap();
        assert_eq!(next.run(0, &Request::read(8, 512)).unwrap().data, [9; 512], "{id}");
    }
    upgrade_loaded(&mut io.caller(), None).unwrap();
    assert!(well.finish() > 0);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    let text = io.process.stderr();
    for (id, _, why) in CHANGES {
        let told = |line: &&str| line.contains(&format!("disk={id:?}")) && line.contains(why);
        let ended = |line: &&str| line.contains("front-end disconnected");
        // A ring that is polled finds some of the changes by itself, before the upgrade.
        let found = text.lines().filter(ended).any(|line| told(&line) || why == "truncated");
        assert!(found, "{id}: {text}");
    }
}

#[test]
fn a_cancelled_upgrade_has_ended_the_session_too() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("half", json!({"memory": 4 << 20})));
    caller.disk("disk.attach", io.spec("well", json!({"memory": 4 << 20})));
    let well = ReconnectingGuest::connect(&io.socket("well"), shape(1, 16, 6)).unwrap();
    let well = Loaded::start(well);
    let (mut bad, _) = recorded(&io.socket("half"));
    cut(&bad, 4 << 20);
    let refuses = play(&io, "refuses");
    let error = upgrade_loaded(&mut caller, Some(&refuses)).unwrap_err();
    assert!(error.message.contains("not today"), "{error}");
    bad.frontend.connection.wait_closed().unwrap();
    let disk = caller.stats().disks.into_iter().find(|disk| disk.id == "half").unwrap();
    assert_eq!((disk.state, disk.connected, disk.queues_started), (DiskState::Active, false, 0));
    let mut next = Guest::start(&io.socket("half"), &Setup::default()).unwrap();
    assert_eq!(next.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    assert!(well.finish() > 0);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_nic_whose_front_end_truncated_its_memory_ends_alone() {
    let mut io = Io::start_with(&["--reactors", "2"]);
    (1..).zip(["a", "b", "bad"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    let [mut a, mut b, mut bad] = ["a", "b", "bad"].map(|id| guest(&io.socket(id), 1));
    cut(&bad, 4 << 20);
    upgrade(&mut io.caller(), None).unwrap();
    bad.frontend.connection.wait_closed().unwrap();
    let mut next = guest(&io.socket("bad"), 1);
    send(&mut a, &frame(2, 1, "after"));
    // The frame is flooded, because no station has been learnt.
    assert_eq!(received(&mut b), frame(2, 1, "after"));
    assert_eq!(received(&mut next), frame(2, 1, "after"));
    send(&mut next, &frame(1, 3, "as well"));
    assert_eq!(received(&mut a), frame(1, 3, "as well"));
    upgrade(&mut io.caller(), None).unwrap();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    let text = io.process.stderr();
    let told = |line: &str| line.contains("bad") && line.contains("file behind the memory region");
    assert!(text.lines().any(told), "{text}");
}

const FULL: &str = concat!(module_path!(), "::requests_that_wait_for_room_wait_in_the_next_worker");

#[test]
fn requests_that_wait_for_room_wait_in_the_next_worker() {
    in_little_room(FULL, 8, in_full_storage).unwrap();
}

/// Submits writes of 4 KiB, each with its own content.
fn write(guest: &mut Guest, slots: std::ops::Range<u8>) -> Vec<Pending> {
    let writes = slots.map(|slot| Request::write(u64::from(slot) * 8, &[slot + 1; 4096]));
    let pending = guest.submit_all(0, &writes.collect::<Vec<_>>()).unwrap();
    guest.kick(0).unwrap();
    pending
}

fn in_full_storage(dir: &Path) {
    let filler = dir.join("filler");
    let mut io = Io::start();
    let mut caller = io.caller();
    for id in ["recorded", "bare"] {
        let path = dir.join(id);
        std::fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let mut spec = io.spec(id, json!({"file": path}));
        spec["cache"] = json!("writeback");
        caller.disk("disk.attach", spec);
    }
    caller.disk("disk.attach", io.spec("well", json!({"memory": 4 << 20})));
    let well = ReconnectingGuest::connect(&io.socket("well"), shape(1, 16, 7)).unwrap();
    let well = Loaded::start(well);
    let (with_region, _area) = recorded(&io.socket("recorded"));
    let without = Guest::start(&io.socket("bare"), &Setup::default()).unwrap();
    let mut guests = [with_region, without];
    for guest in &mut guests {
        assert_eq!(guest.run(0, &Request::write(0, &[1; 4096])).unwrap().status, status::OK);
    }
    std::fs::write(&filler, vec![1; 16 << 20]).unwrap_err();
    let mut pending: Vec<_> = guests.iter_mut().map(|guest| write(guest, 1..4)).collect();
    let waits = |io: &Io| {
        eventually("both disks wait", || {
            let disks = io.caller().stats().disks;
            disks.iter().filter(|disk| disk.state == DiskState::Waiting).count() == 2
        });
    };
    waits(&io);
    // They have waited for longer than a request may that is with healthy storage.
    for guest in &mut guests {
        let silence = std::time::Duration::from_millis(1100);
        assert_eq!(guest.wait(0, silence).unwrap(), WaitEvent::Silent);
    }
    // A cancelled upgrade and those that succeed lose none of them.
    let refuses = play(&io, "refuses");
    let error = upgrade_loaded(&mut caller, Some(&refuses)).unwrap_err();
    assert!(error.message.contains("not today"), "{error}");
    for round in 0..2u8 {
        waits(&io);
        assert_eq!(upgrade_loaded(&mut io.caller(), None).unwrap().disks, 3);
        for (guest, pending) in guests.iter_mut().zip(&mut pending) {
            pending.extend(write(guest, 4 + round..5 + round));
            assert!(guest.frontend.get_config(8).is_ok(), "its front-end is connected");
        }
    }
    waits(&io);
    std::fs::remove_file(&filler).unwrap();
    for (guest, pending) in guests.iter_mut().zip(&pending) {
        let done = guest.finish_all(0, pending).unwrap();
        assert!(done.iter().all(|done| done.status == status::OK), "{done:?}");
        for slot in 0..6u8 {
            let read = guest.run(0, &Request::read(u64::from(slot) * 8, 4096)).unwrap();
            assert_eq!(read.data, [slot + 1; 4096]);
        }
    }
    assert_eq!(io.caller().stats().keeper.unwrap().restarts, 0);
    assert!(well.finish() > 0);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

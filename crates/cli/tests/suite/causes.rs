//! `ringway why` for staged causes: the sentence names the right one.
//!
//! Ten of the causes in `docs/why-is-my-vm-slow.md` are staged here with a real `ringway-io`.
//! A slow device and a host without free CPUs depend on time, so tests of `model::diagnosis` have
//! recorded values instead.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::served::Served;
use serde_json::{Value, json};
use testkit::driver::{Driver, Options};
use testkit::process::{PROCESS_DEADLINE, eventually};
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::storage::Hanging;

/// A document with the sentence of each cause.
const DOCUMENT: &str = include_str!("../../../../docs/why-is-my-vm-slow.md");

/// Requests that a load keeps in flight.
const DEPTH: u16 = 32;

/// Returns the verdict on a disk after watching it for `seconds`.
fn verdict(io: &Served, id: &str, seconds: &str) -> Value {
    let text = io.stdout(&["why", id, "--seconds", seconds, "--format", "json"]);
    serde_json::from_str::<Value>(&text).unwrap()["verdict"].take()
}

/// Checks that the verdict has this cause, and that its sentence is as in the document: `part` is
/// the beginning of the sentence after the id.
fn assert_cause(io: &Served, id: &str, cause: &str, part: &str) {
    let verdict = verdict(io, id, "0.5");
    assert_eq!(verdict["cause"], cause, "{verdict}");
    let sentence = verdict["sentence"].as_str().unwrap();
    assert!(sentence.starts_with(&format!("{id} {part}")), "{sentence}");
    assert!(DOCUMENT.contains(part), "the document does not have {part:?}");
}

/// Submits reads that a cap of few requests a second holds back for long.
fn submit_many(guest: &mut Guest) {
    guest.submit_all(0, &vec![Request::read(0, 512); 100]).unwrap();
    guest.kick(0).unwrap();
}

/// Kills the worker, and waits until the next one has the disk again.
fn kill_worker(io: &mut Served, id: &str) {
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    eventually("the disk is back", || {
        let text = io.stdout(&["io", "stats"]);
        let stats: Value = serde_json::from_str(&text).unwrap();
        stats["disks"].as_array().unwrap().iter().any(|disk| disk["id"] == id)
    });
}

#[test]
fn quiet_and_without_a_front_end() {
    let io = Served::start(&[]);
    io.attach("d1", json!({"null": 1 << 20}), json!({}));
    assert_cause(&io, "d1", "no_front_end", "has no front-end");
    let mut guest = io.guest("d1");
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    assert_cause(&io, "d1", "idle", "is idle");
}

#[test]
fn a_cap_also_after_a_restart() {
    let mut io = Served::start(&[]);
    io.attach("d1", json!({"null": 1 << 20}), json!({"caps": {"iops": 5}}));
    let mut guest = io.guest("d1");
    submit_many(&mut guest);
    assert_cause(&io, "d1", "cap", "waits for its cap of 5 requests a second");
    kill_worker(&mut io, "d1");
    guest.frontend.connection.wait_closed().unwrap();
    let mut guest = io.guest("d1");
    submit_many(&mut guest);
    assert_cause(&io, "d1", "cap", "waits for its cap of 5 requests a second");
    let past = verdict(&io, "d1", "0.1")["past"].take();
    assert!(past.as_str().unwrap().contains("taken over"), "{past}");
}

#[test]
fn a_restart() {
    let mut io = Served::start(&[]);
    io.attach("d1", json!({"null": 1 << 20}), json!({}));
    drop(io.guest("d1"));
    kill_worker(&mut io, "d1");
    let _guest = io.guest("d1");
    assert_cause(&io, "d1", "restarted", "was taken over");
}

#[test]
fn full_storage() {
    let storage = Hanging::new().unwrap();
    let path = storage.place().join("sparse");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let mut filler = File::create(storage.place().join("filler")).unwrap();
    let error = loop {
        match filler.write_all(&[1; 4096]) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    let io = Served::start(&[]);
    io.attach("d1", json!({"file": path}), json!({"stop_deadline_ms": 300}));
    let mut guest = io.guest("d1");
    let pending = guest.submit_all(0, &[Request::write(0, &[1; 4096])]).unwrap();
    guest.kick(0).unwrap();
    eventually("the write waits", || verdict(&io, "d1", "0.1")["cause"] == "full");
    assert_cause(&io, "d1", "full", "waits for room on its storage");
    drop(filler);
    std::fs::remove_file(storage.place().join("filler")).unwrap();
    assert_eq!(guest.finish(0, &pending[0]).unwrap().status, status::OK);
}

#[test]
fn storage_that_hangs() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", 1 << 20).unwrap();
    let io = Served::start(&[]);
    io.attach("d1", json!({"file": path}), json!({"stop_deadline_ms": 300}));
    let mut guest = io.guest("d1");
    guest.run(0, &Request::write(0, &[1; 4096])).unwrap();
    hanging.hang().unwrap();
    let pending = guest.submit_all(0, &[Request::write(8, &[2; 4096])]).unwrap();
    guest.kick(0).unwrap();
    // Longer than the limit of a hang.
    assert_eq!(guest.wait(0, Duration::from_millis(700)).unwrap(), WaitEvent::Silent);
    assert_cause(&io, "d1", "storage_hangs", "waits for its storage: a write of 4 KiB at byte");
    hanging.answer().unwrap();
    guest.finish(0, &pending[0]).unwrap();
}

/// Another process shrinks the image.
#[test]
fn storage_that_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let mut io = Served::start(&[]);
    io.attach("d1", json!({"file": path}), json!({}));
    let mut guest = io.guest("d1");
    assert_eq!(guest.run(0, &Request::read(8, 4096)).unwrap().status, status::OK);
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert_eq!(guest.run(0, &Request::read(8, 4096)).unwrap().status, status::IOERR);
    assert_cause(&io, "d1", "storage_fails", "has storage that fails requests: 1 so far");
    let text = io.stdout(&["why", "d1", "--seconds", "0.1"]);
    assert!(text.contains("(storage is shorter than the disk)"), "{text}");
    eventually("the log has it", || io.process.stderr().contains("a request fails"));
}

#[test]
fn a_ring_that_its_driver_broke() {
    let io = Served::start(&[]);
    io.attach("d1", json!({"null": 1 << 20}), json!({}));
    let mut guest = io.guest("d1");
    guest.run(0, &Request::read(0, 512)).unwrap();
    let offered = guest.queues[0].ring.avail_idx;
    guest.queues[0].ring.set_avail_idx(&guest.memory, offered.wrapping_add(1000)).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, PROCESS_DEADLINE).unwrap(), WaitEvent::QueueError);
    assert_cause(&io, "d1", "broken_ring", "has a broken ring");
    let text = io.stdout(&["why", "d1", "--seconds", "0.1"]);
    assert!(text.contains("(available index jumped from 1 to 1001 in a ring of 128)"), "{text}");
    assert!(text.contains("reboot the guest"), "{text}");
    let text = io.stdout(&["top", "--once", "--seconds", "0.1"]);
    assert!(text.lines().any(|line| line.contains("d1") && line.contains("ring broken")), "{text}");
    guest.queues[0].ring.set_avail_idx(&guest.memory, offered).unwrap();
    guest.stop_queue(0).unwrap();
    guest.start_queue(0, offered).unwrap();
    assert_cause(&io, "d1", "idle", "is idle");
}

/// Reads as deep as a queue allows, in requests of `bytes`, until it is over.
fn read_until(io: &Served, id: &str, bytes: usize, over: &Arc<AtomicBool>) -> JoinHandle<()> {
    let options = Options { slots: DEPTH, slot_bytes: bytes, ..Options::default() };
    let mut queue = Driver::connect(&io.socket(id), &options).unwrap().into_queue().unwrap();
    let over = Arc::clone(over);
    std::thread::spawn(move || {
        let at = |slot: u16| u64::from(slot) * bytes as u64;
        (0..DEPTH).for_each(|slot| queue.read(at(slot), slot, bytes).unwrap());
        let mut pending = DEPTH;
        while pending > 0 {
            let (slot, result) = queue.finish_one().unwrap();
            assert_eq!(result, 0);
            if over.load(Ordering::Relaxed) {
                pending -= 1;
            } else {
                queue.read(at(slot), slot, bytes).unwrap();
            }
        }
    })
}

/// Reads one page after the other until it is over.
fn read_singly(mut guest: Guest, over: &Arc<AtomicBool>) -> JoinHandle<()> {
    let over = Arc::clone(over);
    std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            guest.run(0, &Request::read(0, 4096)).unwrap();
        }
    })
}

/// Two disks want one storage at once. It is so slow that it, and not a busy host, delays requests.
#[test]
fn a_share_of_the_storage() {
    let io = Served::start(&["--reactors", "1"]);
    let device = json!({"pipe": {"request_ns": 10_000_000, "queue": 1}});
    for (id, weight) in [("light", 100), ("heavy", 1000)] {
        let model = json!({"name": "slow", "size": 4 << 20, "device": device, "profile": true});
        io.attach(id, json!({ "model": model }), json!({"share": {"weight": weight}}));
    }
    let over = Arc::new(AtomicBool::new(false));
    let heavy = read_until(&io, "heavy", 64 << 10, &over);
    let light = read_singly(io.guest("light"), &over);
    eventually("the share is named", || verdict(&io, "light", "1")["cause"] == "share");
    let text = io.stdout(&["top", "--once", "--seconds", "0.1"]);
    assert!(text.contains("weight") && text.contains(" 1000 "), "{text}");
    over.store(true, Ordering::Relaxed);
    heavy.join().unwrap();
    light.join().unwrap();
    assert!(DOCUMENT.contains("waits for its share of the storage: "));
    let text = io.stdout(&["why", "light", "--seconds", "0.1"]);
    assert!(text.contains("Its share of the storage: weight 100; "), "{text}");
}

#[test]
fn a_neighbour() {
    let io = Served::start(&["--reactors", "1"]);
    io.attach("quiet", json!({"memory": 1 << 20}), json!({}));
    io.attach("noisy", json!({"memory": 64 << 20}), json!({}));
    let over = Arc::new(AtomicBool::new(false));
    let noise = read_until(&io, "noisy", 1 << 20, &over);
    let quiet = read_singly(io.guest("quiet"), &over);
    // On a busy machine the noisy disk itself may not run for a while.
    eventually("the neighbour is named", || {
        let verdict = verdict(&io, "quiet", "0.5");
        verdict["cause"] == "neighbour" && verdict["neighbour"] == "noisy"
    });
    assert!(DOCUMENT.contains("waits for its reactor, which disk noisy keeps"));
    over.store(true, Ordering::Relaxed);
    noise.join().unwrap();
    quiet.join().unwrap();
}

#[test]
fn a_nic_whose_ring_its_driver_broke() {
    let io = Served::start(&[]);
    let mac = "02:00:00:00:00:01";
    let spec = json!({"id": "n1", "socket": io.socket("n1"), "network": "lan", "mac": mac});
    io.stdout(&["io", "nic.attach", &spec.to_string()]);
    let setup = Setup { queues: 2, ..Setup::default() };
    let mut guest = Guest::start(&io.socket("n1"), &setup).unwrap();
    guest.queues[1].ring.set_avail_idx(&guest.memory, 1000).unwrap();
    guest.kick(1).unwrap();
    assert_eq!(guest.wait(1, PROCESS_DEADLINE).unwrap(), WaitEvent::QueueError);
    assert_cause(&io, "n1", "broken_ring", "has a broken ring");
    let text = io.stdout(&["why", "n1", "--seconds", "0.1"]);
    assert!(text.contains("transmit ring 0 broke"), "{text}");
    let text = io.stdout(&["top", "--once", "--seconds", "0.1"]);
    assert!(text.lines().any(|line| line.contains("n1") && line.contains("ring broken")), "{text}");
}

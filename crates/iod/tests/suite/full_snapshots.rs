//! Snapshots, upgrades and pauses of disks on full storage, whose writes wait for room.
#![allow(clippy::unwrap_used, clippy::panic)]

mod tree;

use serde_json::json;
use testkit::in_namespace::in_little_room;
use testkit::process::eventually;
use testkit::rounds;

use crate::common::timed;
use tree::{FullTree, Storage, elsewhere, with_new_table, write};

const ELSEWHERE: &str =
    concat!(module_path!(), "::writes_that_wait_go_to_a_snapshot_elsewhere_without_room");

#[test]
fn writes_that_wait_go_to_a_snapshot_elsewhere_without_room() {
    let output = in_little_room(ELSEWHERE, 24, |dir| {
        for storage in [Storage::Reserving, Storage::Unreserving].repeat(rounds(1, 20)) {
            let mut tree = FullTree::start(dir, storage);
            let (_folder, file) = elsewhere();
            tree.discard();
            tree.snapshot(&file).unwrap();
            let took = tree.finish();
            println!("{storage:?}: all ended {took:.1?} after a snapshot elsewhere");
            let top = tree.place.file("top.qcow2");
            tree.end(&[&top, &file]);
        }
    });
    println!("{}", output.unwrap());
}

const REFUSED: &str =
    concat!(module_path!(), "::a_snapshot_on_full_storage_is_refused_and_all_writes_end_with_room");

#[test]
fn a_snapshot_on_full_storage_is_refused_and_all_writes_end_with_room() {
    let output = in_little_room(REFUSED, 24, |dir| {
        for storage in [Storage::Reserving, Storage::Unreserving].repeat(rounds(1, 20)) {
            let mut tree = FullTree::start(dir, storage);
            let file = tree.place.file("new.qcow2");
            let error = tree.snapshot(&file).unwrap_err();
            assert!(error.message.contains("No space left on device"), "{error}");
            assert!(!file.exists(), "an image is left");
            tree.all_wait();
            tree.discard();
            if storage == Storage::Unreserving {
                tree.stop_midway();
            }
            tree.make_room();
            let took = tree.finish();
            println!("{storage:?}: all ended {took:.1?} after room was made");
            tree.snapshot(&file).unwrap();
            tree.run(&write(3000, 1));
            tree.written.push(3000);
            let top = tree.place.file("top.qcow2");
            tree.end(&[&top, &file]);
        }
    });
    println!("{}", output.unwrap());
}

const FLUSH: &str =
    concat!(module_path!(), "::a_snapshot_whose_flush_waits_for_room_ends_with_room");

#[test]
fn a_snapshot_whose_flush_waits_for_room_ends_with_room() {
    let output = in_little_room(FLUSH, 24, |dir| {
        for _ in 0..rounds(1, 20) {
            let mut tree = with_new_table(dir, 30_000);
            let (_folder, file) = elsewhere();
            tree.discard();
            let before = tree.waiting();
            let (reply, took) = std::thread::scope(|scope| {
                let call = scope.spawn(|| tree.snapshot(&file));
                eventually("the flush waits, too", || tree.waiting() > before);
                tree.make_room();
                timed(|| call.join().unwrap())
            });
            reply.unwrap();
            println!("the snapshot ended {took:.1?} after room was made");
            tree.finish();
            let top = tree.place.file("top.qcow2");
            tree.end(&[&top, &file]);
        }
    });
    println!("{}", output.unwrap());
}

const LATE: &str =
    concat!(module_path!(), "::a_snapshot_whose_flush_finds_no_room_in_time_says_so");

#[test]
fn a_snapshot_whose_flush_finds_no_room_in_time_says_so() {
    in_little_room(LATE, 24, |dir| {
        let mut tree = with_new_table(dir, 2000);
        let (_folder, file) = elsewhere();
        tree.discard();
        let error = tree.snapshot(&file).unwrap_err();
        assert!(error.message.contains("is full: a flush waits for room"), "{error}");
        assert!(!file.exists(), "an image is left");
        tree.all_wait();
        tree.make_room();
        tree.finish();
        tree.snapshot(&file).unwrap();
        let top = tree.place.file("top.qcow2");
        tree.end(&[&top, &file]);
    })
    .unwrap();
}

const MIDWAY: &str = concat!(
    module_path!(),
    "::writes_that_stopped_midway_go_through_an_upgrade_a_pause_and_a_snapshot"
);

#[test]
fn writes_that_stopped_midway_go_through_an_upgrade_a_pause_and_a_snapshot() {
    in_little_room(MIDWAY, 24, |dir| {
        for _ in 0..rounds(1, 20) {
            let mut tree = FullTree::start(dir, Storage::Unreserving);
            tree.discard();
            tree.stop_midway();
            tree.io.caller().call("upgrade", json!({})).unwrap();
            tree.stop_midway();
            for verb in ["disk.pause", "disk.resume"] {
                tree.io.caller().call(verb, json!({"id": "d"})).unwrap();
            }
            tree.stop_midway();
            let (_folder, file) = elsewhere();
            tree.snapshot(&file).unwrap();
            tree.finish();
            let top = tree.place.file("top.qcow2");
            tree.end(&[&top, &file]);
        }
    })
    .unwrap();
}

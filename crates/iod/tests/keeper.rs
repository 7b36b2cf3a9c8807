//! Workers that die, and what their keeper does about it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;

use common::*;
use model::report::DiskState;
use serde_json::json;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

fn write(guest: &mut Guest, sector: u64, value: u8) {
    let done = guest.run(0, &Request::write(sector, &[value; 512])).unwrap();
    assert_eq!(done.status, status::OK);
}

fn read(guest: &mut Guest, sector: u64) -> Vec<u8> {
    guest.run(0, &Request::read(sector, 512)).unwrap().data
}

fn connect(socket: &Path) -> Guest {
    Guest::start(socket, &Setup::default()).unwrap()
}

#[test]
fn a_killed_worker_is_replaced_and_every_disk_is_as_it_was() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", 1 << 20);
    let file = json!({"file": path});
    for (id, backend) in
        [("file", file), ("memory", json!({"memory": 1 << 20})), ("null", json!({"null": 4096}))]
    {
        let mut spec = io.spec(id, backend);
        spec["cache"] = json!("writeback");
        caller.disk("disk.attach", spec);
    }
    let mut idle = io.spec("idle", json!({"memory": 4096}));
    idle["activate"] = json!(false);
    caller.disk("disk.attach", idle);
    caller.disk("disk.pause", json!({"id": "null"}));
    caller.disk("disk.resize", json!({"id": "memory", "size": 2 << 20}));
    caller.disk("disk.attach", io.spec("gone", json!({"null": 4096})));
    caller.call("disk.detach", json!({"id": "gone"})).unwrap();
    write(&mut connect(&io.socket("file")), 7, 1);
    write(&mut connect(&io.socket("memory")), 4000, 2);
    let before = names(&io.folder);

    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    let next = io.process.next_worker(Some(worker.id())).unwrap();
    // A front-end that connects now waits until the disk is there.
    assert_eq!(read(&mut connect(&io.socket("file")), 7), [1; 512]);
    assert_eq!(read(&mut connect(&io.socket("memory")), 4000), [2; 512]);
    let mut caller = io.caller();
    let stats = caller.stats();
    assert_eq!(stats.pid, next.id());
    let keeper = stats.keeper.unwrap();
    assert_eq!((keeper.pid, keeper.restarts), (io.process.id(), 1));
    assert_eq!(keeper.last_exit.unwrap(), "killed by SIGKILL");
    let states = ["file", "idle", "memory", "null"].map(|id| caller.state(id).unwrap());
    let expected = [DiskState::Active, DiskState::Attached, DiskState::Active, DiskState::Paused];
    assert_eq!(states, expected);
    assert_eq!(stats.disks.len(), 4);
    assert_eq!(names(&io.folder), before);

    caller.call("disk.detach", json!({"id": "file"})).unwrap();
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), ["a.raw"]);
}

#[test]
fn workers_are_replaced_as_often_as_they_die() {
    let mut io = Io::start_with(&["--restart-pause-max", "0"]);
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    write(&mut connect(&io.socket("d")), 0, 9);
    let rounds = testkit::rounds(20, 500);
    let mut last = None;
    for _ in 0..rounds {
        let worker = io.process.next_worker(last).unwrap();
        last = Some(worker.id());
        worker.kill().unwrap();
    }
    assert_eq!(read(&mut connect(&io.socket("d")), 0), [9; 512]);
    let keeper = io.caller().stats().keeper.unwrap();
    assert_eq!(keeper.restarts, rounds as u64);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}

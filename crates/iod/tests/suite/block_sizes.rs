//! Block sizes that follow from the storage of a disk.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::*;
use model::report::DiskState;
use rustix::process::Signal;
use serde_json::json;
use testkit::process::eventually;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::storage::LoopDevice;

const BYTES: u64 = 1 << 20;

/// Kills the worker, and changes the sectors of its storage before the next one starts.
fn restart_with_sector(io: &mut Io, device: &LoopDevice, sector: u32) {
    let worker = io.process.worker().unwrap().unwrap();
    io.process.signal(Signal::STOP).unwrap();
    worker.kill().unwrap();
    device.set_sector(sector).unwrap();
    io.process.signal(Signal::CONT).unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
}

#[test]
fn large_blocks_are_told_with_the_remedy() {
    let device = LoopDevice::new(BYTES, 4096).unwrap();
    let mut io = Io::start();
    let mut caller = io.caller();
    let told = "4096-byte blocks, because direct I/O on /dev/loop";
    let mut spec = io.spec("d", json!({"file": device.path()}));
    let reply = caller.disk("disk.attach", spec.clone());
    assert_eq!(reply.geometry.block_size, 4096);
    let [note] = reply.notes.as_slice() else { panic!("{reply:?}") };
    assert!(note.contains(told) && note.contains("cache=writeback"), "{note}");
    eventually("the log tells it", || {
        let log = io.process.stderr();
        log.lines().any(|line| line.contains(told) && line.contains("disk=\"d\""))
    });
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    // The remedy works, and a chosen size needs no note.
    for (field, value, block_size) in
        [("cache", json!("writeback"), 512), ("block_size", json!(4096), 4096)]
    {
        let before = spec.clone();
        spec[field] = value;
        let reply = caller.disk("disk.attach", spec);
        assert_eq!((reply.geometry.block_size, reply.notes.len()), (block_size, 0), "{field}");
        caller.call("disk.detach", json!({"id": "d"})).unwrap();
        spec = before;
    }
    let path = device.path().to_str().unwrap();
    let mut one = blk(&io.socket("blk"), &["--blk-file", path]);
    eventually("ringway-blk logs it", || one.stderr().contains(told));
}

#[test]
fn a_restart_never_changes_the_blocks_of_a_guest() {
    let device = LoopDevice::new(BYTES, 512).unwrap();
    let mut io = Io::start();
    io.caller().disk("disk.attach", io.spec("d", json!({"file": device.path()})));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(512, &[7; 512])).unwrap().status, status::OK);
    drop(guest);

    restart_with_sector(&mut io, &device, 4096);
    let mut caller = io.caller();
    eventually("it is refused", || {
        let disk = caller.stats().disks.remove(0);
        let why = "blocks of 4096 bytes now, and guests were told 512";
        disk.geometry.block_size == 512 && disk.refused.is_some_and(|reason| reason.contains(why))
    });
    let error = caller.call("disk.activate", json!({"id": "d"})).unwrap_err();
    assert!(error.message.contains("guests were told 512"), "{error}");
    device.set_sector(512).unwrap();
    let reply = caller.disk("disk.activate", json!({"id": "d"}));
    assert_eq!(reply.geometry.block_size, 512);
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(512, 512)).unwrap().data, [7; 512]);
}

#[test]
fn a_guest_keeps_large_blocks_on_storage_with_small_ones() {
    let device = LoopDevice::new(BYTES, 4096).unwrap();
    let mut io = Io::start();
    io.caller().disk("disk.attach", io.spec("d", json!({"file": device.path()})));
    restart_with_sector(&mut io, &device, 512);
    let mut caller = io.caller();
    eventually("it is active", || caller.state("d") == Some(DiskState::Active));
    assert_eq!(caller.stats().disks.remove(0).geometry.block_size, 4096);
    caller.call("upgrade", json!({})).unwrap();
    assert_eq!(io.caller().stats().disks.remove(0).geometry.block_size, 4096);
}

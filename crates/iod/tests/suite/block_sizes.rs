//! Block sizes of disks, which do not follow from the storage.
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

fn block_size(io: &Io) -> u32 {
    io.caller().stats().disks.remove(0).geometry.block_size
}

#[test]
fn the_block_size_is_that_of_the_disk_whatever_the_storage_needs() {
    let device = LoopDevice::new(BYTES, 4096).unwrap();
    let io = Io::start();
    let mut caller = io.caller();
    for (fields, block_size) in [
        (json!({}), 512),
        (json!({"block_size": 512}), 512),
        (json!({"block_size": 1024}), 1024),
        (json!({"block_size": 4096}), 4096),
        (json!({"block_size": "storage"}), 4096),
        (json!({"block_size": "storage", "cache": "writeback"}), 512),
        (json!({"cache": "writeback"}), 512),
    ] {
        let mut spec = io.spec("d", json!({"file": device.path()}));
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = caller.disk("disk.attach", spec);
        assert_eq!((reply.geometry.block_size, reply.notes.len()), (block_size, 0), "{fields}");
        caller.call("disk.detach", json!({"id": "d"})).unwrap();
    }
}

#[test]
fn small_writes_on_large_sectors_are_served_and_counted() {
    let device = LoopDevice::new(BYTES, 4096).unwrap();
    let mut io = Io::start();
    io.caller().disk("disk.attach", io.spec("d", json!({"file": device.path()})));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(0, &[5; 8192])).unwrap().status, status::OK);
    for sector in [1, 6, 9] {
        let write = Request::write(sector, &[sector as u8; 512]);
        assert_eq!(guest.run(0, &write).unwrap().status, status::OK);
    }
    let read = guest.run(0, &Request::read(1, 10 * 512)).unwrap().data;
    let firsts: Vec<_> = read.chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(firsts, [1, 5, 5, 5, 5, 6, 5, 5, 9, 5]);
    assert_eq!(io.caller().stats().disks[0].small_writes, 3);
    // A crash and an upgrade keep the disk as its guest knows it.
    drop(guest);
    restart_with_sector(&mut io, &device, 4096);
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(9, 512)).unwrap().data, [9; 512]);
    io.caller().call("upgrade", json!({})).unwrap();
    assert_eq!(guest.run(0, &Request::write(1, &[8; 512])).unwrap().status, status::OK);
    assert_eq!(guest.run(0, &Request::read(0, 1024)).unwrap().data[511..513], [5, 8]);
    assert_eq!(block_size(&io), 512);
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
    eventually("it is active", || io.caller().state("d") == Some(DiskState::Active));
    assert_eq!(block_size(&io), 512);
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(512, 512)).unwrap().data, [7; 512]);
}

#[test]
fn a_guest_keeps_large_blocks_on_storage_with_small_ones() {
    let device = LoopDevice::new(BYTES, 4096).unwrap();
    let mut io = Io::start();
    let mut spec = io.spec("d", json!({"file": device.path()}));
    spec["block_size"] = json!("storage");
    io.caller().disk("disk.attach", spec);
    restart_with_sector(&mut io, &device, 512);
    let mut caller = io.caller();
    eventually("it is active", || caller.state("d") == Some(DiskState::Active));
    assert_eq!(block_size(&io), 4096);
    caller.call("upgrade", json!({})).unwrap();
    assert_eq!(block_size(&io), 4096);
}

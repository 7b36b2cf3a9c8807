//! Requests that wait for the source of a golden image, and all that must go on beside them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::Range;

use crate::common::sectors::{connect, flush, read, write, write_bytes};
use crate::common::*;
use crate::golden_servers::{self, BLOCK, Fault, Server};
use image::qcow2::{CreateOptions, create_file};
use model::report::DiskStats;
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::raw::guest::Pending;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

const MIB: u64 = 1 << 20;
/// Sectors of a block.
const SECTORS: u64 = BLOCK as u64 / 512;
/// Blocks that the cache has: more than its memory, so that some are in its file alone.
const CACHED: Range<u64> = 0..96;
/// Blocks that the guest has written: more than the memory of the overlay.
const WRITTEN: Range<u64> = 96..224;
/// Blocks that only the source has.
const MISSING: Range<u64> = 224..384;

fn stats(io: &Io, id: &str) -> DiskStats {
    io.caller().stats().disks.into_iter().find(|disk| disk.id == id).unwrap()
}

fn misses(io: &Io) -> u64 {
    stats(io, "d").golden.unwrap().misses
}

/// Submits writes and waits until the cache has looked for their blocks.
fn submit(
    io: &Io,
    guest: &mut Guest,
    queue: usize,
    writes: &[Request],
    looks: u64,
) -> Vec<Pending> {
    let before = misses(io);
    let pending = guest.submit_all(queue, writes).unwrap();
    guest.kick(queue).unwrap();
    eventually("they wait for the source", || misses(io) == before + looks);
    pending
}

/// Reads a block, and compares it with the image.
fn check_block(guest: &mut Guest, queue: usize, block: u64, image: &[u8]) {
    let done = guest.run(queue, &Request::read(block * SECTORS, BLOCK as u32)).unwrap();
    assert_eq!(done.status, status::OK);
    let from = block as usize * BLOCK;
    assert!(done.data == image[from..from + BLOCK], "block {block}");
}

fn finish(guest: &mut Guest, queue: usize, pending: &[Pending]) {
    for done in guest.finish_all(queue, pending).unwrap() {
        assert_eq!(done.status, status::OK);
    }
}

/// Attaches a disk `d` with an overlay over a golden image, and connects.
fn start(io: &Io, server: &Server, queues: u16, queue_size: u16) -> Guest {
    let cache = io.folder.path().join("cache");
    let golden = json!({"golden": {"source": server.source, "cache": cache, "ram": 4 * MIB}});
    let over = io.folder.path().join("over");
    let backend = json!({"overlay": {"base": golden, "ram": 4 * MIB, "overflow": over}});
    let mut spec = io.spec("d", backend);
    (spec["cache"], spec["queues"]) = (json!("writeback"), json!(queues));
    io.caller().disk("disk.attach", spec);
    let setup = Setup { queues, queue_size, memory_bytes: 16 * MIB, ..Setup::default() };
    Guest::start(&io.socket("d"), &setup).unwrap()
}

#[test]
fn writes_of_parts_that_wait_for_a_source_hold_up_nothing_else() {
    for fault in [Fault::Stall, Fault::Gone] {
        let io = Io::start();
        let mut bytes = golden_servers::image(MISSING.end as usize);
        let server = Server::nbd(bytes.clone());
        let mut guest = start(&io, &server, 3, 256);
        CACHED.for_each(|block| check_block(&mut guest, 0, block, &bytes));
        for block in WRITTEN {
            bytes[block as usize * BLOCK..][..BLOCK].fill(block as u8);
            write_bytes(&mut guest, block * SECTORS, &vec![block as u8; BLOCK]);
        }
        server.served.set_fault(Some(fault));
        // One ring is full of them, and the other one has some.
        let all: Vec<_> =
            MISSING.map(|block| Request::write(block * SECTORS + 3, &[7; 512])).collect();
        let (some, many) = all[..120].split_at(35);
        let waiting = [(2, some), (1, many)].map(|(queue, writes)| {
            (queue, submit(&io, &mut guest, queue, writes, writes.len() as u64))
        });
        // Blocks of memory and file of both caches, and parts of them.
        CACHED.chain(WRITTEN).for_each(|block| check_block(&mut guest, 0, block, &bytes));
        // The ring with some of them has room for as many requests.
        for block in CACHED.chain(WRITTEN).step_by(7) {
            check_block(&mut guest, 2, block, &bytes);
        }
        for (block, sector) in [(CACHED.start, 5), (WRITTEN.start, 9)] {
            write(&mut guest, block * SECTORS + sector, 9);
            assert_eq!(read(&mut guest, block * SECTORS + sector), 9);
            bytes[block as usize * BLOCK + sector as usize * 512..][..512].fill(9);
        }
        flush(&mut guest);
        for (_, pending) in &waiting {
            let ended = pending.iter().filter(|one| guest.status(one).unwrap() == status::OK);
            assert_eq!(ended.count(), 0, "they wait");
        }
        server.served.set_fault(None);
        waiting.iter().for_each(|(queue, pending)| finish(&mut guest, *queue, pending));
        for block in MISSING.take(120) {
            bytes[block as usize * BLOCK + 3 * 512..][..512].fill(7);
        }
        (0..MISSING.end).for_each(|block| check_block(&mut guest, 0, block, &bytes));
        assert_eq!(stats(&io, "d").errors, 0);
    }
}

#[test]
fn writes_of_parts_that_wait_for_a_source_leave_memory_to_other_writes() {
    let io = Io::start();
    let bytes = golden_servers::image(MISSING.end as usize);
    let server = Server::nbd(bytes.clone());
    let mut guest = start(&io, &server, 3, 1024);
    server.served.set_fault(Some(Fault::Gone));
    // Parts of two 4 KiB blocks each: together more than the memory has.
    let first = MISSING.start * SECTORS;
    let at = |number: u64| first + number * 16 + 4;
    let each = 320;
    let waiting = [1, 2].map(|queue| {
        let from = (queue - 1) * each;
        let all: Vec<_> =
            (from..from + each).map(|at_| Request::write(at(at_), &[7; 4096])).collect();
        let pending = guest.submit_all(queue as usize, &all).unwrap();
        guest.kick(queue as usize).unwrap();
        (queue as usize, pending)
    });
    eventually("they wait", || stats(&io, "d").golden.unwrap().problem.is_some());
    for block in WRITTEN {
        write_bytes(&mut guest, block * SECTORS, &vec![block as u8; BLOCK]);
    }
    for block in WRITTEN {
        assert_eq!(read(&mut guest, block * SECTORS + 8), block as u8);
    }
    server.served.set_fault(None);
    waiting.iter().for_each(|(queue, pending)| finish(&mut guest, *queue, pending));
    for number in [0, each, 2 * each - 1] {
        assert_eq!([0, 7].map(|next| read(&mut guest, at(number) + next)), [7, 7]);
    }
}

/// Attaches a qcow2 image of this name over a golden image.
fn attach_leaf(io: &Io, id: &str, golden: &Value) {
    let file = io.folder.path().join(format!("{id}.qcow2"));
    create_file(&file, &CreateOptions::new(MISSING.end * BLOCK as u64)).unwrap();
    let mut spec = io.spec(id, json!({"qcow2": {"file": file, "backing": golden}}));
    (spec["cache"], spec["queues"]) = (json!("writeback"), json!(2));
    io.caller().disk("disk.attach", spec);
}

#[test]
fn an_image_that_waits_for_its_golden_base_holds_up_no_other_disk() {
    for fault in [Fault::Stall, Fault::Gone] {
        let io = Io::start();
        let bytes = golden_servers::image(MISSING.end as usize);
        let server = Server::nbd(bytes.clone());
        let cache = io.folder.path().join("cache");
        let golden = json!({"golden": {"source": server.source, "cache": cache, "ram": 4 * MIB}});
        ["d", "e"].into_iter().for_each(|id| attach_leaf(&io, id, &golden));
        let setup = Setup { queues: 2, ..Setup::default() };
        let mut guest = Guest::start(&io.socket("d"), &setup).unwrap();
        let mut other = connect(&io.socket("e"));
        CACHED.for_each(|block| check_block(&mut guest, 0, block, &bytes));
        server.served.set_fault(Some(fault));
        let reads = MISSING.map(|block| Request::read(block * SECTORS, 4096));
        let writes = MISSING.map(|block| Request::write(block * SECTORS + 3, &[7; 512]));
        let all: Vec<_> = reads.take(20).chain(writes.skip(20).take(20)).collect();
        let pending = submit(&io, &mut guest, 1, &all, 40);
        // The disk itself tells that they wait, reads what is cached, and writes whole clusters.
        assert_eq!(stats(&io, "d").in_flight, 40);
        check_block(&mut guest, 0, CACHED.start, &bytes);
        write_bytes(&mut guest, 0, &vec![5; BLOCK]);
        assert_eq!(read(&mut guest, 9), 5);
        flush(&mut guest);
        // Another disk on the same image.
        write(&mut other, 5, 9);
        flush(&mut other);
        let files = json!({"disks": [{"id": "e", "file": io.folder.path().join("next.qcow2")}]});
        io.caller().call("disk.snapshot", files).unwrap();
        write(&mut other, 6, 8);
        flush(&mut other);
        assert_eq!([5, 6].map(|sector| read(&mut other, sector)), [9, 8]);
        check_block(&mut other, 0, CACHED.start + 1, &bytes);
        io.caller().call("disk.detach", json!({"id": "e"})).unwrap();
        // An attach asks a source that stalls for its image, up to a deadline of 10 s.
        if fault == Fault::Gone {
            attach_leaf(&io, "n", &golden);
        }
        assert_eq!(stats(&io, "d").in_flight, 40, "they wait");
        server.served.set_fault(None);
        finish(&mut guest, 1, &pending);
        assert_eq!(read(&mut guest, (MISSING.start + 20) * SECTORS + 3), 7);
        assert_eq!(stats(&io, "d").errors, 0);
    }
}

#[test]
fn an_attach_that_waits_for_its_source_holds_up_no_other_call() {
    let io = Io::start();
    let bytes = golden_servers::image(8);
    let [stalls, other] = [(); 2].map(|()| Server::nbd(bytes.clone()));
    stalls.served.set_fault(Some(Fault::Stall));
    let cache = io.folder.path().join("cache");
    let spec = |id: &str, server: &Server| {
        let golden = json!({"golden": {"source": server.source, "cache": cache}});
        let mut spec = io.spec(id, golden);
        spec["read_only"] = json!(true);
        spec
    };
    std::thread::scope(|scope| {
        let attach = || io.caller().call("disk.attach", spec("stalls", &stalls));
        // An attach that gave up first, on a slow machine, has shown nothing.
        let meanwhile = (0..10).any(|_| {
            let waits = scope.spawn(attach);
            eventually("the server has the connection", || stalls.served.stalled() > 0);
            io.caller().disk("disk.attach", spec("other", &other));
            check_block(&mut connect(&io.socket("other")), 0, 3, &bytes);
            assert!(stats(&io, "other").golden.unwrap().problem.is_none());
            io.caller().call("golden.warm", json!({"image": "other"})).unwrap();
            io.caller().call("disk.detach", json!({"id": "other"})).unwrap();
            let is_meanwhile = !waits.is_finished();
            stalls.served.set_fault(None);
            let why = waits.join().unwrap().unwrap_err().message;
            assert!(why.contains("cannot connect"), "{why}");
            stalls.served.set_fault(Some(Fault::Stall));
            is_meanwhile
        });
        assert!(meanwhile, "the calls waited for the attach");
    });
}

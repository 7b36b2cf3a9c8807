//! Tests of valid and invalid requests of every kind, from a driver through a real reactor.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::sync::Arc;

use crate::guest::*;
use blk::feature;
use disk::{Disk, FileDisk, FileOptions, MemoryDisk, NullDisk, OnFull, RequestKind};
use reactor::{PollMode, Reactor};
use virtq::driver::BUFFERS;

const SIZE: u64 = 8 << 20;

fn memory() -> Arc<dyn Disk> {
    Arc::new(MemoryDisk::new(SIZE, 512, false).unwrap())
}

fn file(dir: &std::path::Path, direct: bool) -> Arc<dyn Disk> {
    let path = dir.join("disk.raw");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let on_full = OnFull::Wait;
    let options = FileOptions { path, read_only: false, direct, block_size: None, on_full };
    Arc::new(FileDisk::open(options).unwrap())
}

fn round_trip(disk: Arc<dyn Disk>, event_idx: bool, mode: PollMode) {
    let block = disk.geometry().block_size as usize;
    let device = polled(disk, 1, mode);
    let mut guest = Guest::new(&device, event_idx);
    let data: Vec<u8> = (0..8 * block).map(|i| (i % 253) as u8).collect();
    assert_eq!(guest.write(8, &data), 0);
    assert_eq!(guest.run(FLUSH, 0, (0, false)), (0, 1));
    assert_eq!(guest.read(8, data.len() as u32), (0, data.clone()));
    let sectors = block as u32 / 512;
    assert_eq!(guest.segment(WRITE_ZEROES, 8, sectors, 1), 0);
    let (_, after) = guest.read(8, data.len() as u32);
    assert!(after[..block].iter().all(|byte| *byte == 0));
    assert_eq!(after[block..], data[block..]);
    assert_eq!(guest.segment(DISCARD, 8, sectors, 0), 0);
    let next = guest.queue.take().unwrap().stop().unwrap();
    assert_eq!(next, 6);
    let stats = device.stats();
    assert_eq!((stats.requests.read, stats.requests.write, stats.requests.flush), (2, 1, 1));
    assert_eq!((stats.requests.discard, stats.requests.write_zeroes), (1, 1));
    assert_eq!(stats.bytes.read, 16 * block as u64);
    assert_eq!((stats.errors, stats.latency.count), (0, 5));
}

#[test]
fn every_kind_of_request_on_every_backend() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let modes = [PollMode::Off, PollMode::Auto, PollMode::Always];
    for (event_idx, mode) in modes.into_iter().flat_map(|mode| [(false, mode), (true, mode)]) {
        round_trip(memory(), event_idx, mode);
        round_trip(file(dir.path(), false), event_idx, mode);
        round_trip(file(dir.path(), true), event_idx, mode);
    }
}

#[test]
fn the_serial_is_told_and_padded() {
    let device = device(memory(), 1, false);
    let mut guest = Guest::new(&device, true);
    assert_eq!(guest.run(GET_ID, 0, (20, true)), (0, 21));
    assert_eq!(&guest.driver.read(Guest::data_at(0), 20), b"SERIAL-1\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(guest.run(GET_ID, 0, (4, true)), (0, 5), "a short buffer gets a short answer");
}

#[test]
fn requests_that_cannot_be_served_end_in_a_status() {
    let device = device(memory(), 1, false);
    let mut guest = Guest::new(&device, true);
    let last = SIZE / 512;
    let cases = [
        ("past the end", IN, last, (512, true), 1),
        ("across the end", IN, last - 1, (1024, true), 1),
        ("sector times 512 wraps", OUT, u64::MAX / 512 + 1, (512, false), 1),
        ("largest sector", IN, u64::MAX, (512, true), 1),
        ("no data", IN, 0, (0, true), 1),
        ("part of a sector", OUT, 0, (100, false), 1),
        ("unknown type", 99, 0, (512, true), 2),
        ("zeroes without a segment", WRITE_ZEROES, 0, (0, false), 1),
        ("zeroes with half a segment", WRITE_ZEROES, 0, (8, false), 1),
        ("zeroes with two segments", WRITE_ZEROES, 0, (32, false), 1),
    ];
    for (name, kind, sector, data, expected) in cases {
        assert_eq!(guest.run(kind, sector, data).0, expected, "{name}");
    }
    assert_eq!(guest.segment(DISCARD, 0, 8, 1), 2, "a discard has no unmap flag");
    assert_eq!(guest.segment(WRITE_ZEROES, 0, 8, 2), 2, "unknown flag");
    assert_eq!(guest.segment(WRITE_ZEROES, u64::MAX, 8, 0), 1, "wraps");
    assert_eq!(guest.segment(WRITE_ZEROES, 0, u32::MAX, 0), 1, "too long");
    assert_eq!(guest.write(0, &[1; 512]), 0, "the queue goes on");
    assert_eq!(device.stats().errors, cases.len() as u64 + 4);
}

#[test]
fn chains_without_header_or_status_are_given_back() {
    let device = device(memory(), 1, false);
    let mut guest = Guest::new(&device, true);
    guest.driver.put_chain(0, &[(BUFFERS, 16, false)]);
    guest.driver.offer(0);
    guest.publish();
    assert_eq!(guest.used(), (0, 0), "no status byte");
    guest.driver.write(BUFFERS + 64, &[0xff]);
    guest.driver.put_chain(0, &[(BUFFERS, 8, false), (BUFFERS + 64, 1, true)]);
    guest.driver.offer(0);
    guest.publish();
    assert_eq!(guest.used(), (0, 1));
    assert_eq!(guest.driver.read(BUFFERS + 64, 1), [1], "short header");
    assert_eq!(guest.write(0, &[1; 512]), 0, "the queue goes on");
}

/// As after a hot-added DIMM that is not shared: the driver has its ring in shared memory.
#[test]
fn an_address_outside_memory_fails_its_request_alone() {
    let device = device(memory(), 1, false);
    let mut guest = Guest::new(&device, true);
    let dimm = 1 << 40;
    let (header, status) = ((BUFFERS, 16, false), (BUFFERS + 64, 1, true));
    let chains = [
        vec![header, (dimm, 512, true), status],
        vec![header, (dimm, 512, false), status],
        vec![header, (Guest::data_at(0), 512, true), (dimm, 512, true), status],
        vec![(dimm, 16, false), (Guest::data_at(0), 512, true), status],
    ];
    for chain in &chains {
        // A request that works, in the same memory before and after.
        assert_eq!(guest.write(0, &[9; 512]), 0);
        guest.driver.write(BUFFERS + 64, &[0xff]);
        guest.driver.put_chain(0, chain);
        guest.driver.offer(0);
        guest.publish();
        assert_eq!(guest.used(), (0, 1));
        assert_eq!(guest.status(0), 1, "{chain:?}");
        assert_eq!(guest.read(0, 512), (0, vec![9; 512]));
    }
    let stats = device.stats();
    assert_eq!((stats.errors, stats.broken_rings), (chains.len() as u64, 0));
    assert_eq!((stats.requests.read, stats.requests.write), (4, 4));
    assert!(device.broken_rings().is_empty());

    // The status byte is outside: a driver that saw the request complete would read an old one.
    guest.driver.put_chain(0, &[header, (Guest::data_at(0), 512, true), (dimm, 1, true)]);
    guest.driver.offer(0);
    guest.publish();
    guest.wait_for_error(&mut [0; 8]);
    let [(0, broken)] = &device.broken_rings()[..] else { panic!("the ring is not broken") };
    assert!(broken.cause.contains("0x10000000000 is in no memory"), "{}", broken.cause);
    assert!(broken.cause.ends_with("<access mode='shared'/>)"), "{}", broken.cause);
    assert_eq!(guest.queue.take().unwrap().stop().unwrap(), 12);
}

#[test]
fn a_header_in_pieces_is_a_header() {
    let device = device(memory(), 1, false);
    let mut guest = Guest::new(&device, true);
    assert_eq!(guest.write(0, &[7; 512]), 0);
    let at = BUFFERS + 0x5000;
    guest.driver.write(at, &[0; 16]);
    let pieces =
        [(at, 3, false), (at + 3, 13, false), (at + 64, 100, true), (at + 1000, 413, true)];
    guest.driver.put_chain(0, &pieces);
    guest.driver.offer(0);
    guest.publish();
    assert_eq!(guest.used(), (0, 513));
    assert_eq!(guest.driver.read(at + 64, 100), [7; 100]);
    assert_eq!(guest.driver.read(at + 1000, 412), [7; 412]);
    assert_eq!(guest.driver.read(at + 1412, 1), [0]);
}

#[test]
fn a_read_only_disk_refuses_changes() {
    let device = device(Arc::new(NullDisk::new(SIZE, 512, true)), 1, false);
    assert_ne!(device.features() & feature::RO, 0);
    let mut guest = Guest::new(&device, true);
    assert_eq!(guest.write(0, &[1; 512]), 1);
    assert_eq!(guest.segment(DISCARD, 0, 8, 0), 2);
    assert_eq!(guest.segment(WRITE_ZEROES, 0, 8, 0), 2);
    assert_eq!(guest.read(0, 512).0, 0);
}

#[test]
fn a_broken_ring_is_told_once_and_stops_cleanly() {
    let device = device(memory(), 1, false);
    let mut guest = Guest::new(&device, true);
    assert_eq!(guest.write(0, &[1; 512]), 0);
    guest.driver.jump(1000);
    // No event index covers a jump, so kick without publishing anything.
    guest.put(0, IN, 0, (512, true));
    guest.driver.jump(2000);
    guest.kick_anyway();
    let mut count = [0; 8];
    guest.wait_for_error(&mut count);
    assert_eq!(u64::from_ne_bytes(count), 1);
    let broken = device.broken_rings();
    let (index, cause) = (broken[0].0, broken[0].1.cause.as_str());
    assert!(index == 0 && cause.starts_with("available index jumped from 1 to"), "{broken:?}");
    assert_eq!((broken.len(), device.stats().broken_rings), (1, 1));
    assert_eq!(guest.queue.take().unwrap().stop().unwrap(), 1);
    assert_eq!(device.broken_rings(), broken, "until the front-end stops or starts it");
    device.clear_broken_ring(0);
    assert_eq!(device.broken_rings(), []);
}

#[test]
fn a_full_ring_is_served_in_batches() {
    for spin in [false, true] {
        let device = device(memory(), 1, spin);
        let mut guest = Guest::new(&device, true);
        guest.arms = false;
        for round in 0..20u16 {
            for slot in 0..32 {
                guest.put(slot, IN, 0, (4096, true));
            }
            // Ask for a call at the last completion of the batch.
            guest.driver.set_used_event(round * 32 + 31);
            guest.publish();
            let mut seen = 0;
            guest.wait(|driver| {
                while driver.used().is_some() {
                    seen += 1;
                }
                seen == 32
            });
        }
        let stats = device.stats();
        assert_eq!(stats.requests.read, 640);
        assert!(guest.kicks <= 20, "{} kicks for 20 batches", guest.kicks);
        assert!(stats.calls <= 21, "{} calls for 20 batches", stats.calls);
        let counters = guest.reactor.handle().counters();
        let syscalls = counters.syscalls();
        // One call a batch, one sleep a batch, and a few for the start.
        assert!(spin || syscalls <= 3 * 20 + 20, "{syscalls} system calls for 640 requests");
    }
}

#[test]
fn stopping_waits_for_the_disk_and_a_successor_goes_on() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = device(file(dir.path(), true), 1, false);
    let mut guest = Guest::new(&device, true);
    for slot in 0..32 {
        guest.put(slot, OUT, u64::from(slot) * 8, (4096, false));
    }
    guest.publish();
    let next = guest.queue.take().unwrap().stop().unwrap();
    let mut done = 0;
    while guest.driver.used().is_some() {
        done += 1;
    }
    assert_eq!(done, next, "what was taken has been given back");
    let reactor = guest.reactor.clone();
    guest.resume(&device, &reactor, next);
    let mut seen = u32::from(done);
    guest.wait(|driver| {
        while driver.used().is_some() {
            seen += 1;
        }
        seen == 32
    });
}

#[test]
fn new_memory_and_a_new_call_descriptor_while_running() {
    let device = device(memory(), 1, false);
    let mut guest = Guest::new(&device, true);
    assert_eq!(guest.write(0, &[5; 512]), 0);
    // Map the same memory in another table, as a front-end does when it adds a region.
    let queue = guest.queue.as_ref().unwrap();
    queue.set_memory(guest.driver.table.clone()).unwrap();
    assert_eq!(guest.read(0, 512), (0, vec![5; 512]));
    let empty = Arc::new(memory::Table::new(Vec::new()).unwrap());
    assert!(guest.queue.as_ref().unwrap().set_memory(empty).is_err());
}

#[test]
fn truncated_memory_ends_the_session_and_nobody_else() {
    let disk = memory();
    let device = device(disk.clone(), 2, false);
    let reactor = Arc::new(Reactor::spawn("shared").unwrap());
    let mut bad = Guest::with(&device, reactor.clone(), true, !0);
    let mut good = Guest::with(&device, reactor, true, !0);
    assert_eq!(bad.write(0, &[1; 512]), 0);
    bad.put(0, IN, 0, (4096, true));
    let fd = bad.driver.mapping().fd().unwrap().try_clone_to_owned().unwrap();
    // Truncate the buffers; the rings stay.
    rustix::fs::ftruncate(&fd, BUFFERS).unwrap();
    bad.publish_blind();
    bad.wait_for_fault();
    assert!(bad.faults.lock().unwrap()[0].contains("truncated"));
    assert_eq!(good.write(0, &[1; 512]), 0);
    assert!(good.faults.lock().unwrap().is_empty());
}

#[test]
fn a_resized_disk_takes_requests_beyond_its_former_end() {
    let disk = memory();
    let device = device(disk.clone(), 1, false);
    let mut guest = Guest::new(&device, true);
    let last = SIZE / 512;
    assert_eq!(guest.read(last, 512).0, 1);
    disk.resize(Some(2 * SIZE)).unwrap();
    device.resized();
    assert_eq!(guest.read(last, 512).0, 0);
    let mut capacity = [0; 8];
    device.read_config(0, &mut capacity);
    assert_eq!(u64::from_le_bytes(capacity), 2 * last);
}

#[test]
fn a_driver_that_does_not_flush_gets_write_through() {
    for (mask, expected) in [(!0, 0), (!feature::FLUSH, 2)] {
        let disk = Gate::opened();
        let device = device(Arc::new(disk.clone()), 1, false);
        let mut guest = Guest::with(&device, reactor(), true, mask);
        assert_eq!(guest.write(0, &[1; 512]), 0);
        assert_eq!(guest.segment(WRITE_ZEROES, 0, 8, 0), 0);
        let durable = disk.kinds().into_iter().filter(|kind| {
            let zeroes = matches!(kind, RequestKind::WriteZeroes { durable: true, .. });
            zeroes || matches!(kind, RequestKind::Write { durable: true })
        });
        assert_eq!(durable.count(), expected);
    }
}

#[test]
fn a_guest_that_takes_no_calls_holds_nobody_up() {
    let device = device(memory(), 1, false);
    let reactor = Arc::new(Reactor::spawn("shared").unwrap());
    let mut bad = Guest::with(&device, reactor.clone(), true, !0);
    let mut good = Guest::with(&device, reactor, true, !0);
    bad.fill_call();
    for round in 0..300 {
        bad.put(0, IN, 0, (512, true));
        // Each completion asks for a call.
        bad.driver.set_used_event(round);
        bad.publish_blind();
        bad.wait_without_call();
    }
    assert_eq!(good.write(0, &[1; 512]), 0);
    bad.queue.take().unwrap().stop().unwrap();
    assert_eq!(good.read(0, 512).1, [1; 512]);
}

#[test]
fn a_disk_that_is_out_of_something_holds_the_queue_and_loses_nothing() {
    let device = device(Arc::new(Gate::narrow()), 1, false);
    let mut guest = Guest::new(&device, true);
    for slot in 0..32 {
        guest.put(slot, IN, u64::from(slot), (512, true));
    }
    guest.publish();
    let mut seen = 0;
    guest.wait(|driver| {
        while driver.used().is_some() {
            seen += 1;
        }
        seen == 32
    });
    for slot in 0..32 {
        guest.put(slot, IN, u64::from(slot), (512, true));
    }
    guest.publish();
    let next = guest.queue.take().unwrap().stop().unwrap();
    let mut done = 32;
    while guest.driver.used().is_some() {
        done += 1;
    }
    assert_eq!(done, next, "a held request ends before the queue stands still");
}

#[test]
fn requests_that_have_ended_are_published_before_a_batch_is_submitted() {
    let gate = Gate::with_room_blocking_at(3, 2);
    let device = device(Arc::new(gate.clone()), 1, false);
    let mut guest = Guest::new(&device, true);
    (0..16).for_each(|slot| guest.put(slot, IN, slot.into(), (512, true)));
    guest.publish();
    gate.wait_taken(3);
    // The turn ends at the fourth request, which has no room. The next turn collects the first
    // three, and does not end before the request at sector 5 is submitted.
    gate.block_at(5);
    guest.wait(|driver| driver.used_idx() == 3);
    gate.open();
    guest.wait(|driver| driver.used_idx() == 16);
}

#[test]
fn requests_of_a_long_turn_are_published_in_steps() {
    let gate = Gate::blocking_at(13);
    let device = device(Arc::new(gate.clone()), 1, false);
    let mut guest = Guest::new(&device, true);
    (0..16).for_each(|slot| guest.put(slot, IN, slot.into(), (512, true)));
    guest.publish();
    // The turn does not end before the request at sector 13 does.
    guest.wait(|driver| driver.used_idx() == 12);
    gate.open();
    guest.wait(|driver| driver.used_idx() == 16);
}

//! Tests of requests that a dead process left in flight, as its successor finds them.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::guest::*;
use blk::BlkDevice;
use disk::{Disk, MemoryDisk};
use virtq::InflightRegion;

const SIZE: u64 = 8 << 20;
const REQUESTS: u16 = 32;

fn go_on(guest: &mut Guest, device: &BlkDevice) {
    let reactor = guest.reactor.clone();
    // A front-end that lost its backend knows only the used index.
    guest.resume(device, &reactor, guest.driver.used_idx());
}

fn completions(guest: &mut Guest, count: u16) {
    for _ in 0..count {
        let (head, written) = guest.used();
        assert_eq!((guest.status(head as u16 / 3), written), (0, 513));
    }
    assert_eq!(guest.driver.used(), None, "each once");
}

#[test]
fn what_a_former_life_left_is_served_first_and_once() {
    let mut guest = Guest::left_behind(REQUESTS);
    // Requests that came while no process served.
    for slot in REQUESTS..REQUESTS + 4 {
        guest.put(slot, IN, u64::from(slot), (512, true));
    }
    guest.publish();
    let narrow = Gate::narrow();
    let device = device(Arc::new(narrow.clone()), 1, false);
    go_on(&mut guest, &device);
    completions(&mut guest, REQUESTS + 4);
    // The order holds although the disk takes one request at a time and blocks the queue.
    assert_eq!(narrow.sectors(), (0..u64::from(REQUESTS) + 4).collect::<Vec<_>>());
    assert_eq!(device.stats().resubmitted, u64::from(REQUESTS));
    assert_eq!(guest.queue.take().unwrap().stop().unwrap(), REQUESTS + 4);
}

#[test]
fn a_queue_that_is_stopped_serves_what_counts_as_taken() {
    let mut guest = Guest::left_behind(REQUESTS);
    guest.put(REQUESTS, IN, 0, (512, true));
    guest.publish();
    let device = device(Arc::new(Gate::narrow()), 1, false);
    go_on(&mut guest, &device);
    let next = guest.queue.take().unwrap().stop().unwrap();
    assert!(next >= REQUESTS, "{next}");
    completions(&mut guest, next);
    // A successor finds nothing in flight and serves the rest.
    let memory: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SIZE, 512, false).unwrap());
    let device = crate::guest::device(memory, 1, false);
    go_on(&mut guest, &device);
    completions(&mut guest, REQUESTS + 1 - next);
    assert_eq!(device.stats().resubmitted, 0);
}

#[test]
fn a_call_that_the_former_life_did_not_send_is_made_up_for() {
    let region = InflightRegion::create(1, 128).unwrap();
    let memory: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SIZE, 512, false).unwrap());
    let device = device(memory, 1, false);
    let mut guest = Guest::recorded(&device, reactor(), true, !0, region.queue(0));
    assert_eq!(device.stats().calls, 0, "a fresh ring needs none");
    assert_eq!(guest.write(0, &[7; 512]), 0);
    guest.queue.take().unwrap().stop().unwrap();
    let before = device.stats().calls;
    go_on(&mut guest, &device);
    assert_eq!(device.stats().calls, before + 1);
}

#[test]
fn a_region_that_contradicts_the_ring_is_refused() {
    let mut guest = Guest::left_behind(REQUESTS);
    // The driver starts over, while its front-end preserves the region.
    guest.driver.jump(0);
    let memory: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SIZE, 512, false).unwrap());
    let device = device(memory, 1, false);
    let reactor = guest.reactor.clone();
    let refused = guest.try_resume(&device, &reactor, 0).unwrap_err();
    let cause = std::error::Error::source(&refused).and_then(|cause| cause.source()).unwrap();
    assert!(cause.to_string().contains("records 32 requests, the ring has 0 open"), "{cause}");
}

#[test]
fn a_region_that_its_owner_truncates_ends_the_session() {
    let fd = rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let size = InflightRegion::create(1, 128).unwrap().mmap_size();
    rustix::fs::ftruncate(&fd, size).unwrap();
    let region = InflightRegion::adopt(fd.as_fd(), size, 0, 1, 128).unwrap();
    let memory: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SIZE, 512, false).unwrap());
    let device = device(memory, 1, false);
    let mut guest = Guest::recorded(&device, reactor(), true, !0, region.queue(0));
    assert_eq!(guest.write(0, &[7; 512]), 0);
    rustix::fs::ftruncate(&fd, 0).unwrap();
    guest.put(0, IN, 0, (512, true));
    guest.publish_blind();
    guest.wait_for_fault();
}

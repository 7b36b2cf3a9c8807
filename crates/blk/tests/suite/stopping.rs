//! Tests of queues that stop while storage does not finish their requests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::guest::*;
use blk::{DrainOutcome, QuiesceOutcome};
use disk::{Disk, FileDisk, FileOptions, OnFull};
use virtq::InflightRegion;

/// A small file system that is full except for a hole in a file.
struct Full {
    dir: tempfile::TempDir,
}

impl Full {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "ringway-test"]).arg(dir.path());
        assert!(mount.status().unwrap().success(), "mounting a tmpfs needs root");
        std::fs::File::create(dir.path().join("image")).unwrap().set_len(1 << 20).unwrap();
        std::fs::write(dir.path().join("ballast"), vec![1; 1 << 20]).ok();
        Self { dir }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        let path = self.dir.path().join("image");
        Arc::new(FileDisk::open(options(&path)).unwrap())
    }

    fn make_room(&self) {
        std::fs::remove_file(self.dir.path().join("ballast")).unwrap();
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg("-l").arg(self.dir.path()).status().ok();
    }
}

fn options(path: &Path) -> FileOptions {
    FileOptions {
        path: path.into(),
        read_only: false,
        direct: false,
        block_size: Some(512),
        on_full: OnFull::Wait,
    }
}

/// Puts writes that wait for space.
fn put_writes(guest: &mut Guest, disk: &Arc<dyn Disk>) {
    for slot in 0..3 {
        guest.driver.write(Guest::data_at(slot), &[slot as u8 + 1; 4096]);
        guest.put(slot, OUT, u64::from(slot) * 8, (4096, false));
    }
    guest.publish();
    let until = Instant::now() + SOON;
    while disk.stalled() < 3 {
        assert!(Instant::now() < until, "they do not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_waits_for_room_stays_on_record_at_a_stop_and_goes_on_at_the_next_start() {
    let full = Full::new();
    let disk = full.disk();
    let device = device(disk.clone(), 1, false);
    let region = InflightRegion::create(1, 128).unwrap();
    let mut guest = Guest::recorded(&device, reactor(), true, !0, region.queue(0));
    put_writes(&mut guest, &disk);
    // Repeated stops lose nothing and fail nothing.
    for _ in 0..3 {
        assert_eq!(guest.queue.take().unwrap().stop().unwrap(), 3);
        assert_eq!((guest.driver.used_idx(), disk.stalled()), (0, 0));
        let next = guest.reactor.clone();
        guest.resume(&device, &next, 3);
    }
    full.make_room();
    for _ in 0..3 {
        let (head, _) = guest.used();
        assert_eq!(guest.status(head as u16 / 3), 0);
    }
    for slot in 0..3u8 {
        assert_eq!(guest.read(u64::from(slot) * 8, 4096).1, [slot + 1; 4096]);
    }
}

#[test]
fn what_waits_for_room_fails_at_a_stop_that_nobody_records() {
    let full = Full::new();
    let disk = full.disk();
    let device = device(disk.clone(), 1, false);
    let mut guest = Guest::new(&device, true);
    put_writes(&mut guest, &disk);
    assert_eq!(guest.queue.take().unwrap().stop().unwrap(), 3);
    for _ in 0..3 {
        let (head, _) = guest.used();
        assert_eq!(guest.status(head as u16 / 3), 1);
    }
}

#[test]
fn a_quiet_end_that_takes_too_long_is_none() {
    let full = Full::new();
    let disk = full.disk();
    let device = device(disk.clone(), 1, false);
    // Without an in-flight region, a stop would fail waiting requests.
    let mut guest = Guest::new(&device, true);
    put_writes(&mut guest, &disk);
    let soon = || Instant::now() + Duration::from_millis(50);
    for _ in 0..3 {
        let ending = guest.queue.take().unwrap().begin_quiesce().unwrap();
        let QuiesceOutcome::Resumed(queue) = ending.wait_or_resume(soon()).unwrap() else {
            panic!("they are written without room");
        };
        guest.queue = Some(queue);
        assert_eq!(guest.driver.used_idx(), 0);
        // Each attempt interrupts their wait for a moment.
        let until = Instant::now() + SOON;
        while disk.stalled() != 3 {
            assert!(Instant::now() < until, "{} of 3 wait", disk.stalled());
            std::thread::yield_now();
        }
    }
    // Requests that come meanwhile are served after the resume.
    let ending = guest.queue.take().unwrap().begin_quiesce().unwrap();
    guest.put(3, GET_ID, 0, (20, true));
    guest.publish();
    let ended = ending.wait_or_resume(soon()).unwrap();
    let QuiesceOutcome::Resumed(queue) = ended else { panic!("{ended:?}") };
    guest.queue = Some(queue);
    assert_eq!((guest.used().0, guest.status(3)), (9, 0));
    full.make_room();
    for _ in 0..3 {
        let (head, _) = guest.used();
        assert_eq!(guest.status(head as u16 / 3), 0);
    }
    // With nothing in flight the queue drains at once, and a successor continues.
    let ending = guest.queue.take().unwrap().begin_quiesce().unwrap();
    let far = Instant::now() + Duration::from_secs(60);
    assert!(matches!(ending.wait_or_resume(far).unwrap(), QuiesceOutcome::Drained(4)));
    let next = reactor();
    guest.resume(&device, &next, 4);
    assert_eq!(guest.read(8, 4096).1, [2; 4096]);
}

#[test]
fn what_waits_for_room_is_handed_over_on_record() {
    for shared in [true, false] {
        let full = Full::new();
        let disk = full.disk();
        let device = device(disk.clone(), 1, false);
        let region = match shared {
            true => InflightRegion::create(1, 128).unwrap(),
            false => InflightRegion::create_unshared(1, 128).unwrap(),
        };
        // The front-end has a region, or gets one at the first handover.
        let before = region.queue(0).filter(|_| shared);
        let mut guest = Guest::recorded(&device, reactor(), true, !0, before);
        put_writes(&mut guest, &disk);
        guest.record_in(region.queue(0));
        let far = || Instant::now() + Duration::from_secs(60);
        let next = guest.reactor.clone();
        for _ in 0..3 {
            let ending = guest.queue.take().unwrap().begin_handover(region.queue(0)).unwrap();
            let ended = ending.wait_or_resume(far()).unwrap();
            assert!(matches!(ended, QuiesceOutcome::Drained(3)), "{ended:?}");
            assert_eq!((guest.driver.used_idx(), disk.stalled()), (0, 0));
            assert!(region.has_records());
            guest.resume(&device, &next, 3);
        }
        // A later stop is one with or without a record, as before the handover.
        assert_eq!(guest.queue.take().unwrap().stop().unwrap(), 3);
        assert_eq!(region.has_records(), shared);
        assert_eq!(guest.driver.used_idx(), if shared { 0 } else { 3 });
        full.make_room();
        guest.resume(&device, &next, 3);
        for _ in 0..3 {
            let (head, _) = guest.used();
            assert_eq!(guest.status(head as u16 / 3), u8::from(!shared));
        }
        // With nothing in flight, nothing is recorded.
        guest.put(3, GET_ID, 0, (20, true));
        guest.publish();
        assert_eq!((guest.used().0, guest.status(3)), (9, 0));
        let ending = guest.queue.take().unwrap().begin_handover(region.queue(0)).unwrap();
        assert!(matches!(ending.wait_or_resume(far()).unwrap(), QuiesceOutcome::Drained(4)));
        assert!(!region.has_records());
    }
}

#[test]
fn without_any_record_nothing_is_handed_over() {
    let full = Full::new();
    let disk = full.disk();
    let device = device(disk.clone(), 1, false);
    let mut guest = Guest::new(&device, true);
    put_writes(&mut guest, &disk);
    let ending = guest.queue.take().unwrap().begin_handover(None).unwrap();
    let ended = ending.wait_or_resume(Instant::now() + Duration::from_millis(50)).unwrap();
    let QuiesceOutcome::Resumed(queue) = ended else { panic!("{ended:?}") };
    guest.queue = Some(queue);
    full.make_room();
    for _ in 0..3 {
        let (head, _) = guest.used();
        assert_eq!(guest.status(head as u16 / 3), 0);
    }
}

#[test]
fn a_queue_that_was_given_up_touches_its_ring_no_more() {
    let hanging = Gate::closed();
    let device = device(Arc::new(hanging.clone()), 1, false);
    let region = InflightRegion::create(1, 128).unwrap();
    let mut guest = Guest::recorded(&device, reactor(), true, !0, region.queue(0));
    for slot in 0..3 {
        guest.put(slot, IN, u64::from(slot), (512, true));
    }
    guest.publish();
    hanging.wait_for(&guest.reactor, 3);
    let draining_queue = guest.queue.take().unwrap().begin_stop().unwrap();
    let ended = draining_queue.wait_until(Instant::now() + Duration::from_millis(50)).unwrap();
    let DrainOutcome::Stuck(abandoned_queue) = ended else { panic!("{ended:?}") };
    assert_eq!(abandoned_queue.requests(), 3);
    assert!(hanging.abandoned(), "the disk would go on with its steps");
    // The storage answers: the queue ends and reports nothing.
    hanging.open();
    abandoned_queue.wait();
    assert_eq!(guest.driver.used_idx(), 0);
    assert!((0..3).all(|slot| guest.status(slot) == 0xff), "the guest's memory is left alone");
    // A successor finds all requests in the in-flight region.
    let next = reactor();
    guest.resume(&device, &next, 0);
    for _ in 0..3 {
        let (head, _) = guest.used();
        assert_eq!(guest.status(head as u16 / 3), 0);
    }
}

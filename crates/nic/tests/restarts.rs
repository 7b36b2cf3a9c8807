//! Rings that are stopped and go on, and memory that changes.
#![allow(clippy::unwrap_used)]

mod guest;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guest::*;
use net::Reason;
use net::port::{Pace, Policy, PortId, Rate};
use nic::Life;

#[test]
fn a_ring_goes_on_at_its_used_index() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(3, 100);
    let small = plain(EVERYBODY, 1, 60);
    a.send(NOTHING, &small);
    assert_eq!(b.rx.receive().frame, small);
    // The other two buffers were popped with that.
    let frame = plain(EVERYBODY, 1, 500);
    assert_eq!((b.rx.stop(), b.rx.driver.used_idx()), (1, 1));
    a.send(NOTHING, &frame);
    assert_eq!(lan.counts(2).missed(Reason::ReceiverClosed), 1);
    // Whatever the front-end counts: completed is what the used index says.
    b.rx.start_at(&lan, 0, b.life, 3);
    b.rx.post(1, 600);
    a.send(NOTHING, &frame);
    let got = b.rx.receive();
    assert_eq!((got.buffers, got.frame), (3, frame));
    assert_eq!(a.tx.stop(), 3);
    a.tx.start_at(&lan, 0, a.life, 0);
    b.rx.post(1, 600);
    a.send(NOTHING, &small);
    assert_eq!(b.rx.receive().frame, small);
}

#[test]
fn new_memory_is_used_from_then_on() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(3, 100);
    let small = plain(EVERYBODY, 1, 60);
    a.send(NOTHING, &small);
    assert_eq!(b.rx.receive().frame, small);
    // Two buffers more were popped with that, and are popped again.
    for ring in [&a.tx, &b.rx] {
        ring.queue.as_ref().unwrap().set_memory(ring.driver.table.clone()).unwrap();
    }
    b.rx.post(1, 600);
    let frame = plain(EVERYBODY, 1, 500);
    a.send(NOTHING, &frame);
    let got = b.rx.receive();
    assert_eq!((got.buffers, got.frame), (3, frame));
    // A table without the ring ends it.
    let queue = b.rx.queue.as_ref().unwrap();
    assert!(queue.set_memory(Arc::default()).is_err());
    a.send(NOTHING, &plain(EVERYBODY, 1, 60));
    assert_eq!(lan.counts(2).missed(Reason::ReceiverClosed), 1);
}

#[test]
fn a_port_that_is_gone_gets_nothing() {
    let lan = Lan::new(2);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut b = Guest::new(&lan, 2, 1, all());
    b.rx.post(4, 2048);
    a.send(NOTHING, &plain(EVERYBODY, 1, 60));
    b.rx.receive();
    // Without waiting, as when a session ends by itself.
    drop((b.rx.queue.take(), b.tx.queue.take()));
    lan.fabric.remove_port(PortId(2)).unwrap();
    a.send(NOTHING, &plain(EVERYBODY, 1, 60));
    assert_eq!(lan.counts(1).refused(Reason::NoReceiver), 1);
    lan.settle();
    assert_eq!(b.rx.got(), None);
}

/// Tells the load to end, also when an assertion has failed.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends until it is told to end.
fn load(lan: &Lan, done: &AtomicBool) {
    let mut a = Guest::new(lan, 1, 0, all());
    let frame = tcp(EVERYBODY, 1, &data(3000));
    while !done.load(Ordering::Relaxed) {
        for _ in 0..16 {
            a.tx.put(&[&cut(1000)[..], &frame].concat(), &[12]);
        }
        a.tx.publish();
        a.tx.left(16);
    }
}

#[test]
fn a_receiver_is_reset_under_load() {
    let lan = Lan::new(2);
    // One that takes large frames whole, and one that takes them in pieces.
    for (port, bits, bytes) in [(2, all(), DATA_AT + 3000), (3, BARE, DATA_AT + 1000)] {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| load(&lan, &done));
            let _end = End(&done);
            let mut b = Guest::new(&lan, port, 1, bits);
            b.rx.post(RING, 4096);
            for _ in 0..50 {
                let mut taken = b.rx.receive().buffers;
                let next = b.rx.stop();
                assert_eq!(next, b.rx.driver.used_idx());
                while let Some(got) = b.rx.got() {
                    assert_eq!(got.frame.len(), bytes);
                    taken += got.buffers;
                }
                b.rx.post(taken, 4096);
                b.life = Life::driver(PortId(port), b.features);
                b.rx.start_at(&lan, 1, b.life, next);
            }
        });
    }
}

/// A policy with a cap in bytes a second.
fn capped(per_second: u64, burst: u64) -> Policy {
    let pace = Pace::new(Rate { per_second, burst }, reactor::clock_ns());
    Policy { rate: Some(Arc::new(pace)), ..Policy::open(LAN) }
}

#[test]
fn a_capped_port_waits_and_loses_nothing() {
    let lan = Lan::new(1);
    let mut a = Guest::with(&lan, 1, 0, all(), &capped(100_000, 1000));
    let mut b = Guest::new(&lan, 2, 0, all());
    b.rx.post(RING, 2048);
    let frame = plain(EVERYBODY, 1, 1000);
    let began = Instant::now();
    for _ in 0..20 {
        a.tx.put(&[&NOTHING[..], &frame].concat(), &[]);
    }
    a.tx.publish();
    a.tx.left(20);
    // 20 kB at 100 kB/s, of which a burst and what is larger than it pass at once.
    assert!(began.elapsed() >= Duration::from_millis(170), "{:?}", began.elapsed());
    for _ in 0..20 {
        assert_eq!(b.rx.receive().frame, frame);
    }
}

#[test]
fn what_a_cap_holds_passes_when_there_is_another_one() {
    const CAPS: u16 = 20;
    let lan = Lan::new(1);
    // One frame passes at once, and the next one 1,000 s later.
    let mut a = Guest::with(&lan, 1, 0, all(), &capped(1, 1));
    for _ in 0..CAPS + 2 {
        a.tx.put(&[&NOTHING[..], &plain(EVERYBODY, 1, 1000)].concat(), &[]);
    }
    a.tx.publish();
    a.tx.left(1);
    let began = Instant::now();
    for _ in 0..CAPS {
        lan.fabric.set_port(PortId(1), &capped(1, 1)).unwrap();
        a.tx.left(1);
    }
    // By itself the queue looks once a second.
    assert!(
        began.elapsed() < Duration::from_secs(1) * u32::from(CAPS) / 2,
        "{:?}",
        began.elapsed()
    );
    lan.fabric.set_port(PortId(1), &Policy::open(LAN)).unwrap();
    a.tx.left(1);
}

#[test]
fn what_a_cap_holds_is_not_lost_by_a_stop() {
    let lan = Lan::new(1);
    // The first frame passes at once, and the next one 1,000 s later.
    let mut a = Guest::with(&lan, 1, 0, all(), &capped(1, 1));
    let mut b = Guest::new(&lan, 2, 0, all());
    b.rx.post(8, 2048);
    let frame = plain(EVERYBODY, 1, 1000);
    for _ in 0..3 {
        a.tx.put(&[&NOTHING[..], &frame].concat(), &[]);
    }
    a.tx.publish();
    a.tx.left(1);
    assert_eq!(b.rx.receive().frame, frame);
    let queue = a.tx.queue.as_ref().unwrap();
    queue.set_memory(a.tx.driver.table.clone()).unwrap();
    assert_eq!((a.tx.stop(), a.tx.driver.used_idx()), (1, 1));
    lan.fabric.set_port(PortId(1), &Policy::open(LAN)).unwrap();
    a.tx.start_at(&lan, 0, a.life, 3);
    a.tx.left(2);
    for _ in 0..2 {
        assert_eq!(b.rx.receive().frame, frame);
    }
}

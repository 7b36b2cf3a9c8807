//! Tests of rings that stop and start again, and of memory that changes.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::guest::*;
use net::Reason;
use net::port::{PortId, PortPolicy, Rate, RateLimiter};
use nic::PortIncarnation;

#[test]
fn a_ring_goes_on_at_its_used_index() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(3, 100);
    let small = plain(EVERYBODY, 1, 60);
    a.send(NOTHING, &small);
    assert_eq!(b.rx.receive().frame, small);
    // The other two buffers were popped together with that one.
    let frame = plain(EVERYBODY, 1, 500);
    assert_eq!((b.rx.stop(), b.rx.driver.used_idx()), (1, 1));
    a.send(NOTHING, &frame);
    assert_eq!(lan.counts(2).missed(Reason::ReceiverClosed), 1);
    // The front-end's index does not matter: the used index says what has completed.
    b.rx.start_at(&lan, 0, b.port_incarnation, 3);
    b.rx.post(1, 600);
    a.send(NOTHING, &frame);
    let got = b.rx.receive();
    assert_eq!((got.buffers, got.frame), (3, frame));
    assert_eq!(a.tx.stop(), 3);
    a.tx.start_at(&lan, 0, a.port_incarnation, 0);
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
    // Two more buffers were popped together with that one, and are popped again.
    for ring in [&a.tx, &b.rx] {
        ring.queue.as_ref().unwrap().set_memory(ring.driver.table.clone()).unwrap();
    }
    b.rx.post(1, 600);
    let frame = plain(EVERYBODY, 1, 500);
    a.send(NOTHING, &frame);
    let got = b.rx.receive();
    assert_eq!((got.buffers, got.frame), (3, frame));
    // A table without the ring fails the queue.
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

/// Stops the load, even if an assertion has failed.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends until it is stopped.
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
    // One guest that accepts large frames whole, and one that accepts them in segments.
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
                b.port_incarnation = PortIncarnation::driver(PortId(port), b.features);
                b.rx.start_at(&lan, 1, b.port_incarnation, next);
            }
        });
    }
}

/// Returns a frame with a number in it.
fn numbered(number: u32) -> Vec<u8> {
    [&plain(EVERYBODY, 1, 60)[..], &number.to_le_bytes()].concat()
}

/// Consumes the received frames, which begin at number `next`; returns the next expected number.
fn take_numbered(receiver: &mut Guest, mut next: u32) -> u32 {
    while let Some(got) = receiver.rx.got() {
        assert_eq!(got.frame, numbered(next));
        receiver.rx.post(got.buffers, 2048);
        next += 1;
    }
    next
}

#[test]
fn a_sender_is_reset_under_load() {
    const BATCH: u32 = 16;
    for reactors in [1, 2] {
        let lan = Lan::new(reactors);
        let mut a = Guest::new(&lan, 1, 0, all());
        let mut b = Guest::new(&lan, 2, reactors - 1, all());
        b.rx.post(RING, 2048);
        let mut received = 0;
        for round in 0..200 {
            for nth in 0..BATCH {
                a.tx.put(&[&NOTHING[..], &numbered(round * BATCH + nth)].concat(), &[12]);
            }
            a.tx.publish();
            // The reset meets a ring with this many completed chains.
            let done = (round % BATCH) as u16;
            a.tx.left(done);
            let next = a.tx.stop();
            assert_eq!(next, a.tx.driver.used_idx());
            a.port_incarnation = PortIncarnation::driver(PortId(1), a.features);
            a.tx.start_at(&lan, 0, a.port_incarnation, next);
            a.tx.left(BATCH as u16 - done);
            // The other reactor may not run for a while; the receiver has room for so many frames.
            if (round + 2) * BATCH - received > RING.into() {
                lan.settle();
            }
            received = take_numbered(&mut b, received);
        }
        // Frames in flight to the other reactor.
        lan.settle();
        assert_eq!(take_numbered(&mut b, received), 200 * BATCH, "{reactors} reactors");
    }
}

/// The process that served both rings before died at used index 0, before it called: its successor
/// calls a sleeping driver.
#[test]
fn indices_go_round() {
    const BATCH: u32 = 32;
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(RING, 2048);
    let mut received = 0;
    for first in (0..(1 << 16) + 2 * BATCH).step_by(BATCH as usize) {
        for number in first..first + BATCH {
            a.tx.put(&[&NOTHING[..], &numbered(number)].concat(), &[12]);
        }
        // The drivers are about to sleep.
        assert!(!a.tx.driver.arm() && !b.rx.driver.arm());
        a.tx.publish();
        a.tx.left(BATCH as u16);
        received = take_numbered(&mut b, received);
        let ends = [a.tx.driver.used_idx(), b.rx.driver.used_idx()];
        assert_eq!((received, ends), (first + BATCH, [received as u16; 2]));
        if received == 1 << 16 {
            assert_eq!((a.tx.stop(), b.rx.stop()), (0, 0));
            let before = [a.tx.calls(), b.rx.calls()];
            a.tx.start_at(&lan, 0, a.port_incarnation, 0);
            b.rx.start_at(&lan, 0, b.port_incarnation, 0);
            lan.settle();
            let more = [a.tx.calls() - before[0], b.rx.calls() - before[1]];
            assert_eq!(more, [1, 1]);
        }
    }
}

/// Returns a policy with a limit in bytes a second.
fn capped(per_second: u64, burst: u64) -> PortPolicy {
    let rate_limiter = RateLimiter::new(Rate { per_second, burst }, reactor::clock_ns());
    PortPolicy { rate: Some(Arc::new(rate_limiter)), ..PortPolicy::open(LAN) }
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
    // 20 kB at 100 kB/s, of which a burst and the excess of one frame pass at once.
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
    // By itself the queue checks once a second.
    assert!(
        began.elapsed() < Duration::from_secs(1) * u32::from(CAPS) / 2,
        "{:?}",
        began.elapsed()
    );
    lan.fabric.set_port(PortId(1), &PortPolicy::open(LAN)).unwrap();
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
    lan.fabric.set_port(PortId(1), &PortPolicy::open(LAN)).unwrap();
    a.tx.start_at(&lan, 0, a.port_incarnation, 3);
    a.tx.left(2);
    for _ in 0..2 {
        assert_eq!(b.rx.receive().frame, frame);
    }
}

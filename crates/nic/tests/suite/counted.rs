//! Tests of the counters of a port and its queues, and of its top flows.
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::guest::*;
use net::Reason;
use net::port::{PortId, PortPolicy, Rate, RateLimiter};
use nic::PairStats;

fn queue(lan: &Lan, port: u16, pair: usize) -> PairStats {
    lan.fabric.queues(PortId(port)).swap_remove(pair)
}

#[test]
fn a_queue_has_its_frames_sizes_losses_and_times() {
    // Both paths of a frame: on one reactor, and from one to another.
    for reactor in [0, 1] {
        let lan = Lan::new(2);
        let mut a = Guest::new(&lan, 1, 0, all());
        let mut b = Guest::new(&lan, 2, reactor, all());
        assert_eq!(lan.fabric.queues(PortId(2))[0].residence.count(), 0);
        b.rx.post(4, 2048);
        for bytes in [60, 64, 100, 1500] {
            a.send(NOTHING, &plain(EVERYBODY, 1, bytes));
            assert_eq!(b.rx.receive().frame.len(), bytes);
        }
        // The guest has no buffers any more, so this frame waits; the next one is dropped at once.
        a.send(NOTHING, &plain(EVERYBODY, 1, 60));
        a.send(NOTHING, &plain(EVERYBODY, EVERYBODY, 60));
        lan.settle();
        lan.settle();
        let (sent, got) = (queue(&lan, 1, 0), queue(&lan, 2, 0));
        assert_eq!((sent.sent.frames, sent.sent.bytes), (6, 60 + 64 + 100 + 1500 + 60 + 60));
        assert_eq!(sent.sent.sizes[..6], [3, 2, 0, 0, 0, 1]);
        assert_eq!(sent.sent.drops(Reason::BadSource), 1);
        assert_eq!((got.got.frames, got.got.bytes), (4, 60 + 64 + 100 + 1500));
        assert_eq!(got.got.sizes[..6], [1, 2, 0, 0, 0, 1]);
        assert_eq!(Reason::ALL.iter().map(|reason| got.got.drops(*reason)).sum::<u64>(), 0);
        assert_eq!((got.sent.frames, sent.got.frames), (0, 0));
        // Every received frame has a residence time, and no other one does.
        assert_eq!(got.residence.count(), 4);
        assert!(got.residence.sum_ns() > 0 && got.residence.summary().max_ns < 20_000_000_000);
        assert!(got.served && sent.served);
        b.rx.stop();
        let after = queue(&lan, 2, 0);
        assert!(!after.served);
        assert_eq!((after.got.frames, after.got.drops(Reason::ReceiverClosed)), (4, 1));
        assert_eq!(lan.counts(2).missed(Reason::ReceiverClosed), 1);
        // The counters survive a restart of the queue.
        let port_incarnation = b.port_incarnation;
        b.rx.start_at(&lan, reactor, port_incarnation, 4);
        assert_eq!(queue(&lan, 2, 0).got.frames, 4);
    }
}

#[test]
fn large_segments_count_as_they_are_handed_on() {
    let lan = Lan::new(1);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut whole = Guest::new(&lan, 2, 0, all());
    let mut cutting = Guest::new(&lan, 3, 0, BARE);
    whole.rx.post(RING, 2048);
    cutting.rx.post(RING, 2048);
    let frame = tcp(EVERYBODY, 1, &data(14_480));
    a.send(cut(1448), &frame);
    assert_eq!(whole.rx.receive().frame, frame);
    (0..10).for_each(|_| _ = cutting.rx.receive());
    let bucket_of_8_kib = 8;
    assert_eq!(queue(&lan, 1, 0).sent.sizes[bucket_of_8_kib], 1);
    assert_eq!(queue(&lan, 2, 0).got.sizes[bucket_of_8_kib], 1);
    assert_eq!(queue(&lan, 3, 0).got.sizes[5], 10, "segments of 1,502 bytes");
}

#[test]
fn the_largest_flows_have_names() {
    let lan = Lan::new(2);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut b = Guest::new(&lan, 2, 1, all());
    b.rx.post(1, 2048);
    b.send(NOTHING, &plain(EVERYBODY, 2, 60));
    lan.settle();
    lan.settle();
    // One flow has most of the traffic. No port receives it: it counts as sent.
    for number in 0..400u16 {
        let ports = if number % 4 == 0 { [2000 + number, 9] } else { [4000, 5201] };
        a.send(NOTHING, &udp(2, 1, ports, &[0; 1000]));
    }
    let all = lan.fabric.top_flows();
    let (_, flows, total) = all.into_iter().find(|(port, ..)| *port == PortId(1)).unwrap();
    let first = flows[0];
    let ends = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    assert_eq!(first.key.ends, Some((ends[0].into(), ends[1].into())));
    assert_eq!((first.key.ports, first.key.to), (Some((4000, 5201)), Some(PortId(2))));
    assert!(first.bytes * 2 > total, "{} of {total}", first.bytes);
}

#[test]
fn a_cap_tells_how_long_it_held() {
    let lan = Lan::new(1);
    let rate_limiter = RateLimiter::new(Rate { per_second: 20_000, burst: 1 }, reactor::clock_ns());
    let policy = PortPolicy { rate: Some(Arc::new(rate_limiter)), ..PortPolicy::open(LAN) };
    let mut a = Guest::with(&lan, 1, 0, all(), &policy);
    for _ in 0..3 {
        a.tx.put(&[&NOTHING[..], &plain(EVERYBODY, 1, 1000)].concat(), &[]);
    }
    a.tx.publish();
    a.tx.left(3);
    // The first passes; each of the others waits for about 50 ms.
    let state = queue(&lan, 1, 0);
    assert_eq!((state.held, state.held_since_ns), (2, None));
    assert!(state.held_ns > 50_000_000, "{}", state.held_ns);
}

//! Tests of frames between guests on different reactors.
#![allow(clippy::unwrap_used)]

use std::sync::mpsc;

use crate::guest::*;
use net::Reason;
use net::port::{PortId, PortPolicy};
use net::switch::{NetworkId, NetworkPolicy};

#[test]
fn frames_cross_in_order_and_whole() {
    let lan = Lan::new(2);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut b = Guest::new(&lan, 2, 1, all());
    b.rx.post(RING, 40_000);
    // Several times round the link.
    for round in 0..40 {
        let bytes = |at: usize| 3000 + (round * 131 + at * 977) % 30_000;
        let sent: Vec<_> = (0..24).map(|at| tcp(EVERYBODY, 1, &data(bytes(at)))).collect();
        for frame in &sent {
            a.tx.put(&[&cut(1448)[..], frame].concat(), &[12, 70]);
        }
        a.tx.publish();
        a.tx.left(24);
        for frame in &sent {
            let got = b.rx.receive();
            assert_eq!((&got.frame, &got.header[..10]), (frame, &cut(1448)[..10]));
        }
        b.rx.post(24, 40_000);
    }
    assert_eq!(lan.counts(2).got_frames, 40 * 24);
}

#[test]
fn what_one_reactor_learns_the_others_know() {
    let lan = Lan::new(3);
    let [mut a, mut b, mut c] =
        [1, 2, 3].map(|port| Guest::new(&lan, port, usize::from(port) - 1, all()));
    [&mut a, &mut b, &mut c].into_iter().for_each(|guest| guest.rx.post(8, 2048));
    // The station update for B reaches A's reactor before B's frame, in the same link.
    b.send(NOTHING, &plain(EVERYBODY, 2, 60));
    a.rx.receive();
    c.rx.receive();
    for _ in 0..4 {
        a.send(NOTHING, &plain(2, 1, 90));
        assert_eq!(b.rx.receive().frame, plain(2, 1, 90));
    }
    lan.settle();
    assert_eq!(c.rx.got(), None, "it was flooded");
    assert_eq!(lan.counts(3).got_frames, 1);
}

#[test]
fn a_port_whose_number_is_used_again_is_another_port() {
    let lan = Lan::new(2);
    let other = NetworkId(1);
    lan.fabric.set_network(other, NetworkPolicy::default()).unwrap();
    let mut b = Guest::new(&lan, 2, 1, all());
    b.rx.post(RING, 2048);
    let unplug = |mut guest: Guest| {
        guest.rx.stop();
        guest.tx.stop();
        lan.fabric.remove_port(PortId(1)).unwrap();
    };
    for round in 1..=20 {
        let mut a = Guest::new(&lan, 1, 0, all());
        // The station update is on its way to the other reactor while the port is removed.
        a.send(NOTHING, &plain(EVERYBODY, 1, 60));
        unplug(a);
        let mut a = Guest::with(&lan, 1, 0, all(), &PortPolicy::open(other));
        a.rx.post(8, 2048);
        b.send(NOTHING, &plain(1, 2, 60));
        lan.settle();
        assert_eq!(a.rx.got(), None, "it is in another network");
        assert_eq!(lan.counts(2).refused(Reason::NoReceiver), round);
        unplug(a);
    }
    lan.fabric.remove_network(other).unwrap();
    let refused = lan.fabric.set_port(PortId(1), &PortPolicy::open(other)).unwrap_err();
    assert!(refused.to_string().contains("no network 1"), "{refused}");
}

#[test]
fn a_busy_reactor_loses_its_own_frames_and_holds_up_nobody() {
    let lan = Lan::new(2);
    let [mut a, mut c] = [1, 3].map(|port| Guest::new(&lan, port, 0, all()));
    let mut b = Guest::new(&lan, 2, 1, all());
    b.rx.post(RING, 70_000);
    c.rx.post(RING, 70_000);
    let (goes_on, wait) = mpsc::channel::<()>();
    let (stands, seen) = mpsc::channel();
    let hold = move |_: &mut reactor::Context<'_>| {
        stands.send(()).unwrap();
        let _ = wait.recv();
    };
    lan.reactors[1].handle().send(hold).unwrap();
    seen.recv().unwrap();
    let large = tcp(EVERYBODY, 1, &data(65_000));
    for _ in 0..60 {
        a.send(cut(1448), &large);
        assert_eq!(c.rx.receive().frame, large);
    }
    let lost = lan.counts(2).missed(Reason::ReactorBusy);
    assert!((20..60).contains(&lost), "{lost} of 60 did not fit into 2 MiB");
    drop(goes_on);
    for _ in lost..60 {
        assert_eq!(b.rx.receive().frame, large);
    }
    a.send(NOTHING, &plain(EVERYBODY, 1, 60));
    assert_eq!(b.rx.receive().frame, plain(EVERYBODY, 1, 60));
}

#[test]
fn flows_are_spread_over_pairs_and_stay_there() {
    let lan = Lan::new(2);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut b = Guest::new(&lan, 2, 0, all());
    let mut second = Ring::new(2, true);
    second.start(&lan, 1, b.port_incarnation);
    [&mut b.rx, &mut second].into_iter().for_each(|ring| ring.post(RING, 2048));
    let flow = |number: u16| udp(EVERYBODY, 1, [1000 + number, 7], &[number as u8; 40]);
    let mut first = [0; 2];
    for _ in 0..2 {
        (0..64).for_each(|number| a.send(NOTHING, &flow(number)));
    }
    // The other reactor was woken before; after it has answered, it has processed all frames.
    lan.settle();
    lan.settle();
    for (ring, count) in [&mut b.rx, &mut second].into_iter().zip(&mut first) {
        let mut got = Vec::new();
        while let Some(one) = ring.got() {
            got.push(one.frame);
        }
        let half = got.len() / 2;
        assert_eq!(got[..half], got[half..], "the same flows, in the same order");
        *count = half;
    }
    assert_eq!(first.iter().sum::<usize>(), 64);
    assert!(first.iter().all(|count| (10..54).contains(count)), "{first:?}");
    // Frames without ports go to the first queue, and so do all when the second is stopped.
    a.send(NOTHING, &plain(EVERYBODY, 1, 60));
    b.rx.receive();
    second.stop();
    for number in 0..20 {
        a.send(NOTHING, &flow(number));
        assert_eq!(b.rx.receive().frame, flow(number));
    }
}

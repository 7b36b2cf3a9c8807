//! Tests of a switch that is quiesced, and of another one that continues it.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::guest::*;
use net::Mac;
use net::port::{PortId, PortPolicy};

/// Frames that a reactor is processing, or has in its link, when its senders stop.
const FRAMES: u16 = 32;

#[test]
fn what_has_left_its_sender_arrives() {
    let lan = Lan::new(2);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut b = Guest::new(&lan, 2, 1, all());
    b.send(NOTHING, &plain(EVERYBODY, 2, 60));
    for round in 0..20 {
        b.rx.post(FRAMES, 2048);
        for bytes in 0..FRAMES {
            let frame = plain(2, 1, 60 + usize::from(bytes));
            a.tx.put(&[&NOTHING[..], &frame].concat(), &[]);
        }
        a.tx.publish();
        assert!(a.tx.queue.as_ref().unwrap().sends() && !b.rx.queue.as_ref().unwrap().sends());
        let sent = a.tx.stop();
        lan.fabric.drain().unwrap();
        let got = b.rx.stop();
        // Both begin with the round's number of frames, as the rings count.
        assert_eq!(sent, got, "round {round}");
        assert_eq!(b.rx.driver.used_idx(), got);
        let left = FRAMES - sent.wrapping_sub(round * FRAMES);
        b.rx.start_at(&lan, 1, b.port_incarnation, got);
        a.tx.start_at(&lan, 0, a.port_incarnation, sent);
        a.tx.left(FRAMES);
        lan.settle();
        lan.fabric.drain().unwrap();
        for bytes in 0..FRAMES {
            assert_eq!(b.rx.got().unwrap().frame.len(), 60 + usize::from(bytes), "{left} left");
        }
    }
}

#[test]
fn another_switch_knows_where_stations_are() {
    let lan = Lan::new(2);
    let mut first = Guest::new(&lan, 1, 0, all());
    let mut second = Guest::new(&lan, 2, 1, all());
    first.send(NOTHING, &plain(EVERYBODY, 1, 60));
    lan.settle();
    second.send(NOTHING, &plain(EVERYBODY, 2, 60));
    second.send(NOTHING, &plain(EVERYBODY, 3, 60));
    lan.settle();
    let stations = lan.fabric.stations().unwrap();
    let learnt: Vec<_> = stations.iter().map(|one| (one.port.0, one.mac)).collect();
    let expected = [(1, 1), (2, 2), (2, 3)].map(|(port, mac)| (port, Mac(station(mac))));
    assert_eq!(learnt, expected, "each once, the one that was silent for longest first");
    // With more reactors, and another port beside the two.
    let other = Lan::new(3);
    for port in 1..4 {
        other.fabric.set_port(PortId(port), &PortPolicy::open(LAN)).unwrap();
    }
    other.fabric.recall(&Arc::from(stations.clone())).unwrap();
    assert_eq!(other.fabric.stations().unwrap(), stations);
    let mut a = Guest::new(&other, 1, 2, all());
    let mut b = Guest::new(&other, 2, 0, all());
    let mut c = Guest::new(&other, 3, 1, all());
    [&mut b, &mut c].into_iter().for_each(|one| one.rx.post(4, 2048));
    a.send(NOTHING, &plain(3, 1, 60));
    assert_eq!(b.rx.receive().frame, plain(3, 1, 60));
    other.settle();
    assert_eq!(c.rx.got(), None, "nothing is flooded");
}

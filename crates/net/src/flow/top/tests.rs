//! Large flows among small ones, and aging.

use std::net::Ipv4Addr;

use super::*;
use crate::frame::ethertype;
use crate::test_frames::{ether, mac, parse, tcp, v4};

const SECOND: u64 = 1_000_000_000;

fn key(number: u16) -> FlowKey {
    FlowKey { ends: None, protocol: 6, ports: Some((number, 1)), to: None }
}

fn shown(flows: &mut TopFlows, now_ns: u64) -> Vec<u16> {
    flows.read(now_ns).0.iter().map(|flow| flow.key.ports.unwrap().0).collect()
}

#[test]
fn a_key_says_between_whom() {
    let ends = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    let packet = v4(ends, 6, &tcp([40_000, 5201], 0, 0, 0, b""));
    let frame = parse(&ether(mac(2), mac(1), None, ethertype::IPV4, &packet));
    let found = FlowKey::of(&frame, Some(PortId(3)));
    assert_eq!(found.ends, Some((ends[0].into(), ends[1].into())));
    assert_eq!((found.protocol, found.ports, found.to), (6, Some((40_000, 5201)), Some(PortId(3))));
    let other = parse(&ether(mac(2), mac(1), None, 0x1234, &[0; 50]));
    assert_eq!(FlowKey::of(&other, None).ends, None);
}

#[test]
fn elephants_have_places_among_thousands_of_mice() {
    let mut flows = TopFlows::default();
    let mut mouse = 1000u32;
    for round in 0..40_000u64 {
        let now = 1 + round * 10_000;
        for elephant in 0..8u32 {
            flows.see(
                || Some(elephant),
                9_000 + u64::from(elephant) * 3_000,
                now,
                || key(elephant as u16),
            );
        }
        for _ in 0..8 {
            mouse += 1;
            flows.see(|| Some(mouse), 500, now, || key(999));
        }
    }
    let (all, total) = flows.read(40_000 * 10_000);
    assert_eq!(all.len(), FLOWS);
    let names: Vec<_> = all.iter().take(8).map(|flow| flow.key.ports.unwrap().0).collect();
    assert_eq!(names, [7, 6, 5, 4, 3, 2, 1, 0], "largest first");
    // One frame of sixteen is sampled, so sums are near the sent bytes but not equal.
    let sent = 40_000 * (8 * 9_000 + 28 * 3_000 + 8 * 500);
    assert!(total.abs_diff(sent) < sent / 20, "{total} {sent}");
    for (flow, number) in all.iter().zip((0..8).rev()) {
        let sent = 40_000 * (9_000 + number * 3_000);
        assert!(flow.bytes.abs_diff(sent) < sent / 10, "{number}: {} {sent}", flow.bytes);
        assert!(flow.error <= total / FLOWS as u64);
    }
}

#[test]
fn what_was_large_long_ago_makes_room() {
    let mut flows = TopFlows::default();
    for number in 0..16u32 {
        (0..1000).for_each(|_| flows.see(|| Some(number), 60_000, 1, || key(number as u16)));
    }
    assert_eq!(shown(&mut flows, 1).len(), FLOWS);
    let later = 1 + 20 * HALF_LIFE_NS;
    (0..1000).for_each(|_| flows.see(|| Some(77), 60_000, later, || key(77)));
    assert_eq!(shown(&mut flows, later)[0], 77);
    assert!(flows.read(later).0.iter().skip(1).all(|flow| flow.bytes < 1000));
    let much_later = later + 300 * SECOND;
    assert_eq!(flows.read(much_later), (Vec::new(), 0));
}

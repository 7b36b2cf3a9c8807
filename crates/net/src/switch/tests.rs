//! Forwarding of frames between ports of several networks.

use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::drop_reason::Reason;
use crate::frame::{Frame, Tag, ethertype};
use crate::header::Header;
use crate::mac::Mac;
use crate::port::{LockingMode, Rate, RateLimiter, TagAction, Vlan};
use crate::test_frames::{ether, gso, mac, parse, tcp, v4};

pub(super) const LAN: NetworkId = NetworkId(1);
const OTHER: NetworkId = NetworkId(2);
const SECOND: u64 = 1_000_000_000;

fn frame(to: Mac, from: Mac) -> Frame<'static> {
    parse(&ether(to, from, None, 0x1234, &[0; 46]))
}

fn tagged(to: Mac, from: Mac, tag: u16) -> Frame<'static> {
    parse(&ether(to, from, Some(tag), 0x1234, &[0; 46]))
}

/// Creates a switch with ports 0 to 3 in one network, 4 and 5 in another.
pub(super) fn switch() -> Switch {
    let mut switch = Switch::new();
    for network in [LAN, OTHER] {
        switch.set_network(network, NetworkPolicy::default()).unwrap();
    }
    for port in 0..6 {
        let network = if port < 4 { LAN } else { OTHER };
        switch.set_port(PortId(port), PortPolicy::open(network)).unwrap();
    }
    switch
}

fn decide(switch: &mut Switch, port: u16, frame: &Frame<'_>) -> Decision {
    switch.decide(PortId(port), frame, &Header::default(), 0).decision
}

fn set(ports: &[u16]) -> Decision {
    let mut set = PortSet::default();
    ports.iter().for_each(|port| set.insert(PortId(*port)));
    Decision::Flood(set)
}

fn change(switch: &mut Switch, port: u16, change: impl FnOnce(&mut PortPolicy)) {
    let mut policy = switch.port(PortId(port)).unwrap().clone();
    change(&mut policy);
    switch.set_port(PortId(port), policy).unwrap();
}

#[test]
fn it_learns_and_networks_are_apart() {
    let mut switch = switch();
    assert_eq!(decide(&mut switch, 0, &frame(mac(1), mac(0))), set(&[1, 2, 3]));
    assert_eq!(decide(&mut switch, 1, &frame(mac(0), mac(1))), Decision::Forward(PortId(0)));
    assert_eq!(decide(&mut switch, 0, &frame(mac(1), mac(0))), Decision::Forward(PortId(1)));
    assert_eq!(decide(&mut switch, 0, &frame(Mac::BROADCAST, mac(0))), set(&[1, 2, 3]));
    // The same addresses in another network belong to other stations.
    assert_eq!(decide(&mut switch, 4, &frame(mac(1), mac(0))), set(&[5]));
    assert_eq!(decide(&mut switch, 1, &frame(mac(0), mac(1))), Decision::Forward(PortId(0)));
}

#[test]
fn what_one_has_learnt_another_can_be_told() {
    let mut first = switch();
    for (port, from) in [(0, mac(0)), (1, mac(1)), (4, mac(0))] {
        first.decide(PortId(port), &frame(mac(9), from), &Header::default(), u64::from(port));
    }
    first.decide(PortId(2), &tagged(mac(9), mac(1), 7), &Header::default(), 9);
    let mut all: Vec<_> = first.stations().collect();
    all.sort_by_key(|station| station.seen_ns);
    let learnt: Vec<_> =
        all.iter().map(|one| (one.network, one.port.0, one.vlan, one.mac, one.seen_ns)).collect();
    let expected = [(0, 0, 0), (1, 0, 1), (4, 0, 4), (2, 7, 9)];
    let station = |(port, vlan, seen_ns): (u16, u16, u64)| {
        let number = if port == 4 { 0 } else { port.min(1) as u8 };
        (if port == 4 { OTHER } else { LAN }, port, vlan, mac(number), seen_ns)
    };
    assert_eq!(learnt, expected.map(station));
    let mut second = switch();
    for one in all {
        second.learn(one.port, one.vlan, one.mac, one.seen_ns);
    }
    assert_eq!(decide(&mut second, 0, &frame(mac(1), mac(0))), Decision::Forward(PortId(1)));
}

#[test]
fn frames_that_go_nowhere() {
    let mut switch = switch();
    let drop = |reason| Decision::Drop(reason);
    decide(&mut switch, 0, &frame(mac(9), mac(0)));
    assert_eq!(decide(&mut switch, 0, &frame(mac(0), mac(7))), drop(Reason::SamePort));
    assert_eq!(decide(&mut switch, 9, &frame(mac(0), mac(7))), drop(Reason::NoPort));
    for source in [Mac::default(), Mac::BROADCAST, Mac([1, 0, 0, 0, 0, 1])] {
        assert_eq!(decide(&mut switch, 0, &frame(mac(1), source)), drop(Reason::BadSource));
    }
    let bridges = Mac([1, 0x80, 0xc2, 0, 0, 0]);
    assert_eq!(decide(&mut switch, 0, &frame(bridges, mac(0))), drop(Reason::ReservedDestination));
    change(&mut switch, 0, |policy| policy.locking_mode = LockingMode::Disabled);
    assert_eq!(decide(&mut switch, 0, &frame(mac(1), mac(0))), drop(Reason::Closed));
    assert_eq!(decide(&mut switch, 1, &frame(Mac::BROADCAST, mac(1))), set(&[2, 3]));
    // Frames to a closed port are dropped, not flooded.
    switch.learn(PortId(0), 0, mac(0), 0);
    assert_eq!(decide(&mut switch, 1, &frame(mac(0), mac(1))), drop(Reason::ReceiverClosed));
    switch.remove_port(PortId(5));
    assert_eq!(decide(&mut switch, 4, &frame(mac(1), mac(0))), drop(Reason::NoReceiver));
}

#[test]
fn closed_by_its_network() {
    let mut switch = switch();
    let policy = NetworkPolicy { default: DefaultMode::Disabled, ..NetworkPolicy::default() };
    switch.set_network(LAN, policy).unwrap();
    assert_eq!(decide(&mut switch, 0, &frame(mac(1), mac(0))), Decision::Drop(Reason::Closed));
    for port in [0, 2] {
        change(&mut switch, port, |policy| policy.locking_mode = LockingMode::Unlocked);
    }
    assert_eq!(decide(&mut switch, 0, &frame(mac(1), mac(0))), set(&[2]));
}

#[test]
fn access_ports_and_trunks() {
    let mut switch = switch();
    for (port, vlan) in [(0, 7), (1, 7), (2, 8)] {
        change(&mut switch, port, |policy| policy.vlan = Vlan::Access(vlan.try_into().unwrap()));
    }
    let out = switch.decide(PortId(0), &frame(mac(1), mac(0)), &Header::default(), 0);
    assert_eq!((out.decision, out.vlan), (set(&[1, 3]), 7));
    let plain = frame(mac(1), mac(0));
    assert_eq!(switch.tagging(PortId(1), 7, &plain), TagAction::Keep);
    assert_eq!(switch.tagging(PortId(3), 7, &plain), TagAction::Push(Tag(7)));
    // Back from the trunk with its tag: to the port of the VLAN alone.
    let back = tagged(mac(0), mac(3), 7);
    assert_eq!(decide(&mut switch, 3, &back), Decision::Forward(PortId(0)));
    assert_eq!(switch.tagging(PortId(0), 7, &back), TagAction::Pop);
    assert_eq!(decide(&mut switch, 3, &tagged(mac(0), mac(3), 8)), set(&[2]));
    assert_eq!(decide(&mut switch, 3, &frame(mac(0), mac(3))), Decision::Drop(Reason::NoReceiver));
    assert_eq!(
        decide(&mut switch, 0, &tagged(mac(1), mac(0), 8)),
        Decision::Drop(Reason::WrongVlan)
    );
    // The stations of a port that changes its VLAN are forgotten.
    change(&mut switch, 0, |policy| policy.vlan = Vlan::Access(8.try_into().unwrap()));
    assert_eq!(decide(&mut switch, 3, &back), set(&[1]));
}

#[test]
fn nothing_longer_than_the_mtu() {
    let mut switch = switch();
    let of = |tag: Option<u16>, kind, bytes: usize| {
        parse(&ether(mac(1), mac(0), tag, kind, &vec![0; bytes]))
    };
    let oversize = Decision::Drop(Reason::Oversize);
    for tag in [None, Some(7)] {
        assert_ne!(decide(&mut switch, 0, &of(tag, 0x1234, 1500)), oversize);
        assert_eq!(decide(&mut switch, 0, &of(tag, 0x1234, 1501)), oversize);
    }
    assert_ne!(decide(&mut switch, 0, &of(Some(7), ethertype::VLAN, 1504)), oversize);
    assert_eq!(decide(&mut switch, 0, &of(Some(7), ethertype::VLAN, 1505)), oversize);
    // For a frame to be segmented, the size of the segments counts.
    let ends = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    let packet = v4(ends, 6, &tcp([1, 2], 0, 0, 3, &[0; 9000]));
    let large = parse(&ether(mac(1), mac(0), None, ethertype::IPV4, &packet));
    for (size, fits) in [(1448, true), (1449, false)] {
        let decision = switch.decide(PortId(0), &large, &gso(&large, size), 0).decision;
        assert_eq!(decision != oversize, fits, "{size}");
    }
    assert_eq!(decide(&mut switch, 0, &large), oversize, "not to be cut");
    let policy = NetworkPolicy { mtu: 9052, ..NetworkPolicy::default() };
    switch.set_network(LAN, policy).unwrap();
    assert_ne!(decide(&mut switch, 0, &large), oversize);
}

#[test]
fn floods_are_limited_and_known_stations_are_not() {
    let mut switch = switch();
    let rate_limiter = Arc::new(RateLimiter::new(Rate { per_second: 10, burst: 3 }, 0));
    change(&mut switch, 0, |policy| policy.flood = Some(rate_limiter));
    decide(&mut switch, 1, &frame(Mac::BROADCAST, mac(1)));
    for nth in 0..6 {
        let expected = if nth < 3 { set(&[1, 2, 3]) } else { Decision::Drop(Reason::FloodLimit) };
        let to = if nth % 2 == 0 { Mac::BROADCAST } else { mac(9) };
        assert_eq!(decide(&mut switch, 0, &frame(to, mac(0))), expected, "{nth}");
        assert_eq!(decide(&mut switch, 0, &frame(mac(1), mac(0))), Decision::Forward(PortId(1)));
    }
    let later =
        switch.decide(PortId(0), &frame(Mac::BROADCAST, mac(0)), &Header::default(), SECOND);
    assert_eq!(later.decision, set(&[1, 2, 3]));
}

/// The flood limit allows as many copied bytes for large segments as for full frames.
#[test]
fn large_frames_count_for_many_in_the_limit_of_floods() {
    let floods = |bytes: usize| {
        let mut switch = switch();
        // Segments fit any MTU; these frames have no segmentation header, so the MTU is the
        // largest.
        switch
            .set_network(LAN, NetworkPolicy { mtu: u16::MAX, ..NetworkPolicy::default() })
            .unwrap();
        let rate_limiter = Arc::new(RateLimiter::new(Rate { per_second: 1, burst: 100 }, 0));
        change(&mut switch, 0, |policy| policy.flood = Some(rate_limiter));
        let large = parse(&ether(Mac::BROADCAST, mac(0), None, 0x1234, &vec![0; bytes - 14]));
        (0..1000).take_while(|_| decide(&mut switch, 0, &large) == set(&[1, 2, 3])).count()
    };
    // The last frame passes whole, even beyond the limit.
    assert_eq!([60, 1514, 1518, 1519, 65_000].map(floods), [100, 100, 100, 50, 3]);
}

#[test]
fn a_locked_port_teaches_nothing_false() {
    let mut switch = switch();
    let locked = PortPolicy::open(LAN).locked(mac(0), &[Ipv4Addr::new(10, 0, 0, 1)], &[]).unwrap();
    switch.set_port(PortId(0), locked).unwrap();
    decide(&mut switch, 1, &frame(Mac::BROADCAST, mac(1)));
    let out = switch.decide(PortId(0), &frame(mac(2), mac(1)), &Header::default(), 0);
    assert_eq!((out.decision, out.learn_outcome), (Decision::Drop(Reason::LockedMac), None));
    assert_eq!(decide(&mut switch, 2, &frame(mac(1), mac(2))), Decision::Forward(PortId(1)));
    let ends = |from| [Ipv4Addr::new(10, 0, 0, from), Ipv4Addr::new(10, 0, 0, 2)];
    let says = |from| {
        let packet = v4(ends(from), 6, &tcp([1, 2], 0, 0, 0, b""));
        parse(&ether(mac(1), mac(0), None, ethertype::IPV4, &packet))
    };
    assert_eq!(decide(&mut switch, 0, &says(66)), Decision::Drop(Reason::LockedAddress));
    assert_eq!(decide(&mut switch, 0, &says(1)), Decision::Forward(PortId(1)));
}

#[test]
fn what_one_learns_others_are_told() {
    let (mut one, mut other) = (switch(), switch());
    let verdict = one.decide(PortId(0), &frame(mac(1), mac(0)), &Header::default(), 0);
    assert!(verdict.learn_outcome.is_some_and(LearnOutcome::should_broadcast));
    assert_eq!(other.learn(PortId(0), verdict.vlan, mac(0), 0), LearnOutcome::New);
    assert_eq!(decide(&mut other, 1, &frame(mac(0), mac(1))), Decision::Forward(PortId(0)));
    assert_eq!(other.learn(PortId(99), 0, mac(0), 0), LearnOutcome::NoStation);
}

#[test]
fn numbers_that_cannot_be() {
    let mut switch = switch();
    let beyond = NetworkId(NETWORKS_MAX as u16);
    assert_eq!(
        switch.set_network(beyond, NetworkPolicy::default()),
        Err(SwitchError::NoSuchNetwork(beyond.0))
    );
    let policy = PortPolicy::open(NetworkId(7));
    assert_eq!(switch.set_port(PortId(0), policy), Err(SwitchError::NoSuchNetwork(7)));
    let high = PortId(PORTS_MAX as u16);
    assert_eq!(switch.set_port(high, PortPolicy::open(LAN)), Err(SwitchError::NoSuchPort(high.0)));
    switch.remove_network(LAN);
    assert!(switch.port(PortId(0)).is_none() && switch.port(PortId(4)).is_some());
    assert_eq!(decide(&mut switch, 0, &frame(mac(1), mac(0))), Decision::Drop(Reason::NoPort));
}

proptest! {
    /// For any traffic: a frame never leaves its network or returns to its port, and goes only to
    /// open ports of its VLAN, with the right tag.
    #[test]
    fn frames_stay_in_their_network_and_vlan(
        ports in prop::collection::vec((0u16..3, 0u16..3, 0u8..4), 8),
        sent in prop::collection::vec(
            (0u16..8, 0u8..12, 0u8..12, prop::option::of(0u16..3)),
            1..120,
        ),
    ) {
        let mut switch = Switch::new();
        for network in 0..3 {
            switch.set_network(NetworkId(network), NetworkPolicy::default()).unwrap();
        }
        for (port, (network, vlan, mode)) in (0..).zip(&ports) {
            let vlan = (*vlan).try_into().map_or(Vlan::Trunk, Vlan::Access);
            let locking_mode =
                if *mode == 0 { LockingMode::Disabled } else { LockingMode::Unlocked };
            let policy = PortPolicy { vlan, locking_mode, ..PortPolicy::open(NetworkId(*network)) };
            switch.set_port(PortId(port), policy).unwrap();
        }
        for (from, source, to, tag) in sent {
            let to = if to == 0 { Mac::BROADCAST } else { mac(to) };
            let frame = parse(&ether(to, mac(source), tag, 0x1234, &[0; 46]));
            let verdict = switch.decide(PortId(from), &frame, &Header::default(), 0);
            let receivers: Vec<_> = match verdict.decision {
                Decision::Drop(_) => vec![],
                Decision::Forward(port) => vec![port],
                Decision::Flood(ports) => ports.iter().collect(),
            };
            let own = switch.port(PortId(from)).unwrap().clone();
            for port in receivers {
                let policy = switch.port(port).unwrap();
                prop_assert!(port != PortId(from) && policy.network == own.network);
                prop_assert!(policy.locking_mode == LockingMode::Unlocked);
                prop_assert!(policy.vlan.carries(verdict.vlan));
                let leaves = switch.tagging(port, verdict.vlan, &frame);
                let shown = match leaves {
                    TagAction::Keep => frame.tag.map_or(0, Tag::vlan),
                    TagAction::Push(tag) | TagAction::Replace(tag) => tag.vlan(),
                    TagAction::Pop => 0,
                };
                let expected = if policy.vlan == Vlan::Trunk { verdict.vlan } else { 0 };
                prop_assert_eq!(shown, expected);
            }
        }
    }
}

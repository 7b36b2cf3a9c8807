//! Tests that the cache changes no result: a switch with it decides as one without it.

use proptest::prelude::*;

use super::super::tests::{LAN, switch};
use super::super::{Decision, NetworkPolicy, Switch};
use super::*;
use crate::frame::ethertype;
use crate::port::{DefaultMode, LockingMode, PortPolicy, Vlan};
use crate::table::{LearnOutcome, MacTableLimits};
use crate::test_frames::{ether, mac, parse};

/// Event of a switch.
#[derive(Clone, Debug)]
enum Event {
    /// Frame from a port, between stations, with a tag and a number of bytes.
    Frame {
        port: u16,
        from: u8,
        to: u8,
        tag: Option<u16>,
        bytes: usize,
    },
    /// Passage of time, in milliseconds.
    Wait(u64),
    Lock(u16, LockingMode),
    Vlan(u16, Option<u16>),
    Unplug(u16),
    Network {
        mtu: u16,
        closed: bool,
    },
    /// Station learnt by another reactor.
    News(u16, u8),
}

fn event() -> impl Strategy<Value = Event> {
    let (port, station) = (|| 0u16..3, || 0u8..3);
    let tag = prop_oneof![6 => Just(None), 1 => Just(Some(0xa000)), 1 => Just(Some(7))];
    let bytes = prop_oneof![4 => Just(46usize), 1 => Just(1400)];
    // A station is mostly at the port with its number.
    let sender =
        prop_oneof![9 => station().prop_map(|of| (of.into(), of)), 1 => (port(), station())];
    let frame = (sender, station(), tag, bytes);
    let modes = prop_oneof![
        3 => Just(LockingMode::NetworkDefault),
        1 => Just(LockingMode::Locked),
        1 => Just(LockingMode::Disabled),
    ];
    let vlan = prop_oneof![2 => Just(None), 1 => Just(Some(7u16))];
    prop_oneof![
        60 => frame.prop_map(|((port, from), to, tag, bytes)| Event::Frame { port, from, to, tag, bytes }),
        8 => (0u64..1500).prop_map(Event::Wait),
        2 => (port(), modes).prop_map(|(port, mode)| Event::Lock(port, mode)),
        2 => (port(), vlan).prop_map(|(port, vlan)| Event::Vlan(port, vlan)),
        1 => port().prop_map(Event::Unplug),
        3 => (prop_oneof![Just(600u16), Just(1500)], prop::bool::weighted(0.3))
            .prop_map(|(mtu, closed)| Event::Network { mtu, closed }),
        3 => (port(), station()).prop_map(|(port, of)| Event::News(port, of)),
    ]
}

fn policy(switch: &Switch, port: u16) -> PortPolicy {
    switch.port(PortId(port)).cloned().unwrap_or_else(|| PortPolicy::open(LAN))
}

fn happen(switch: &mut Switch, event: &Event, now_ns: u64) {
    match *event {
        Event::Lock(port, locking_mode) => {
            let policy = PortPolicy { locking_mode, ..policy(switch, port) };
            switch.set_port(PortId(port), policy).unwrap();
        }
        Event::Vlan(port, vlan) => {
            let vlan = vlan.map_or(Vlan::Trunk, |id| Vlan::Access(id.try_into().unwrap()));
            let policy = PortPolicy { vlan, ..policy(switch, port) };
            switch.set_port(PortId(port), policy).unwrap();
        }
        Event::Unplug(port) => switch.remove_port(PortId(port)),
        Event::Network { mtu, closed } => {
            let default = if closed { DefaultMode::Disabled } else { DefaultMode::Unlocked };
            let policy = NetworkPolicy { mtu, default, ..NetworkPolicy::default() };
            switch.set_network(LAN, policy).unwrap();
        }
        Event::News(port, of) => {
            switch.learn(PortId(port), 0, mac(of), now_ns);
        }
        Event::Frame { .. } | Event::Wait(_) => {}
    }
}

/// Returns the decision about a frame, and the change of its tag.
fn decided(
    switch: &mut Switch,
    from: PortId,
    frame: &Frame<'_>,
    now_ns: u64,
) -> (Decision, Vec<TagAction>) {
    let verdict = switch.decide(from, frame, &Header::default(), now_ns);
    let tag_action = match verdict.decision {
        Decision::Forward(to) => vec![switch.tagging(to, verdict.vlan, frame)],
        _ => vec![],
    };
    (verdict.decision, tag_action)
}

proptest! {
    #[test]
    fn frames_go_where_they_would_go_without(events in prop::collection::vec(event(), 1..400)) {
        let (mut with, mut without) = (switch(), switch());
        let mut now_ns = 1;
        for event in &events {
            now_ns += match event {
                Event::Wait(ms) => ms * 1_000_000,
                _ => 200_000,
            };
            happen(&mut with, event, now_ns);
            happen(&mut without, event, now_ns);
            let Event::Frame { port, from, to, tag, bytes } = *event else { continue };
            let bytes = ether(mac(to), mac(from), tag, ethertype::IPV4, &vec![0; bytes]);
            let (from, frame) = (PortId(port), parse(&bytes));
            without.forwarding_cache.forget();
            let want = decided(&mut without, from, &frame, now_ns);
            let got = match with.lookup(from, &frame, &Header::default(), now_ns) {
                Some(forwarding_entry) => (Decision::Forward(forwarding_entry.to), vec![forwarding_entry.tag_action]),
                None => decided(&mut with, from, &frame, now_ns),
            };
            prop_assert_eq!(got, want, "{:?}", event);
        }
    }
}

#[test]
fn a_way_holds_for_a_moment_and_for_its_sender_alone() {
    let mut switch = switch();
    let to = |dst: u8, src: u8| parse(&ether(mac(dst), mac(src), None, ethertype::IPV4, &[0; 46]));
    let (there, back) = (to(2, 1), to(1, 2));
    let way = |switch: &Switch, port: u16, frame: &Frame<'_>, now_ns| {
        switch
            .lookup(PortId(port), frame, &Header::default(), now_ns)
            .map(|forwarding_entry| forwarding_entry.to)
    };
    let plain = Header::default();
    switch.decide(PortId(0), &there, &plain, 1);
    assert_eq!(way(&switch, 0, &there, 1), None, "it went to everybody");
    switch.decide(PortId(1), &back, &plain, 1);
    assert_eq!(way(&switch, 1, &back, 1), None, "it taught something");
    switch.decide(PortId(1), &back, &plain, 2);
    assert_eq!(way(&switch, 1, &back, 3), Some(PortId(0)));
    assert_eq!(way(&switch, 2, &back, 3), None, "another port says that it is that station");
    assert_eq!(way(&switch, 1, &there, 3), None);
    assert_eq!(way(&switch, 1, &back, 2 + HOLDS_NS), None);
    let long = parse(&ether(mac(1), mac(2), None, ethertype::IPV4, &[0; 1501]));
    assert_eq!(way(&switch, 1, &long, 3), None, "longer than the network takes");
    switch.learn(PortId(3), 0, mac(1), 4);
    assert_eq!(way(&switch, 1, &back, 4), None, "the station has moved");
}

#[test]
fn a_station_that_was_forgotten_and_comes_back_elsewhere_is_followed() {
    let mut switch = switch();
    let to = |dst: u8, src: u8| parse(&ether(mac(dst), mac(src), None, ethertype::IPV4, &[0; 46]));
    let (there, back) = (to(2, 1), to(1, 2));
    let plain = Header::default();
    let age_ns = MacTableLimits::default().age_ns;
    switch.decide(PortId(0), &there, &plain, 0);
    switch.decide(PortId(1), &back, &plain, 0);
    let late = age_ns - 1;
    switch.decide(PortId(1), &back, &plain, late);
    switch.decide(PortId(1), &back, &plain, late);
    let way = |switch: &Switch, at| {
        switch.lookup(PortId(1), &back, &plain, at).map(|forwarding_entry| forwarding_entry.to)
    };
    assert_eq!(way(&switch, late), Some(PortId(0)));
    let learn_outcome = switch.learn(PortId(3), 0, mac(1), age_ns + 1);
    assert_eq!((learn_outcome, way(&switch, age_ns + 1)), (LearnOutcome::New, None));
}

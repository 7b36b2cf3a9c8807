use proptest::prelude::*;

use super::*;

const OURS: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 1];
const ALL: [u8; 6] = [0xff; 6];

/// Builds an ARP frame: operation, sender's MAC address and address, target's address.
fn arp(operation: u8, hardware: [u8; 6], address: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let head = [&ALL[..], &OURS, &[8, 6], &ARP_HEAD, &[0, operation]].concat();
    [&head[..], &hardware, &address, &[0; 6], &target].concat()
}

/// Builds a neighbour discovery frame.
fn neighbour(kind: u8, [source, destination, target]: [&str; 3]) -> Vec<u8> {
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    let head = [&ALL[..], &OURS, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, ICMPV6, NEAR]].concat();
    let (source, destination) = (address(source), address(destination));
    [&head[..], &source, &destination, &[kind, 0, 0, 0, 0, 0, 0, 0], &address(target)].concat()
}

fn claimed(frame: &[u8]) -> Option<(String, bool)> {
    let claim = claim(frame)?;
    assert_eq!(claim.mac, Mac(OURS));
    Some((claim.address.to_string(), claim.announced))
}

fn is(address: &str, announced: bool) -> Option<(String, bool)> {
    Some((address.to_owned(), announced))
}

#[test]
fn arp_says_who_has_an_address() {
    let (ours, other) = ([10, 0, 0, 7], [10, 0, 0, 1]);
    assert_eq!(claimed(&arp(1, OURS, ours, other)), is("10.0.0.7", false));
    assert_eq!(claimed(&arp(2, OURS, ours, other)), is("10.0.0.7", false));
    assert_eq!(claimed(&arp(1, OURS, ours, ours)), is("10.0.0.7", true));
    // A probe only asks whether the address is free.
    assert_eq!(claimed(&arp(1, OURS, [0; 4], ours)), None);
    for no_hosts in [[127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
        assert_eq!(claimed(&arp(1, OURS, no_hosts, other)), None);
    }
    assert_eq!(claimed(&arp(3, OURS, ours, other)), None, "it is no known operation");
    assert_eq!(claimed(&arp(1, [2; 6], ours, other)), None, "another's is claimed");
    let mut group = arp(1, OURS, ours, other);
    group[6..12].copy_from_slice(&ALL);
    group[22..28].copy_from_slice(&ALL);
    assert_eq!(claim(&group), None, "a group sends nothing");
}

#[test]
fn neighbours_say_who_has_an_address() {
    let (any, group) = ("::", "ff02::1:ff00:7");
    for (kind, addresses, expected) in [
        (SOLICITATION, [any, group, "fe80::7"], is("fe80::7", true)),
        (SOLICITATION, ["fe80::7", group, "fe80::1"], is("fe80::7", false)),
        (ADVERTISEMENT, ["fe80::7", "ff02::1", "2001:db8::7"], is("2001:db8::7", true)),
        (ADVERTISEMENT, ["fe80::7", "fe80::1", "2001:db8::7"], is("2001:db8::7", false)),
        (SOLICITATION, [any, group, "ff02::1"], None),
        (ADVERTISEMENT, ["fe80::7", "ff02::1", "::1"], None),
        (ADVERTISEMENT, ["fe80::7", "ff02::1", any], None),
        (133, [any, group, "fe80::7"], None),
        (137, ["fe80::7", group, "fe80::7"], None),
    ] {
        assert_eq!(claimed(&neighbour(kind, addresses)), expected, "{kind} {addresses:?}");
    }
    let good = neighbour(SOLICITATION, [any, group, "fe80::7"]);
    // Wrong IP version, wrong protocol, a forwarding router, wrong code.
    for (at, byte) in [(14, 0x40), (20, 17), (21, 254), (55, 1)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(claimed(&bad), None, "{at}");
    }
}

#[test]
fn a_frame_that_ends_too_early_says_nothing() {
    for frame in [
        arp(1, OURS, [10, 0, 0, 7], [10, 0, 0, 1]),
        neighbour(SOLICITATION, ["::", "ff02::1:ff00:7", "fe80::7"]),
    ] {
        assert!(claim(&frame).is_some() && frame.len() <= FRAME_BYTES);
        for len in 0..frame.len() {
            assert_eq!(claim(&frame[..len]), None, "{len}");
        }
        let long = [&frame[..], &[0xff; 2000]].concat();
        assert_eq!(claim(&long), claim(&frame));
    }
}

#[test]
fn hardware_addresses_are_of_one_device() {
    assert_eq!("00:16:3e:00:00:01".parse::<Mac>(), Ok(Mac(OURS)));
    assert_eq!("00:16:3E:00:00:01".parse::<Mac>(), Ok(Mac(OURS)));
    assert_eq!(format!("{:?}", Mac(OURS)), "00:16:3e:00:00:01");
    let bad = ["", "00:16:3e:00:00", "00:16:3e:00:00:01:02", "+0:16:3e:00:00:01", "1:2:3:4:5:6"];
    for bad in bad.iter().chain(&["01:16:3e:00:00:01", "00:00:00:00:00:00", "00:16:3e:00:00:zz"]) {
        bad.parse::<Mac>().unwrap_err();
    }
}

/// Generates nearly correct frames, and arbitrary bytes.
pub(in crate::net::address_snoop) fn frames() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |most: usize| prop::collection::vec(any::<u8>(), 0..most);
    let heads = prop::sample::select(vec![
        arp(1, OURS, [10, 0, 0, 7], [10, 0, 0, 1]),
        neighbour(SOLICITATION, ["::", "ff02::1:ff00:7", "fe80::7"]),
        neighbour(ADVERTISEMENT, ["fe80::7", "ff02::1", "2001:db8::7"]),
    ]);
    let changed = (heads, any::<prop::sample::Index>(), any::<u8>(), bytes(64), 0..128usize);
    let changed = changed.prop_map(|(mut frame, at, byte, more, len)| {
        let at = at.index(frame.len());
        frame[at] = byte;
        frame.extend(more);
        frame.truncate(len);
        frame
    });
    prop_oneof![bytes(256), changed]
}

proptest! {
    /// Every claim is of a unicast MAC address and of an address that a host can have.
    #[test]
    fn no_frame_does_harm(frame in frames()) {
        if let Some(AddressClaim { mac, address, .. }) = claim(&frame) {
            prop_assert_eq!(&frame[6..12], &mac.0);
            prop_assert!(mac.0[0] & 1 == 0);
            prop_assert!(!address.is_unspecified() && !address.is_multicast());
            prop_assert!(!address.is_loopback());
            // The frame contains the address.
            let octets = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            prop_assert!(frame.windows(octets.len()).any(|part| part == octets));
        }
    }
}

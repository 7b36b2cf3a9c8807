//! Tests of frames that a locked guest may send, and of those that it may not.

use proptest::prelude::*;

use super::*;
use crate::frame::{ethertype, tests::mutants};
use crate::header::Offloads;
use crate::test_frames::{arp, dhcp, ether, mac, neighbour, parse, raw, tcp, udp, v4, v4_with, v6};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

fn six(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last)
}

fn lock() -> AddressLock {
    // Unsorted, and more than one.
    AddressLock::new(mac(1), &[PEER.to_bits().wrapping_add(7).into(), OWN], &[six(9), six(1)])
        .unwrap()
}

fn check(kind: u16, body: &[u8]) -> Result<(), Reason> {
    lock().check(&parse(&ether(mac(2), mac(1), None, kind, body)), &Header::default())
}

fn says6(src: Ipv6Addr, next: u8, body: &[u8]) -> Result<(), Reason> {
    check(ethertype::IPV6, &v6([src, six(2)], next, body))
}

#[test]
fn addresses_of_its_own() {
    let segment = tcp([1, 2], 0, 0, 0, b"");
    let four = |src| check(ethertype::IPV4, &v4([src, PEER], 6, &segment));
    assert_eq!(four(OWN), Ok(()));
    assert_eq!([four(OTHER), four(NOBODY)], [Err(Reason::LockedAddress); 2]);
    assert_eq!((says6(six(1), 6, &segment), says6(six(9), 6, &segment)), (Ok(()), Ok(())));
    assert_eq!(says6(six(3), 6, &segment), Err(Reason::LockedAddress));
    let fragment = check(ethertype::IPV4, &v4_with([OTHER, PEER], 6, 0x2001, &[], &segment));
    assert_eq!(fragment, Err(Reason::LockedAddress));
    let other = parse(&ether(mac(2), mac(3), None, ethertype::ARP, &arp(mac(3), OWN)));
    assert_eq!(lock().check(&other, &Header::default()), Err(Reason::LockedMac));
    // Without addresses no frame passes.
    let none = AddressLock::new(mac(1), &[], &[]).unwrap();
    let frame = parse(&ether(mac(2), mac(1), None, ethertype::IPV4, &v4([OWN, PEER], 6, &segment)));
    assert_eq!(none.check(&frame, &Header::default()), Err(Reason::LockedAddress));
}

#[test]
fn arp_for_itself() {
    assert_eq!(check(ethertype::ARP, &arp(mac(1), OWN)), Ok(()));
    assert_eq!(check(ethertype::ARP, &arp(mac(1), NOBODY)), Ok(()), "a probe");
    for (says, address) in [(mac(1), OTHER), (mac(3), OWN), (mac(3), NOBODY)] {
        assert_eq!(check(ethertype::ARP, &arp(says, address)), Err(Reason::LockedArp));
    }
    assert_eq!(check(ethertype::ARP, &arp(mac(1), OWN)[..20]), Err(Reason::LockedProtocol));
}

#[test]
fn dhcp_for_itself() {
    let ask = |src, ports, message: &[u8]| {
        check(ethertype::IPV4, &v4([src, Ipv4Addr::BROADCAST], 17, &udp(ports, message)))
    };
    let own = dhcp(1, mac(1), NOBODY, 1);
    assert_eq!((ask(NOBODY, [68, 67], &own), ask(OWN, [68, 67], &own)), (Ok(()), Ok(())));
    assert_eq!(ask(OTHER, [68, 67], &own), Err(Reason::LockedAddress));
    assert_eq!(ask(NOBODY, [68, 53], &own), Err(Reason::LockedAddress));
    // For another client, as a server, and without naming the client.
    assert_eq!(ask(NOBODY, [68, 67], &dhcp(1, mac(3), NOBODY, 1)), Err(Reason::LockedProtocol));
    assert_eq!(ask(OWN, [68, 67], &dhcp(2, mac(1), NOBODY, 5)), Err(Reason::LockedProtocol));
    assert_eq!(ask(OWN, [68, 67], &own[..20]), Err(Reason::LockedProtocol));
}

#[test]
fn neighbour_discovery() {
    let own = Some(mac(1));
    let link = |kind, mac: Option<Mac>| mac.map(|mac| (kind, mac)).into_iter().collect::<Vec<_>>();
    let mine = |target, mac| neighbour(136, Some(six(target)), &link(2, mac));
    let who = |target, mac| neighbour(135, Some(six(target)), &link(1, mac));
    let nobody = Ipv6Addr::UNSPECIFIED;
    for (src, message) in [
        (six(1), mine(1, own)),
        (six(1), mine(9, own)),
        (six(1), mine(1, None)),
        (six(1), who(77, own)),
        (six(1), who(77, None)),
        (nobody, who(1, None)),
        (nobody, neighbour(133, None, &[])),
        (six(9), neighbour(133, None, &[(1, mac(1))])),
    ] {
        assert_eq!(says6(src, 58, &message), Ok(()), "{src} {message:?}");
    }
    let other = Some(mac(3));
    for (src, message) in [
        (six(1), mine(3, own)),
        (six(3), mine(1, own)),
        (six(1), mine(1, other)),
        (six(1), who(77, other)),
        (six(3), who(77, own)),
        (nobody, who(3, None)),
        (nobody, mine(1, own)),
        (six(3), neighbour(133, None, &[])),
        (six(1), neighbour(133, None, &[(1, mac(3))])),
        (six(1), neighbour(136, Some(six(1)), &[(2, mac(1)), (2, mac(3))])),
        (six(1), neighbour(136, Some(six(1)), &[(14, mac(0)); 9])),
    ] {
        assert_eq!(says6(src, 58, &message), Err(Reason::LockedNeighbour), "{src} {message:?}");
    }
    for kind in ROUTERS {
        assert_eq!(says6(six(1), 58, &[kind, 0, 0, 0]), Err(Reason::LockedNeighbour), "{kind}");
    }
    assert_eq!(says6(six(1), 58, &[128, 0, 0, 0]), Ok(()), "an echo");
    assert_eq!(says6(six(3), 58, &[128, 0, 0, 0]), Err(Reason::LockedAddress));
}

#[test]
fn nothing_is_hidden() {
    let spoof = neighbour(136, Some(six(3)), &[(2, mac(1))]);
    let behind = |next, head: &[u8]| says6(six(1), next, &[head, &spoof[..]].concat());
    assert_eq!(behind(60, &[58, 0, 0, 0, 0, 0, 0, 0]), Err(Reason::LockedNeighbour));
    let mut long = vec![0; 96];
    long[..2].copy_from_slice(&[58, 11]);
    assert_eq!(behind(60, &long), Err(Reason::LockedProtocol));
    let many = [60, 0, 0, 0, 0, 0, 0, 0].repeat(9);
    assert_eq!(behind(60, &many), Err(Reason::LockedProtocol));
    // In fragments, even for an address of its own.
    let own = neighbour(136, Some(six(1)), &[(2, mac(1))]);
    let fragment = [&[58, 0, 0, 1, 0, 0, 0, 0], &own[..]].concat();
    assert_eq!(says6(six(1), 44, &fragment), Err(Reason::LockedNeighbour));
    let packet = v4([OTHER, PEER], 6, &tcp([1, 2], 0, 0, 0, b""));
    assert_eq!(check(0x88cc, &packet), Err(Reason::LockedProtocol));
    // After a second tag.
    let inner = [&[0, 7, 8, 0], &packet[..]].concat();
    assert_eq!(check(ethertype::SERVICE, &inner), Err(Reason::LockedProtocol));
    let frame = parse(&ether(mac(2), mac(1), Some(7), ethertype::IPV4, &packet));
    assert_eq!(lock().check(&frame, &Header::default()), Err(Reason::LockedAddress));
}

/// A checksum that a receiver completes must not overwrite an address.
#[test]
fn checksums_are_written_where_checksums_are() {
    let frame = |body: &[u8]| parse(&ether(mac(2), mac(1), None, ethertype::IPV4, body));
    let with = |frame: &Frame<'_>, start, offset| {
        let header = Header::parse(&raw(1, 0, [0, 0, start, offset]), frame, Offloads::KERNEL);
        header.and_then(|header| lock().check(frame, &header))
    };
    let segment = frame(&v4([OWN, PEER], 6, &tcp([1, 2], 0, 0, 0, &[0; 20])));
    let datagram = frame(&v4([OWN, PEER], 17, &udp([1, 2], &[0; 20])));
    assert_eq!((with(&segment, 34, 16), with(&datagram, 34, 6)), (Ok(()), Ok(())));
    for (frame, start, offset) in [(&segment, 34, 6), (&segment, 36, 16), (&datagram, 34, 16)] {
        assert_eq!(with(frame, start, offset), Err(Reason::LockedChecksum));
    }
    let arp = parse(&ether(mac(2), mac(1), None, ethertype::ARP, &arp(mac(1), OWN)));
    assert_eq!(with(&arp, 14, 14), Err(Reason::LockedChecksum));
    let fragment = frame(&v4_with([OWN, PEER], 17, 0x2000, &[], &udp([1, 2], &[0; 20])));
    assert_eq!(with(&fragment, 34, 6), Err(Reason::LockedChecksum));
}

proptest! {
    /// Every frame that passes is from the port's own addresses.
    #[test]
    fn whatever_passes_is_its_own(bytes in mutants()) {
        let Ok(frame) = Frame::parse(&bytes, bytes.len()) else { return Ok(()) };
        if lock().check(&frame, &Header::default()).is_err() {
            return Ok(());
        }
        prop_assert_eq!(frame.src, mac(1));
        match frame.net() {
            NetworkLayer::Arp(arp) => prop_assert_eq!(arp.mac, mac(1)),
            NetworkLayer::V4(ip) => prop_assert!(lock().has_v4(ip.src) || ip.src == NOBODY),
            NetworkLayer::V6(ip) => prop_assert!(lock().has_v6(ip.src) || ip.src.is_unspecified()),
            other => prop_assert!(false, "{other:?}"),
        }
        if let Some(std::net::IpAddr::V6(claimed)) = frame.claims() {
            prop_assert!(lock().has_v6(claimed));
        }
    }
}

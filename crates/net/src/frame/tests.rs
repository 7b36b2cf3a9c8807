//! Tests with frames composed by hand, and with random bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::test_frames::{arp, dhcp, ether, mac, neighbour, parse, tcp, udp, v4, v4_with, v6};

const A: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

fn six() -> [Ipv6Addr; 2] {
    ["fe80::1".parse().unwrap(), "fe80::2".parse().unwrap()]
}

fn frame(kind: u16, body: &[u8]) -> Frame<'static> {
    parse(&ether(mac(2), mac(1), None, kind, body))
}

fn upper(of: &Frame<'_>) -> TransportLayer {
    match of.net() {
        NetworkLayer::V4(ip) => ip.transport_layer,
        NetworkLayer::V6(ip) => ip.transport_layer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ethernet_and_one_tag() {
    let bytes =
        ether(mac(2), mac(1), Some(0xa007), ethertype::IPV4, &v4(A, 17, &udp([5, 6], b"x")));
    let tagged = parse(&bytes);
    assert_eq!((tagged.dst, tagged.src, tagged.kind, tagged.net_at), (mac(2), mac(1), 0x800, 18));
    assert_eq!((tagged.tag.unwrap().0, tagged.tag.unwrap().vlan()), (0xa007, 7));
    assert_eq!(upper(&tagged), TransportLayer::Udp(Udp { src: 5, dst: 6, bootp: None }));
    assert_eq!(tagged.payload_bytes() as usize, bytes.len() - 18);
    // Parsing stops at a second tag and at a service tag.
    let inner = [&[0, 8, 8, 0], &v4(A, 17, &udp([5, 6], b""))[..]].concat();
    let double = parse(&ether(mac(2), mac(1), Some(7), ethertype::VLAN, &inner));
    assert_eq!((double.net(), double.tag), (NetworkLayer::Opaque, Some(Tag(7))));
    assert_eq!(double.payload_bytes() as usize, inner.len() - 4);
    assert_eq!(frame(ethertype::SERVICE, &inner).net(), NetworkLayer::Opaque);
    assert_eq!(frame(0x0026, &[0x42; 38]).net(), NetworkLayer::Opaque, "a length");
}

#[test]
fn lengths_of_frames() {
    let bytes = ether(mac(2), mac(1), Some(1), 0x1234, b"");
    for short in (0..14).chain(14..18) {
        assert_eq!(Frame::parse(&bytes[..short], short), Err(Reason::ShortFrame), "{short}");
    }
    assert!(Frame::parse(&bytes, 18).is_ok());
    let long = vec![0; 200];
    assert_eq!(Frame::parse(&long[..127], 128), Err(Reason::ShortFrame), "a part of the prefix");
    assert!(Frame::parse(&long[..128], 128).is_ok());
    assert!(Frame::parse(&long, FRAME_MAX as usize).is_ok());
    for len in [FRAME_MAX as usize + 1, usize::MAX] {
        assert_eq!(Frame::parse(&long, len), Err(Reason::LongFrame));
    }
}

#[test]
fn ipv4_with_options_and_padding() {
    let segment = tcp([1000, 80], 7, 0x18, 3, b"data");
    let packet = v4_with(A, 6, 0x4000, &[1; 40], &segment);
    let mut bytes = ether(mac(2), mac(1), None, ethertype::IPV4, &packet);
    let end = bytes.len() as u32;
    bytes.resize(bytes.len() + 9, 0);
    let NetworkLayer::V4(ip) = parse(&bytes).net() else { panic!() };
    assert_eq!((ip.src, ip.dst, ip.at, ip.end, ip.fragment), (A[0], A[1], 14 + 60, end, false));
    let data_at = 14 + 60 + 32;
    assert_eq!(
        ip.transport_layer,
        TransportLayer::Tcp(Tcp { src: 1000, dst: 80, data_at, flags: 0x18 })
    );
    assert_eq!(parse(&bytes).tcp().unwrap().0, 74);
}

#[test]
fn ipv4_that_breaks_its_rules() {
    let good = v4(A, 6, &tcp([1, 2], 0, 0, 0, b""));
    let breaks: [(usize, u8); 5] = [(0, 0x65), (0, 0x44), (0, 0x4b), (2, 0xff), (3, 19)];
    for (at, value) in breaks {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(
            frame(ethertype::IPV4, &bad).net() == NetworkLayer::Broken
                || upper(&frame(ethertype::IPV4, &bad)) == TransportLayer::Broken,
            "{at} {value:#x}"
        );
    }
    assert_eq!(frame(ethertype::IPV4, &good[..19]).net(), NetworkLayer::Broken);
    // A TCP header that is truncated, or claims to be shorter than possible.
    assert_eq!(upper(&frame(ethertype::IPV4, &v4(A, 6, &[0; 19]))), TransportLayer::Broken);
    for offset in [0x40, 0x60] {
        let mut segment = tcp([1, 2], 0, 0, 0, b"");
        segment[12] = offset;
        assert_eq!(upper(&frame(ethertype::IPV4, &v4(A, 6, &segment))), TransportLayer::Broken);
    }
    assert_eq!(upper(&frame(ethertype::IPV4, &v4(A, 17, &[0; 7]))), TransportLayer::Broken);
}

#[test]
fn ipv4_fragments() {
    let segment = tcp([1, 2], 0, 0, 0, &[0; 100]);
    for (place, fragment, later) in
        [(0x4000, false, false), (0x2000, true, false), (0x2001, true, true), (0x0001, true, true)]
    {
        let NetworkLayer::V4(ip) =
            frame(ethertype::IPV4, &v4_with(A, 6, place, &[], &segment)).net()
        else {
            panic!()
        };
        assert_eq!(
            (ip.fragment, ip.transport_layer == TransportLayer::Later),
            (fragment, later),
            "{place:#x}"
        );
        assert!(ip.has_ports());
    }
    let whole = frame(ethertype::IPV4, &v4_with(A, 6, 0x2000, &[], &segment));
    assert_eq!((whole.transport(), whole.tcp()), (None, None));
}

/// Returns an extension header of `units` times 8 bytes.
fn extension(next: u8, units: u8) -> Vec<u8> {
    let mut out = vec![0; usize::from(units) * 8];
    (out[0], out[1]) = (next, units - 1);
    out
}

#[test]
fn ipv6_with_extension_headers() {
    let datagram = udp([5, 6], b"");
    let ports = TransportLayer::Udp(Udp { src: 5, dst: 6, bootp: None });
    let direct = frame(ethertype::IPV6, &v6(six(), 17, &datagram));
    assert_eq!((upper(&direct), direct.transport().unwrap().0), (ports, 54));
    let body = [extension(60, 1), extension(43, 2), extension(17, 1), datagram.clone()].concat();
    let NetworkLayer::V6(ip) = frame(ethertype::IPV6, &v6(six(), 0, &body)).net() else { panic!() };
    assert_eq!((ip.transport_layer, ip.at, ip.protocol, ip.routed), (ports, 54 + 32, 17, true));
    // An authentication header counts in words.
    let mut body = extension(17, 3);
    body[1] = 4;
    let ah = frame(ethertype::IPV6, &v6(six(), 51, &[body, datagram.clone()].concat()));
    assert_eq!(upper(&ah), ports);
    // No next header; an unknown protocol; an end within a header.
    assert_eq!(upper(&frame(ethertype::IPV6, &v6(six(), 59, b""))), TransportLayer::Other);
    assert_eq!(upper(&frame(ethertype::IPV6, &v6(six(), 60, &[17, 0, 0]))), TransportLayer::Broken);
    let beyond = frame(ethertype::IPV6, &v6(six(), 60, &[17, 200, 0, 0, 0, 0, 0, 0]));
    assert_eq!(upper(&beyond), TransportLayer::Broken);
    // Past the prefix, and behind more headers than are walked.
    let far = [extension(17, 12), datagram.clone()].concat();
    assert_eq!(upper(&frame(ethertype::IPV6, &v6(six(), 60, &far))), TransportLayer::Unseen);
    // Eight of them end just within the prefix, followed by the ports: the limits agree.
    let mut many = Vec::new();
    (0..9).for_each(|_| many.extend(extension(60, 1)));
    many.extend(datagram);
    assert_eq!(upper(&frame(ethertype::IPV6, &v6(six(), 60, &many))), TransportLayer::Unseen);
    let mut wrong = v6(six(), 17, &udp([5, 6], b""));
    wrong[0] = 0x40;
    assert_eq!(frame(ethertype::IPV6, &wrong).net(), NetworkLayer::Broken);
    wrong[0] = 0x60;
    wrong[5] = 9;
    assert_eq!(frame(ethertype::IPV6, &wrong).net(), NetworkLayer::Broken, "longer than the frame");
}

#[test]
fn ipv6_fragments() {
    let datagram = udp([5, 6], &[0; 40]);
    for (place, fragment, later) in
        [(0, false, false), (1, true, false), (9, true, true), (8, true, true)]
    {
        let mut header = extension(17, 1);
        header[2..4].copy_from_slice(&u16::to_be_bytes(place));
        let body = [header, datagram.clone()].concat();
        let NetworkLayer::V6(ip) = frame(ethertype::IPV6, &v6(six(), 44, &body)).net() else {
            panic!()
        };
        assert_eq!(
            (ip.fragment, ip.transport_layer == TransportLayer::Later),
            (fragment, later),
            "{place}"
        );
        assert_eq!((ip.protocol, ip.at), (17, 62));
    }
    // All fragments carry the number that the fragment header names, whatever follows in the first.
    let first = [vec![60, 0, 0, 1, 0, 0, 0, 0], extension(17, 1), datagram].concat();
    let NetworkLayer::V6(ip) = frame(ethertype::IPV6, &v6(six(), 44, &first)).net() else {
        panic!()
    };
    assert_eq!((ip.protocol, ip.has_ports()), (60, false));
}

#[test]
fn who_claims_an_address() {
    let one = A[0];
    assert_eq!(frame(ethertype::ARP, &arp(mac(1), one)).claims(), Some(one.into()));
    assert_eq!(frame(ethertype::ARP, &arp(mac(3), one)).claims(), None, "for somebody else");
    assert_eq!(
        frame(ethertype::ARP, &arp(mac(1), Ipv4Addr::UNSPECIFIED)).claims(),
        None,
        "a probe"
    );
    let mut other = arp(mac(1), one);
    other[1] = 6;
    assert_eq!(frame(ethertype::ARP, &other).net(), NetworkLayer::Broken);
    assert_eq!(frame(ethertype::ARP, &arp(mac(1), one)[..27]).net(), NetworkLayer::Broken);

    let say = |src: Ipv6Addr, body: &[u8]| frame(ethertype::IPV6, &v6([src, six()[1]], 58, body));
    let [own, _] = six();
    let unspecified = Ipv6Addr::UNSPECIFIED;
    let target = "fd00::7".parse().unwrap();
    let mine = neighbour(136, Some(target), &[(2, mac(1))]);
    let who = neighbour(135, Some(target), &[(1, mac(1))]);
    assert_eq!(say(own, &mine).claims(), Some(target.into()));
    assert_eq!(say(own, &who).claims(), Some(own.into()));
    assert_eq!(say(unspecified, &neighbour(135, Some(target), &[])).claims(), None, "a test");
    assert_eq!(say(own, &neighbour(133, None, &[])).claims(), Some(own.into()));
    assert_eq!(say(own, &[128, 0, 0, 0]).claims(), None, "an echo");
    assert_eq!(upper(&say(own, &[134, 0, 0, 0])), TransportLayer::Icmp6(134));
}

#[test]
fn options_of_neighbour_discovery() {
    let target = six()[0];
    let options_of = |body: &[u8]| match upper(&frame(ethertype::IPV6, &v6(six(), 58, body))) {
        TransportLayer::Neighbour(message) => (message.mac, message.unclear),
        other => panic!("{other:?}"),
    };
    assert_eq!(options_of(&neighbour(136, Some(target), &[])), (None, false));
    assert_eq!(
        options_of(&neighbour(136, Some(target), &[(1, mac(5)), (2, mac(1))])),
        (Some(mac(1)), false)
    );
    assert_eq!(
        options_of(&neighbour(136, Some(target), &[(2, mac(1)), (2, mac(1))])),
        (Some(mac(1)), false)
    );
    assert!(
        options_of(&neighbour(136, Some(target), &[(2, mac(1)), (2, mac(5))])).1,
        "two addresses"
    );
    // An option without a length, one that ends past the packet, and more than is parsed.
    let with = |tail: &[u8]| [&neighbour(136, Some(target), &[])[..], tail].concat();
    assert!(options_of(&with(&[14, 0, 0, 0, 0, 0, 0, 0])).1);
    assert!(options_of(&with(&[14, 2, 0, 0, 0, 0, 0, 0])).1);
    let padded = neighbour(136, Some(target), &[(14, mac(0)); 8]);
    assert!(options_of(&padded).1);
    assert_eq!(upper(&frame(ethertype::IPV6, &v6(six(), 58, &[136; 23]))), TransportLayer::Broken);
}

#[test]
fn messages_of_dhcp() {
    let ends = [Ipv4Addr::new(10, 0, 0, 254), Ipv4Addr::BROADCAST];
    let bootp_of = |ports: [u16; 2], message: &[u8]| {
        let packet = v4(ends, 17, &udp(ports, message));
        match upper(&parse(&ether(mac(9), mac(254), None, ethertype::IPV4, &packet))) {
            TransportLayer::Udp(Udp { src, dst, bootp }) => {
                assert_eq!([src, dst], ports);
                bootp
            }
            other => panic!("{other:?}"),
        }
    };
    let whole = |op| dhcp(op, mac(9), ends[0], 5);
    assert_eq!(bootp_of([67, 68], &whole(2)), Some(Bootp { reply: true, client: mac(9) }));
    assert_eq!(bootp_of([68, 67], &whole(1)), Some(Bootp { reply: false, client: mac(9) }));
    assert_eq!(bootp_of([67, 69], &whole(2)), None, "another port");
    (0..34).for_each(|cut| assert_eq!(bootp_of([67, 68], &whole(2)[..cut]), None, "{cut}"));
}

/// Returns frames of every kind that is parsed.
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let six = six();
    let target = Some(six[0]);
    let bodies = [
        (ethertype::ARP, arp(mac(1), A[0])),
        (ethertype::IPV4, v4(A, 6, &tcp([1, 2], 3, 0x18, 3, &[7; 90]))),
        (ethertype::IPV4, v4_with(A, 6, 0x2000, &[1; 40], &tcp([1, 2], 3, 0x18, 3, &[7; 90]))),
        (ethertype::IPV4, v4(A, 17, &udp([68, 67], &dhcp(1, mac(1), A[0], 3)))),
        (ethertype::IPV4, v4(A, 17, &udp([67, 68], &dhcp(2, mac(1), A[0], 5)))),
        (ethertype::IPV4, v4(A, 1, &[8; 40])),
        (ethertype::IPV6, v6(six, 6, &tcp([1, 2], 3, 0x18, 3, &[7; 90]))),
        (ethertype::IPV6, v6(six, 58, &neighbour(135, target, &[(1, mac(1))]))),
        (ethertype::IPV6, v6(six, 58, &neighbour(136, target, &[(2, mac(1))]))),
        (
            ethertype::IPV6,
            v6(six, 0, &[extension(44, 1), extension(17, 1), udp([1, 2], b"")].concat()),
        ),
        (0x88cc, vec![1; 60]),
    ];
    let tags = [None, Some(7)];
    let all = bodies.iter().flat_map(|body| tags.map(|tag| (body, tag)));
    all.map(|((kind, body), tag)| ether(mac(2), mac(1), tag, *kind, body)).collect()
}

/// Generates samples with some bytes changed and the end cut off.
pub(crate) fn mutants() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let sample = prop::sample::select(samples());
    (sample, changes, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(mut bytes, changes, cut, whole)| {
            for (at, value) in changes {
                let at = at.index(bytes.len().min(PREFIX_BYTES));
                bytes[at] = value;
            }
            if !whole {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            bytes
        },
    )
}

/// Checks that no position in the result is outside of the frame.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(frame) = Frame::parse(bytes, bytes.len()) else {
        prop_assert!(bytes.len() < 18);
        return Ok(());
    };
    let prefix = &bytes[..bytes.len().min(PREFIX_BYTES)];
    prop_assert_eq!(
        Frame::parse(prefix, bytes.len()),
        Ok(frame.clone()),
        "only the prefix matters"
    );
    let (at, end, transport_layer) = match frame.net() {
        NetworkLayer::V4(ip) => (ip.at, ip.end, ip.transport_layer),
        NetworkLayer::V6(ip) => (ip.at, ip.end, ip.transport_layer),
        _ => return Ok(()),
    };
    prop_assert!(end as usize <= bytes.len());
    if let TransportLayer::Tcp(tcp) = transport_layer {
        let fragment = frame.tcp().is_none();
        prop_assert!(fragment || u32::from(tcp.data_at) <= end);
        prop_assert!(tcp.data_at >= at + 20);
        prop_assert_eq!(&bytes[usize::from(at)..][..2], tcp.src.to_be_bytes());
    }
    let _ = frame.claims();
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_taken(bytes in vec(any::<u8>(), 0..300), kind in 0usize..5) {
        let mut bytes = bytes;
        let kinds = [ethertype::IPV4, ethertype::IPV6, ethertype::ARP, ethertype::VLAN, 0];
        if kinds[kind] != 0 && bytes.len() > 14 {
            bytes[12..14].copy_from_slice(&kinds[kind].to_be_bytes());
        }
        check(&bytes)?;
    }

    #[test]
    fn any_mutant_is_taken(bytes in mutants()) {
        check(&bytes)?;
    }

    #[test]
    fn any_answer_of_a_server_is_taken(
        at in 0usize..600,
        value: u8,
        options in vec(any::<u8>(), 0..300),
    ) {
        let mut message = dhcp(2, mac(9), A[0], 5);
        message.truncate(240);
        message.extend(options);
        let packet = v4(A, 17, &udp([67, 68], &message));
        let mut bytes = ether(mac(9), mac(1), None, ethertype::IPV4, &packet);
        if let Some(place) = bytes.get_mut(at) {
            *place = value;
        }
        check(&bytes)?;
    }
}

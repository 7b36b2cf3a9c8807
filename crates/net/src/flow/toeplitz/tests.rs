//! Published vectors, a naive hash, and the evenness of the spreading.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::flow::BUCKETS;
use crate::frame::ethertype;
use crate::test_frames::{ether, mac, neighbour, parse, tcp, udp, v4, v4_with, v6};

/// Computes the hash bit by bit, as Microsoft's text describes it.
fn naive(key: &[u8; KEY_BYTES], bytes: &[u8]) -> u32 {
    let bit = |of: &[u8], at: usize| of[at / 8] >> (7 - at % 8) & 1;
    let mut result = 0;
    for at in (0..bytes.len() * 8).filter(|at| bit(bytes, *at) == 1) {
        let window = (at..at + 32).fold(0, |all, at| all << 1 | u32::from(bit(key, at)));
        result ^= window;
    }
    result
}

fn frame(src: IpAddr, dst: IpAddr, protocol: u8, body: &[u8]) -> Frame<'static> {
    let (kind, packet) = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => (ethertype::IPV4, v4([src, dst], protocol, body)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => (ethertype::IPV6, v6([src, dst], protocol, body)),
        _ => panic!(),
    };
    parse(&ether(mac(2), mac(1), None, kind, &packet))
}

/// "Verifying the RSS Hash Calculation": destination, source, hash with ports, hash without.
const PUBLISHED: [(&str, u16, &str, u16, u32, u32); 8] = [
    ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x51cc_c178, 0x323e_8fc2),
    ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xc626_b0ea, 0xd718_262a),
    ("12.22.207.184", 38024, "24.19.198.95", 12898, 0x5c2b_394a, 0xd2d0_a5de),
    ("209.142.163.6", 2217, "38.27.205.30", 48228, 0xafc7_327f, 0x8298_9176),
    ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x10e8_28a2, 0x5d18_09c5),
    ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x4020_7d3d, 0x2cc1_8cd5),
    ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0xdde5_1bbf, 0x0f0c_461c),
    (
        "fe80::200:f8ff:fe21:67cf",
        38024,
        "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
        44251,
        0x02d1_feef,
        0x4b61_e985,
    ),
];

#[test]
fn the_published_vectors() {
    let hash = Toeplitz::default();
    for (dst, to, src, from, with_ports, without) in PUBLISHED {
        let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        let segment = frame(src, dst, 6, &tcp([from, to], 0, 0, 0, b""));
        assert_eq!(hash.of(&segment), Some(with_ports), "{src} {dst}");
        let datagram = frame(src, dst, 17, &udp([from, to], b""));
        assert_eq!(hash.of(&datagram), Some(with_ports), "{src} {dst}");
        let fragment = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let packet = v4_with([src, dst], 17, 0x2000, &[], &udp([from, to], b""));
                parse(&ether(mac(2), mac(1), None, ethertype::IPV4, &packet))
            }
            _ => {
                let header = [17, 0, 0, 1, 0, 0, 0, 0];
                frame(src, dst, 44, &[&header, &udp([from, to], b"")[..]].concat())
            }
        };
        assert_eq!(hash.of(&fragment), Some(without), "{src} {dst}");
    }
}

#[test]
fn what_has_no_ports_has_no_flow() {
    let hash = Toeplitz::default();
    let ends = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    let six = ["fe80::1", "fe80::2"].map(|end| end.parse::<Ipv6Addr>().unwrap());
    let nothing = [
        (ethertype::IPV4, v4(ends, 1, &[8; 20])),
        (ethertype::IPV4, v4_with(ends, 1, 0x2000, &[], &[8; 20])),
        (ethertype::IPV4, v4(ends, 6, &[0; 4])),
        (ethertype::IPV6, v6(six, 58, &neighbour(135, Some(six[0]), &[]))),
        (ethertype::ARP, vec![0; 28]),
        (0x88cc, vec![0; 28]),
    ];
    for (kind, body) in nothing {
        assert_eq!(hash.of(&parse(&ether(mac(2), mac(1), None, kind, &body))), None);
    }
    // All fragments of a datagram go to the same queue.
    let parts = [0x2000, 0x2005, 0x000a].map(|place| {
        parse(&ether(
            mac(2),
            mac(1),
            None,
            ethertype::IPV4,
            &v4_with(ends, 17, place, &[], &udp([1, 2], b"")),
        ))
    });
    let [first, second, third] = parts.map(|part| hash.of(&part));
    assert!(first.is_some() && first == second && second == third);
}

/// Flows of one client to one server, whose ports count up by one or two as those of real systems
/// do: each of 128 buckets gets about the same number.
#[test]
fn flows_are_spread_evenly() {
    let hash = Toeplitz::default();
    for (step, server) in [(1, 5201), (2, 443)] {
        let mut buckets = [0u32; BUCKETS];
        let flows = 16_384;
        for flow in 0..flows {
            let port = 1024 + (flow * step) as u16;
            let client = Ipv4Addr::new(10, 0, (flow >> 12) as u8, 7);
            let server_at = Ipv4Addr::new(10, 0, 0, 1);
            let bytes = [client.octets(), server_at.octets()].concat();
            let ports = [port, server].map(u16::to_be_bytes).concat();
            let at = (hash.part(0, &bytes) ^ hash.part(8, &ports)) as usize % BUCKETS;
            buckets[at] += 1;
        }
        let mean = flows / BUCKETS as u32;
        // Five standard deviations of a fair draw are 0.44 of the mean.
        assert!(buckets.iter().all(|count| count.abs_diff(mean) * 100 < mean * 44), "{buckets:?}");
    }
}

proptest! {
    #[test]
    fn tables_say_what_bits_do(
        key in vec(any::<u8>(), KEY_BYTES),
        bytes in vec(any::<u8>(), 0..=INPUT_MAX),
    ) {
        let key = key.try_into().unwrap();
        prop_assert_eq!(Toeplitz::new(&key).part(0, &bytes), naive(&key, &bytes));
    }
}

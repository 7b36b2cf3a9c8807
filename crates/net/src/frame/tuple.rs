//! Endpoints of a common packet, read without parsing the whole packet.

use super::ip::{TCP, UDP};
use super::{Frame, ethertype};
use crate::bytes::array;

/// Protocol, ports and addresses of a TCP or UDP packet (its 5-tuple), as words that compare fast.
/// The words of a packet are never all zero.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct FiveTuple([u64; 5]);

// Compared in registers. A derived comparison calls memcmp, which waits until the words are in
// memory: twice as long as all other work for a known flow.
impl PartialEq for FiveTuple {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let ([a, b, c, d, e], [f, g, h, i, j]) = (self.0, other.0);
        (a ^ f) | (b ^ g) | (c ^ h) | (d ^ i) | (e ^ j) == 0
    }
}

impl FiveTuple {
    fn new(version: u8, protocol: u8, ports: [u8; 4], addresses: [u64; 4]) -> Self {
        let kind = u64::from(version) << 40 | u64::from(protocol) << 32;
        let [a, b, c, d] = addresses;
        Self([kind | u64::from(u32::from_be_bytes(ports)), a, b, c, d])
    }

    /// Returns one of `2^bits` table entries; those of nearby ports and addresses differ. `bits` is
    /// 1 to 64.
    pub fn place(&self, bits: u32) -> usize {
        let [kind, a, b, c, d] = self.0;
        let mixed = (kind ^ a.rotate_left(16) ^ b ^ c.rotate_left(32) ^ d.rotate_left(48))
            // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - bits.clamp(1, 64))) as usize
    }
}

impl Frame<'_> {
    /// Returns the 5-tuple of a whole TCP or UDP packet without IP options or extension headers, if
    /// the prefix contains all headers. The result agrees with [`Frame::net`] and costs less.
    /// Returns `None` if [`Frame::net`] is needed.
    #[inline]
    pub fn tuple(&self) -> Option<FiveTuple> {
        match self.kind {
            ethertype::IPV4 => self.tuple_v4(),
            ethertype::IPV6 => self.tuple_v6(),
            _ => None,
        }
    }

    #[inline]
    fn tuple_v4(&self) -> Option<FiveTuple> {
        let head: [u8; 24] = array(self.prefix, self.net_at.into())?;
        let [first, _, t0, t1, _, _, f0, f1, _, protocol, _, _, ends @ ..] = head;
        let [a, b, c, d, e, f, g, h, ports @ ..] = ends;
        let is_part = u16::from_be_bytes([f0, f1]) & 0x3fff != 0;
        let end = u32::from(self.net_at) + u32::from(u16::from_be_bytes([t0, t1]));
        if first != 0x45 || is_part || !self.is_whole(protocol, self.net_at + 20, end) {
            return None;
        }
        let ends = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        Some(FiveTuple::new(4, protocol, ports, [ends, 0, 0, 0]))
    }

    fn tuple_v6(&self) -> Option<FiveTuple> {
        let at = usize::from(self.net_at);
        let [first, _, _, _, p0, p1, protocol, _]: [u8; 8] = array(self.prefix, at)?;
        let end = u32::from(self.net_at) + 40 + u32::from(u16::from_be_bytes([p0, p1]));
        if first >> 4 != 6 || !self.is_whole(protocol, self.net_at + 40, end) {
            return None;
        }
        let word = |at| array(self.prefix, at).map(u64::from_be_bytes);
        let addresses = [word(at + 8)?, word(at + 16)?, word(at + 24)?, word(at + 32)?];
        Some(FiveTuple::new(6, protocol, array(self.prefix, at + 40)?, addresses))
    }

    /// Returns whether a packet that ends at `end` is within the frame, with its header at `at`.
    #[inline]
    fn is_whole(&self, protocol: u8, at: u16, end: u32) -> bool {
        if end > self.len {
            return false;
        }
        match protocol {
            UDP => u32::from(at) + 8 <= end,
            TCP => {
                let header: Option<[u8; 14]> = array(self.prefix, at.into());
                let Some([.., words, _]) = header else { return false };
                let bytes = u32::from(words >> 4) * 4;
                bytes >= 20 && u32::from(at) + bytes <= end
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::test_frames::{ether, mac, parse, tcp, udp, v4, v4_with, v6};

    #[test]
    fn common_packets_have_one_and_others_do_not() {
        let four = [1, 2].map(|end| Ipv4Addr::new(10, 0, 0, end));
        let six = ["fe80::1", "fe80::2"].map(|end| end.parse::<Ipv6Addr>().unwrap());
        let (tcp, udp) = (tcp([1, 2], 0, 0, 4, b"data"), udp([1, 2], b"data"));
        let of = |kind, packet: &[u8]| {
            [None, Some(7)].map(|tag| parse(&ether(mac(2), mac(1), tag, kind, packet)).tuple())
        };
        let common = [
            of(ethertype::IPV4, &v4(four, 6, &tcp)),
            of(ethertype::IPV4, &v4(four, 17, &udp)),
            of(ethertype::IPV6, &v6(six, 6, &tcp)),
            of(ethertype::IPV6, &v6(six, 17, &udp)),
            of(ethertype::IPV4, &v4([four[1], four[0]], 6, &tcp)),
        ];
        for (at, [plain, tagged]) in common.iter().enumerate() {
            assert!(plain.is_some() && plain == tagged, "{at}");
            assert!(common[..at].iter().all(|other| other[0] != *plain), "{at}");
        }
        let others = [
            of(ethertype::IPV4, &v4_with(four, 17, 0x2000, &[], &udp)),
            of(ethertype::IPV4, &v4_with(four, 17, 0x4000, &[1; 4], &udp)),
            of(ethertype::IPV4, &v4(four, 1, &udp)),
            of(ethertype::IPV4, &v4(four, 6, &tcp[..16])),
            of(ethertype::IPV6, &v6(six, 44, &udp)),
            of(ethertype::ARP, &[0; 28]),
        ];
        assert!(others.iter().flatten().all(Option::is_none));
    }
}

//! Frames for tests, composed by hand.

use net::flow::{Bucket, Toeplitz};
use net::frame::{Frame, PREFIX_BYTES};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use net::checksum::Sum;
use net::header::HEADER_BYTES;

/// Station number of the broadcast address.
pub(crate) const EVERYBODY: u8 = 0xff;
/// Position of the TCP header in an IPv4 frame, and of its data.
pub(crate) const TCP_AT: usize = 34;
pub(crate) const DATA_AT: usize = 54;
/// Position of the TCP header in an IPv6 frame, and of its data.
pub(crate) const TCP6_AT: usize = 54;
pub(crate) const DATA6_AT: usize = 74;

const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const ENDS6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2)];

/// Returns the address of a station.
pub(crate) fn station(number: u8) -> [u8; 6] {
    if number == EVERYBODY { [0xff; 6] } else { [2, 0, 0, 0, 0, number] }
}

fn ether(dst: u8, src: u8, kind: u16) -> Vec<u8> {
    let mut out = [station(dst), station(src)].concat();
    out.extend(kind.to_be_bytes());
    out
}

/// Returns a frame of `bytes` bytes with a protocol that is not parsed.
pub(crate) fn plain(dst: u8, src: u8, bytes: usize) -> Vec<u8> {
    let mut out = ether(dst, src, 0x1234);
    let more = (out.len()..bytes).map(|at| (at * 7 + usize::from(src)) as u8);
    out.extend(more);
    out
}

fn ip(protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0x45, 0];
    out.extend((20 + body.len() as u16).to_be_bytes());
    out.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    out.extend(ENDS.map(|end| end.octets()).concat());
    let mut sum = Sum::default();
    sum.add(&out);
    out[10..12].copy_from_slice(&sum.checksum());
    out.extend(body);
    out
}

/// Returns an ARP request for the other end's address.
pub(crate) fn arp(src: u8, address: Ipv4Addr) -> Vec<u8> {
    let mut out = ether(EVERYBODY, src, 0x806);
    out.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    out.extend([&station(src)[..], &address.octets(), &[0; 6], &ENDS[1].octets()].concat());
    out
}

/// Returns a UDP frame without a checksum.
pub(crate) fn udp(dst: u8, src: u8, ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let mut body = ports.map(u16::to_be_bytes).concat();
    body.extend((8 + data.len() as u16).to_be_bytes());
    body.extend([0, 0]);
    body.extend(data);
    [ether(dst, src, 0x800), ip(17, &body)].concat()
}

/// Returns a TCP frame with a partial checksum.
pub(crate) fn tcp(dst: u8, src: u8, data: &[u8]) -> Vec<u8> {
    [ether(dst, src, 0x800), ip(6, &segment(ENDS.map(IpAddr::V4), data))].concat()
}

/// Returns a TCP frame over IPv6 with a partial checksum.
pub(crate) fn tcp6(dst: u8, src: u8, data: &[u8]) -> Vec<u8> {
    let body = segment(ENDS6.map(IpAddr::V6), data);
    let mut out = ether(dst, src, 0x86dd);
    out.extend([0x60, 0, 0, 0]);
    out.extend((body.len() as u16).to_be_bytes());
    out.extend([6, 64]);
    out.extend(ENDS6.map(|end| end.octets()).concat());
    out.extend(body);
    out
}

fn segment(ends: [IpAddr; 2], data: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80, 0, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    let pseudo = pseudo(ends, out.len() + data.len()).checksum().map(|byte| !byte);
    out[16..18].copy_from_slice(&pseudo);
    out.extend(data);
    out
}

fn pseudo([src, dst]: [IpAddr; 2], bytes: usize) -> Sum {
    Sum::pseudo(src, dst, 6, bytes as u32)
}

/// Returns whether the lengths and the checksums of IP and TCP are right.
pub(crate) fn is_sound(frame: &[u8]) -> bool {
    let is_ipv6 = frame[12..14] == [0x86, 0xdd];
    // Position of the length, the bytes it does not count, and the position of TCP.
    let (ends, len_at, before, tcp_at) = if is_ipv6 {
        (ENDS6.map(IpAddr::V6), 18, TCP6_AT, TCP6_AT)
    } else {
        (ENDS.map(IpAddr::V4), 16, 14, TCP_AT)
    };
    let mut ip = Sum::default();
    ip.add(&frame[14..tcp_at]);
    let mut tcp = pseudo(ends, frame.len() - tcp_at);
    tcp.add(&frame[tcp_at..]);
    let len = u16::from_be_bytes([frame[len_at], frame[len_at + 1]]);
    // IPv6 has no header checksum.
    let is_summed = is_ipv6 || ip.checksum() == [0, 0];
    is_summed && tcp.checksum() == [0, 0] && usize::from(len) == frame.len() - before
}

/// Returns data whose bytes show their position.
pub(crate) fn data(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ at >> 8) as u8).collect()
}

/// Header of a [`tcp`] frame whose checksum is to be completed.
pub(crate) const PARTIAL: [u8; HEADER_BYTES] = [1, 0, 0, 0, 0, 0, TCP_AT as u8, 0, 16, 0, 0, 0];

/// Returns the header of a [`tcp`] frame that is to be cut into segments of `size` bytes of data.
pub(crate) fn cut(size: u16) -> [u8; HEADER_BYTES] {
    let [low, high] = size.to_le_bytes();
    [1, 1, DATA_AT as u8, 0, low, high, TCP_AT as u8, 0, 16, 0, 0, 0]
}

/// Header of a [`tcp6`] frame whose checksum is to be completed.
pub(crate) const PARTIAL6: [u8; HEADER_BYTES] = [1, 0, 0, 0, 0, 0, TCP6_AT as u8, 0, 16, 0, 0, 0];

/// Returns the header of a [`tcp6`] frame that is to be cut into segments of `size` bytes of data.
pub(crate) fn cut6(size: u16) -> [u8; HEADER_BYTES] {
    let [low, high] = size.to_le_bytes();
    [1, 4, DATA6_AT as u8, 0, low, high, TCP6_AT as u8, 0, 16, 0, 0, 0]
}

/// Returns the bucket of a frame's flow.
pub(crate) fn bucket(frame: &[u8]) -> usize {
    let parsed = Frame::parse(&frame[..PREFIX_BYTES], frame.len()).unwrap();
    Bucket::of(Toeplitz::default().of(&parsed).unwrap()).index()
}

//! Frames for tests, put together by hand.

use std::net::{IpAddr, Ipv4Addr};

use net::checksum::Sum;
use net::header::HEADER_BYTES;

/// Everybody, as a number of a station.
pub(crate) const EVERYBODY: u8 = 0xff;
/// Where TCP begins in a frame, and its data.
pub(crate) const TCP_AT: usize = 34;
pub(crate) const DATA_AT: usize = 54;

const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// The address of a station.
pub(crate) fn station(number: u8) -> [u8; 6] {
    if number == EVERYBODY { [0xff; 6] } else { [2, 0, 0, 0, 0, number] }
}

fn ether(dst: u8, src: u8, kind: u16) -> Vec<u8> {
    let mut out = [station(dst), station(src)].concat();
    out.extend(kind.to_be_bytes());
    out
}

/// A frame of so many bytes of a protocol that nobody looks into.
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

/// Asks everybody who has the other end's address.
pub(crate) fn arp(src: u8, address: Ipv4Addr) -> Vec<u8> {
    let mut out = ether(EVERYBODY, src, 0x806);
    out.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    out.extend([&station(src)[..], &address.octets(), &[0; 6], &ENDS[1].octets()].concat());
    out
}

/// UDP without a checksum.
pub(crate) fn udp(dst: u8, src: u8, ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let mut body = ports.map(u16::to_be_bytes).concat();
    body.extend((8 + data.len() as u16).to_be_bytes());
    body.extend([0, 0]);
    body.extend(data);
    [ether(dst, src, 0x800), ip(17, &body)].concat()
}

/// TCP, of whose checksum the pseudo header's part is there.
pub(crate) fn tcp(dst: u8, src: u8, data: &[u8]) -> Vec<u8> {
    let mut body = vec![0x80, 0, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    let pseudo = pseudo(body.len() + data.len()).checksum().map(|byte| !byte);
    body[16..18].copy_from_slice(&pseudo);
    body.extend(data);
    [ether(dst, src, 0x800), ip(6, &body)].concat()
}

fn pseudo(bytes: usize) -> Sum {
    let [src, dst] = ENDS.map(IpAddr::V4);
    Sum::pseudo(src, dst, 6, bytes as u32)
}

/// The checksums of IP and TCP are right.
pub(crate) fn is_sound(frame: &[u8]) -> bool {
    let mut ip = Sum::default();
    ip.add(&frame[14..TCP_AT]);
    let mut tcp = pseudo(frame.len() - TCP_AT);
    tcp.add(&frame[TCP_AT..]);
    [ip, tcp].iter().all(|sum| sum.checksum() == [0, 0])
}

/// Data that tells its place.
pub(crate) fn data(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ at >> 8) as u8).collect()
}

/// The header of a frame of [`tcp`] whose checksum is to be completed.
pub(crate) const PARTIAL: [u8; HEADER_BYTES] = [1, 0, 0, 0, 0, 0, TCP_AT as u8, 0, 16, 0, 0, 0];

/// The header of a frame of [`tcp`] that is to be cut into segments of so much data.
pub(crate) fn cut(size: u16) -> [u8; HEADER_BYTES] {
    let [low, high] = size.to_le_bytes();
    [1, 1, DATA_AT as u8, 0, low, high, TCP_AT as u8, 0, 16, 0, 0, 0]
}

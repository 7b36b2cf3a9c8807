//! Frames for tests, composed by hand.
#![allow(clippy::indexing_slicing)]

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::frame::{Frame, ethertype};
use crate::header::{Header, Offloads};
use crate::mac::Mac;

/// Returns the address of the station with that number.
pub(crate) fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

pub(crate) fn ether(dst: Mac, src: Mac, tag: Option<u16>, kind: u16, body: &[u8]) -> Vec<u8> {
    let mut out = [dst.0, src.0].concat();
    if let Some(tag) = tag {
        out.extend(ethertype::VLAN.to_be_bytes());
        out.extend(tag.to_be_bytes());
    }
    out.extend(kind.to_be_bytes());
    out.extend(body);
    out
}

/// Returns an IPv4 packet. `place` contains flags and fragment offset; the length of `options` must
/// be a multiple of 4 bytes.
pub(crate) fn v4_with(
    [src, dst]: [Ipv4Addr; 2],
    protocol: u8,
    place: u16,
    options: &[u8],
    body: &[u8],
) -> Vec<u8> {
    let header = 20 + options.len();
    let mut out = vec![0x40 | (header / 4) as u8, 0];
    out.extend(((header + body.len()) as u16).to_be_bytes());
    out.extend([0x12, 0x34]);
    out.extend(place.to_be_bytes());
    out.extend([64, protocol, 0, 0]);
    out.extend(src.octets());
    out.extend(dst.octets());
    out.extend(options);
    let sum = naive(&out);
    out[10..12].copy_from_slice(&sum);
    out.extend(body);
    out
}

pub(crate) fn v4(ends: [Ipv4Addr; 2], protocol: u8, body: &[u8]) -> Vec<u8> {
    v4_with(ends, protocol, 0x4000, &[], body)
}

pub(crate) fn v6([src, dst]: [Ipv6Addr; 2], next: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0x60, 0, 0, 0];
    out.extend((body.len() as u16).to_be_bytes());
    out.extend([next, 64]);
    out.extend(src.octets());
    out.extend(dst.octets());
    out.extend(body);
    out
}

/// Returns a TCP segment with `options` words of options and no checksum.
pub(crate) fn tcp(ports: [u16; 2], sequence: u32, flags: u8, options: u8, data: &[u8]) -> Vec<u8> {
    let mut out = ports.map(u16::to_be_bytes).concat();
    out.extend(sequence.to_be_bytes());
    out.extend([0, 0, 0, 9, (5 + options) << 4, flags, 1, 0, 0, 0, 0, 0]);
    out.extend(vec![1; usize::from(options) * 4]);
    out.extend(data);
    out
}

pub(crate) fn udp(ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let mut out = ports.map(u16::to_be_bytes).concat();
    out.extend((8 + data.len() as u16).to_be_bytes());
    out.extend([0, 0]);
    out.extend(data);
    out
}

pub(crate) fn arp(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    let mut out = vec![0, 1, 8, 0, 6, 4, 0, 1];
    out.extend(mac.0);
    out.extend(address.octets());
    out.extend([0; 6]);
    out.extend([10, 0, 0, 99]);
    out
}

/// Returns a neighbour discovery message with options of link-layer addresses.
pub(crate) fn neighbour(kind: u8, target: Option<Ipv6Addr>, options: &[(u8, Mac)]) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    out.extend(target.map(|target| target.octets()).iter().flatten());
    for (kind, mac) in options {
        out.extend([*kind, 1]);
        out.extend(mac.0);
    }
    out
}

/// Returns a DHCP message of a client or server, with a message type.
pub(crate) fn dhcp(op: u8, client: Mac, yours: Ipv4Addr, kind: u8) -> Vec<u8> {
    let mut out = vec![0; 240];
    out[..3].copy_from_slice(&[op, 1, 6]);
    out[16..20].copy_from_slice(&yours.octets());
    out[28..34].copy_from_slice(&client.0);
    out[236..].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
    out.extend([0, 12, 2, b'v', b'm', 53, 1, kind, 255]);
    out
}

/// Computes the Internet checksum of bytes word by word.
pub(crate) fn naive(bytes: &[u8]) -> [u8; 2] {
    let words = bytes
        .chunks(2)
        .map(|two| (u32::from(two[0]) << 8) + two.get(1).map_or(0, |b| u32::from(*b)));
    let mut sum = 0;
    for word in words {
        sum += word;
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Parses a frame whose bytes live as long as the tests do.
pub(crate) fn parse(frame: &[u8]) -> Frame<'static> {
    Frame::parse(frame.to_vec().leak(), frame.len()).unwrap()
}

/// Returns a virtio-net header: flags, type, and the words after them.
pub(crate) fn raw(flags: u8, gso: u8, words: [u16; 4]) -> [u8; 12] {
    let mut out = [0; 12];
    (out[0], out[1]) = (flags, gso);
    for (place, word) in out[2..10].chunks_mut(2).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// Returns a header that requests segments of `size` bytes.
pub(crate) fn gso(frame: &Frame<'_>, size: u16) -> Header {
    let (at, tcp) = frame.tcp().unwrap();
    let kind = if frame.kind == ethertype::IPV4 { 1 } else { 4 };
    let raw = raw(1, kind, [tcp.data_at, size, at, 16]);
    Header::parse(&raw, frame, Offloads::KERNEL).unwrap()
}

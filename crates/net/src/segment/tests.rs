//! Tests that segments equal the frames of a sender without offloads.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::frame::{TransportLayer, ethertype};
use crate::header::Offloads;
use crate::test_frames::{ether, gso, mac, naive, parse, raw, tcp, v4_with, v6};

const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];

/// Returns a large frame: IPv4 with options, or IPv6 with an extension header.
fn large(six: bool, tag: Option<u16>, words: u8, sequence: u32, flags: u8, data: &[u8]) -> Vec<u8> {
    let segment = tcp([1000, 2000], sequence, flags, words, data);
    let (kind, packet) = if six {
        let mut body = if words.is_multiple_of(2) { vec![] } else { vec![6, 0, 1, 4, 0, 0, 0, 0] };
        let next = if body.is_empty() { 6 } else { 60 };
        body.extend(segment);
        (ethertype::IPV6, v6(V6, next, &body))
    } else {
        (ethertype::IPV4, v4_with(V4, 6, 0x4000, &vec![1; usize::from(words % 3) * 4], &segment))
    };
    ether(mac(2), mac(1), tag, kind, &packet)
}

fn cut(bytes: &[u8], size: u16) -> Vec<Vec<u8>> {
    let frame = parse(bytes);
    let header = gso(&frame, size);
    let Some(mut segments) = Segments::new(bytes, &frame, &header) else { return vec![] };
    let (count, most) = (segments.left(), segments.bytes_max());
    let mut room = vec![0xaa; most];
    let mut out = Vec::new();
    while let Some(len) = segments.write_next(&mut room).unwrap() {
        out.push(room[..len].to_vec());
        assert_eq!(segments.left(), count - out.len());
    }
    assert_eq!(out.len(), count);
    out
}

/// Checks the checksums of a segment and returns its sequence number, flags and data.
fn read(bytes: &[u8]) -> (u32, u8, Vec<u8>) {
    let frame = parse(bytes);
    let (at, tcp) = frame.tcp().unwrap();
    let at = usize::from(at);
    let (mut all, end) = match frame.net() {
        NetworkLayer::V4(ip) => {
            let header = &bytes[frame.net_at.into()..at];
            assert_eq!(naive(header), [0, 0], "the header's checksum");
            (V4.map(|end| end.octets()).concat(), ip.end)
        }
        NetworkLayer::V6(ip) => (V6.map(|end| end.octets()).concat(), ip.end),
        other => panic!("{other:?}"),
    };
    assert_eq!(end as usize, bytes.len(), "the packet's length");
    all.extend(((bytes.len() - at) as u32).to_be_bytes());
    all.extend([0, TCP]);
    all.extend(&bytes[at..]);
    assert_eq!(naive(&all), [0, 0], "TCP's checksum");
    let sequence = u32::from_be_bytes(bytes[at + 4..at + 8].try_into().unwrap());
    (sequence, tcp.flags, bytes[tcp.data_at.into()..].to_vec())
}

#[test]
fn fields_that_differ() {
    let data: Vec<_> = (0..25).collect();
    let flags = CWR | PSH | FIN | 0x10;
    let bytes = large(false, Some(7), 0, u32::MAX - 9, flags, &data);
    let segments = cut(&bytes, 10);
    let read: Vec<_> = segments.iter().map(|segment| read(segment)).collect();
    assert_eq!(read[0], (u32::MAX - 9, CWR | 0x10, data[..10].to_vec()));
    assert_eq!(read[1], (0, 0x10, data[10..20].to_vec()), "numbers wrap");
    assert_eq!(read[2], (10, PSH | FIN | 0x10, data[20..].to_vec()));
    let ids: Vec<_> = segments.iter().map(|segment| be16(segment, 18 + 4).unwrap()).collect();
    assert_eq!(ids, [0x1234, 0x1235, 0x1236]);
}

#[test]
fn a_buffer_that_is_too_small_is_told_and_nothing_is_lost() {
    let bytes = large(true, None, 0, 5, 0x10, &[7; 30]);
    let frame = parse(&bytes);
    let mut segments = Segments::new(&bytes, &frame, &gso(&frame, 10)).unwrap();
    let most = segments.bytes_max();
    let mut room = vec![0; most];
    assert_eq!(segments.write_next(&mut room[1..]), Err(BufferTooSmall(most)));
    assert_eq!(segments.left(), 3);
    assert_eq!(segments.write_next(&mut room), Ok(Some(most)));
    assert_eq!(read(&room).0, 5);
}

#[test]
fn only_what_is_to_be_cut_is_cut() {
    let bytes = large(false, None, 0, 5, 0x10, &[7; 30]);
    let frame = parse(&bytes);
    assert!(Segments::new(&bytes, &frame, &Header::default()).is_none());
    assert!(Segments::new(&bytes[..60], &frame, &gso(&frame, 10)).is_none(), "not the whole frame");
    assert!(cut(&bytes, 30).is_empty(), "it is one segment");
    assert_eq!(cut(&bytes, 29).len(), 2);
    // Padding after the packet is not data.
    let mut padded = bytes.clone();
    padded.extend([0; 6]);
    assert_eq!(cut(&padded, 10).concat(), cut(&bytes, 10).concat());
}

#[test]
fn the_largest_frame() {
    let data: Vec<_> = (0..65_535 - 40).map(|at| at as u8).collect();
    let segments = cut(&large(false, None, 0, 1, 0x18, &data), 1448);
    assert_eq!(segments.len(), 46);
    let joined: Vec<u8> = segments.iter().flat_map(|segment| read(segment).2).collect();
    assert!(joined == data);
}

proptest! {
    #[test]
    fn put_together_again_they_are_the_original(
        six: bool,
        tag in prop::option::of(1u16..4095),
        words in 0u8..=10,
        sequence: u32,
        flags: u8,
        data in vec(any::<u8>(), 1..4000),
        size in 8u16..1500,
    ) {
        let bytes = large(six, tag, words, sequence, flags, &data);
        let segments = cut(&bytes, size);
        if data.len() <= usize::from(size) {
            prop_assert!(segments.is_empty());
            return Ok(());
        }
        prop_assert_eq!(segments.len(), data.len().div_ceil(size.into()));
        let (mut joined, mut all_flags) = (Vec::new(), 0);
        for (nth, segment) in segments.iter().enumerate() {
            let (number, flags, part) = read(segment);
            prop_assert_eq!(number, sequence.wrapping_add(joined.len() as u32));
            prop_assert!(nth == 0 || flags & CWR == 0);
            let last = nth + 1 == segments.len();
            prop_assert!(last || flags & (FIN | PSH) == 0 && part.len() == size.into());
            all_flags |= flags;
            joined.extend(part);
            // Addresses, options and tags are unchanged.
            let frame = parse(segment);
            let original = parse(&bytes);
            prop_assert_eq!((frame.dst, frame.src), (original.dst, original.src));
            prop_assert_eq!((frame.tag, frame.kind), (original.tag, original.kind));
            let (at, tcp) = frame.tcp().unwrap();
            let options = &segment[usize::from(at) + 20..tcp.data_at.into()];
            prop_assert_eq!(options, &vec![1; usize::from(words) * 4]);
        }
        prop_assert_eq!((joined, all_flags), (data, flags));
    }

    /// For any frame of a driver, every segment is within its buffer and none exceeds the requested
    /// size.
    #[test]
    fn any_frame_is_cut_within_bounds(bytes in crate::frame::tests::mutants(), size in 8u16..40) {
        let Ok(frame) = Frame::parse(&bytes, bytes.len()) else { return Ok(()) };
        let Some((at, TransportLayer::Tcp(tcp))) = frame.transport() else { return Ok(()) };
        let kind = if frame.kind == ethertype::IPV4 { 1 } else { 4 };
        let raw = raw(1, kind, [tcp.data_at, size, at, 16]);
        let Ok(header) = Header::parse(&raw, &frame, Offloads::KERNEL) else { return Ok(()) };
        let Some(mut segments) = Segments::new(&bytes, &frame, &header) else { return Ok(()) };
        let mut room = vec![0; segments.bytes_max()];
        let count = segments.left();
        for _ in 0..count {
            prop_assert!(segments.write_next(&mut room).unwrap().is_some());
        }
        prop_assert_eq!(segments.write_next(&mut room), Ok(None));
    }
}

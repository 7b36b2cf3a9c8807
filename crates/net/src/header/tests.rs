//! Tests of headers that drivers write, and of hostile ones.

use std::net::Ipv4Addr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::frame::{ethertype, tests::mutants};
use crate::test_frames::{ether, gso, mac, parse, raw, tcp, udp, v4, v4_with, v6};

const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const NOTHING: Offloads =
    Offloads { checksum: false, tcp4: false, tcp6: false, ecn: false, vouches: false };

fn tcp4(tag: Option<u16>, data: usize) -> Frame<'static> {
    let segment = tcp([1, 2], 0, 0x10, 3, &vec![0; data]);
    parse(&ether(mac(2), mac(1), tag, ethertype::IPV4, &v4(ENDS, 6, &segment)))
}

fn tcp6(data: usize) -> Frame<'static> {
    let ends = ["fd00::1", "fd00::2"].map(|end| end.parse().unwrap());
    let segment = tcp([1, 2], 0, 0x10, 0, &vec![0; data]);
    parse(&ether(mac(2), mac(1), None, ethertype::IPV6, &v6(ends, 6, &segment)))
}

fn refusal(raw: &[u8], frame: &Frame<'_>, may: Offloads) -> Reason {
    Header::parse(raw, frame, may).unwrap_err()
}

#[test]
fn nothing_is_asked_for() {
    let frame = tcp4(None, 10);
    let plain = Header::parse(&[0; 12], &frame, NOTHING).unwrap();
    assert_eq!((plain, plain.bytes(1)), (Header::default(), raw(0, 0, [0; 4]).tap(1)));
    // Fields without meaning unless there is segmentation are ignored, and so are unknown flags.
    let noise = Header::parse(&raw(0xf8, 0, [9999, 1, 2, 3]), &frame, NOTHING).unwrap();
    assert_eq!(noise, Header::default());
    for short in 0..12 {
        assert_eq!(refusal(&[0; 12][..short], &frame, NOTHING), Reason::ShortHeader);
    }
}

trait Tap {
    fn tap(self, buffers: u16) -> Self;
}

impl Tap for [u8; 12] {
    fn tap(mut self, buffers: u16) -> Self {
        self[10..].copy_from_slice(&buffers.to_le_bytes());
        self
    }
}

#[test]
fn a_word_for_a_checksum_counts_from_those_who_may_give_it() {
    let frame = tcp4(None, 10);
    let kernel = Header::parse(&raw(2, 0, [0; 4]), &frame, Offloads::KERNEL).unwrap();
    assert_eq!((kernel.checksum(), kernel.bytes(1)[0]), (Checksum::Valid, 2));
    let driver = Offloads { vouches: false, ..Offloads::KERNEL };
    let guest = Header::parse(&raw(2, 0, [0; 4]), &frame, driver).unwrap();
    assert_eq!(guest.checksum(), Checksum::Unknown);
    assert_eq!(kernel.for_receiver(NOTHING), Header::default());
    assert_eq!(kernel.for_receiver(Offloads::KERNEL), kernel);
}

#[test]
fn a_checksum_stays_behind_what_was_decided_on() {
    let frame = tcp4(None, 10);
    let with =
        |start, offset| Header::parse(&raw(1, 0, [0, 0, start, offset]), &frame, Offloads::KERNEL);
    let header = with(34, 16).unwrap();
    assert_eq!(header.checksum(), Checksum::Partial { start: 34, offset: 16 });
    assert_eq!(header.bytes(3), raw(1, 0, [0, 0, 34, 16]).tap(3));
    let last = frame.len as u16 - 2;
    assert!(with(last, 0).is_ok() && with(34, last - 34).is_ok());
    for (start, offset) in
        [(33, 0), (0, 16), (last + 1, 0), (34, last - 33), (34, u16::MAX), (u16::MAX, 0)]
    {
        assert_eq!(with(start, offset), Err(Reason::ChecksumRange), "{start} {offset}");
    }
    assert_eq!(refusal(&raw(1, 0, [0, 0, 34, 16]), &frame, NOTHING), Reason::NotNegotiated);
    // In a frame that is not IP, the checksum may be after the Ethernet header, with room for a
    // tag.
    let opaque = parse(&ether(mac(2), mac(1), None, 0x1234, &[0; 40]));
    assert!(Header::parse(&raw(1, 0, [0, 0, 14, 0]), &opaque, Offloads::KERNEL).is_ok());
    let mut large = opaque;
    large.len = crate::frame::FRAME_MAX;
    let high =
        |start| Header::parse(&raw(1, 0, [0, 0, start, 0]), &large, Offloads::KERNEL).is_ok();
    assert!(high(u16::MAX - 4) && !high(u16::MAX - 3));
}

#[test]
fn segmentation_that_drivers_ask_for() {
    for (frame, kind, tag) in
        [(tcp4(None, 5000), 1, 0), (tcp4(Some(7), 5000), 1, 4), (tcp6(5000), 4, 0)]
    {
        let (at, tcp) = frame.tcp().unwrap();
        // A hint that is too short is corrected; a correct one stays.
        for hint in [0, 14 + tag, tcp.data_at] {
            let raw = raw(1, kind | 0x80, [hint, 1448, at, 16]);
            let header = Header::parse(&raw, &frame, Offloads::KERNEL).unwrap();
            let gso = header.gso().unwrap();
            assert_eq!((gso.size, gso.header, gso.ecn), (1448, tcp.data_at, true));
            assert_eq!(header.bytes(0)[..2], [1, kind | 0x80]);
            assert_eq!(header.bytes(0)[2..4], tcp.data_at.to_le_bytes());
        }
    }
    // A frame that fits into one segment is one.
    let frame = tcp4(None, 1448);
    let small = Header::parse(&raw(1, 1, [66, 1448, 34, 16]), &frame, Offloads::KERNEL).unwrap();
    assert_eq!(
        (small.gso(), small.checksum()),
        (None, Checksum::Partial { start: 34, offset: 16 })
    );
}

#[test]
fn segmentation_that_cannot_be() {
    let four = tcp4(None, 5000);
    let all = Offloads::KERNEL;
    let asked = |gso, size, start, offset| raw(1, gso, [66, size, start, offset]);
    for gso in [2, 6, 7, 0x20, 0x41, 0x7f] {
        assert_eq!(refusal(&asked(gso, 1448, 34, 16), &four, all), Reason::UnknownGso, "{gso}");
    }
    for gso in [3, 5] {
        assert_eq!(refusal(&asked(gso, 1448, 34, 16), &four, all), Reason::NotNegotiated, "{gso}");
    }
    assert_eq!(refusal(&asked(0x80, 0, 34, 16), &four, all), Reason::EcnWithoutGso);
    let no_tcp4 = Offloads { tcp4: false, ..all };
    assert_eq!(refusal(&asked(1, 1448, 34, 16), &four, no_tcp4), Reason::NotNegotiated);
    let no_ecn = Offloads { ecn: false, ..all };
    assert_eq!(refusal(&asked(0x81, 1448, 34, 16), &four, no_ecn), Reason::NotNegotiated);
    assert_eq!(refusal(&raw(0, 1, [66, 1448, 34, 16]), &four, all), Reason::GsoWithoutChecksum);
    for size in 0..GSO_MIN {
        assert_eq!(refusal(&asked(1, size, 34, 16), &four, all), Reason::GsoSize);
    }
    let long = raw(1, 1, [four.len as u16 + 1, 1448, 34, 16]);
    assert_eq!(refusal(&long, &four, all), Reason::GsoHeader);
    // Another protocol than the frame's, or another checksum than TCP's.
    for (gso, start, offset) in [(4, 34, 16), (1, 34, 6), (1, 38, 16)] {
        assert_eq!(refusal(&asked(gso, 1448, start, offset), &four, all), Reason::GsoMismatch);
    }
    assert_eq!(refusal(&asked(1, 1448, 54, 16), &tcp6(5000), all), Reason::GsoMismatch);
    let packets = [
        v4(ENDS, 17, &udp([1, 2], &[0; 5000])),
        v4_with(ENDS, 6, 0x2000, &[], &tcp([1, 2], 0, 0, 0, &[0; 5000])),
    ];
    for packet in packets {
        let frame = parse(&ether(mac(2), mac(1), None, ethertype::IPV4, &packet));
        assert_eq!(refusal(&asked(1, 1448, 34, 16), &frame, all), Reason::GsoMismatch);
    }
    // With a routing header the checksum of a segment is unknown.
    let ends = ["fd00::1", "fd00::2"].map(|end| end.parse().unwrap());
    let routed = [&[6, 0, 0, 0, 0, 0, 0, 0], &tcp([1, 2], 0, 0, 0, &[0; 5000])[..]].concat();
    let frame = parse(&ether(mac(2), mac(1), None, ethertype::IPV6, &v6(ends, 43, &routed)));
    assert_eq!(refusal(&asked(4, 1448, 62, 16), &frame, all), Reason::GsoMismatch);
}

#[test]
fn what_is_finished_for_whom() {
    let whole = gso(&tcp4(None, 5000), 1448);
    let ecn = Header::parse(&raw(1, 0x81, [66, 1448, 34, 16]), &tcp4(None, 5000), Offloads::KERNEL);
    let partial = Header::parse(&raw(1, 0, [0, 0, 34, 16]), &tcp4(None, 9), Offloads::KERNEL);
    let (ecn, partial) = (ecn.unwrap(), partial.unwrap());
    let all = Offloads::KERNEL;
    let only_checksum = Offloads { checksum: true, vouches: true, ..NOTHING };
    for (header, receiver, software_offload) in [
        (whole, all, SoftwareOffload::Nothing),
        (whole, Offloads { ecn: false, ..all }, SoftwareOffload::Nothing),
        (whole, Offloads { tcp6: false, ..all }, SoftwareOffload::Nothing),
        (whole, Offloads { tcp4: false, ..all }, SoftwareOffload::Segment),
        (whole, only_checksum, SoftwareOffload::Segment),
        (whole, NOTHING, SoftwareOffload::Segment),
        (ecn, Offloads { ecn: false, ..all }, SoftwareOffload::Segment),
        (partial, only_checksum, SoftwareOffload::Nothing),
        (partial, NOTHING, SoftwareOffload::Checksum),
        (Header::default(), NOTHING, SoftwareOffload::Nothing),
    ] {
        assert_eq!(header.finish_for(receiver), software_offload, "{header:?} {receiver:?}");
        let given = header.for_receiver(receiver);
        assert_eq!(
            given,
            if software_offload == SoftwareOffload::Nothing { header } else { Header::default() }
        );
        assert_eq!(given.finish_for(receiver), SoftwareOffload::Nothing);
    }
}

#[test]
fn tags_move_what_lies_behind_them() {
    let header = gso(&tcp4(None, 5000), 1448);
    assert_eq!(header.tagged(), gso(&tcp4(Some(7), 5000), 1448));
    assert_eq!(header.tagged().untagged(), header);
    assert_eq!(Header::default().tagged(), Header::default());
}

proptest! {
    /// For any header of a driver: the result is within the frame, respects the offloads of the
    /// receiver, and reads back unchanged.
    #[test]
    fn any_header_is_taken(
        bytes in mutants(),
        header in vec(any::<u8>(), 12),
        near in vec(0u16..140, 4),
        likely: bool,
        sender in 0u8..32,
        receiver in 0u8..32,
    ) {
        let Ok(frame) = Frame::parse(&bytes, bytes.len()) else { return Ok(()) };
        let (flags, kind) = (header[0], if likely { header[1] & 0x85 } else { header[1] });
        let any = [2, 4, 6, 8].map(|at| u16::from_le_bytes([header[at], header[at + 1]]));
        let words = if likely { [near[0], near[1], near[2], near[3] % 20] } else { any };
        let offloads = |bits: u8| {
            let has = |bit: u8| bits >> bit & 1 != 0;
            Offloads { checksum: has(0), tcp4: has(1), tcp6: has(2), ecn: has(3), vouches: has(4) }
        };
        let (sender, receiver) = (offloads(sender), offloads(receiver));
        let parsed = Header::parse(&raw(flags, kind, words), &frame, sender);
        let Ok(header) = parsed else { return Ok(()) };
        if let Checksum::Partial { start, offset } = header.checksum() {
            prop_assert!(u32::from(start) + u32::from(offset) + 2 <= frame.len);
            prop_assert!(sender.checksum);
        }
        if let Some(gso) = header.gso() {
            prop_assert!(u32::from(gso.header) < frame.len && gso.size >= GSO_MIN);
            let partial = matches!(header.checksum(), Checksum::Partial { .. });
            prop_assert!(partial);
        }
        prop_assert_eq!(Header::parse(&header.bytes(0), &frame, Offloads::KERNEL), Ok(header));
        let given = header.for_receiver(receiver);
        let flags = given.bytes(1)[0];
        prop_assert!(receiver.checksum || flags & 1 == 0);
        prop_assert!(receiver.vouches || flags & 2 == 0);
        if let Some(gso) = given.gso() {
            prop_assert!(receiver.segments(gso));
        }
    }
}

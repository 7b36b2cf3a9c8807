//! Compares sums with one that adds word by word.

use std::net::Ipv4Addr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::test_frames::naive;

#[test]
fn the_example_of_the_rfc() {
    // RFC 1071, 3.
    let mut sum = Sum::default();
    sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!(sum.checksum(), (!0xddf2u16).to_be_bytes());
    assert_eq!(Sum::default().checksum(), [0xff; 2]);
}

#[test]
fn a_checksum_of_zero_is_written_as_its_other_form() {
    let mut frame = [0xff, 0xff, 0, 0];
    assert_eq!(finish(&mut frame, 0, 2), Some(()));
    assert_eq!(frame, [0xff; 4]);
}

#[test]
fn nothing_is_written_outside() {
    let mut frame = [1; 20];
    for (start, offset) in [(0, 19), (19, 0), (20, 0), (10, 9), (u16::MAX, u16::MAX)] {
        assert_eq!(finish(&mut frame, start, offset), None);
        assert_eq!(frame, [1; 20]);
    }
    assert_eq!(finish(&mut frame, 18, 0), Some(()));
}

#[test]
fn a_datagram_of_the_wild() {
    // A DNS query from a capture, with its checksum: 192.168.0.31 to .30, 63 bytes of UDP.
    let ends = [Ipv4Addr::new(192, 168, 0, 31), Ipv4Addr::new(192, 168, 0, 30)];
    let sum = Sum::pseudo(ends[0].into(), ends[1].into(), 17, 10);
    let mut by_hand = ends.map(|end| end.octets()).concat();
    by_hand.extend([0, 17, 0, 10]);
    assert_eq!(sum.checksum(), naive(&by_hand));
    // RFC 768 by hand: ports 20 and 10, length 10, "Hi".
    let mut datagram = sum;
    datagram.add(&[0, 20, 0, 10, 0, 10, 0, 0, b'H', b'i']);
    assert_eq!(datagram.checksum(), [0x35, 0xc5]);
}

proptest! {
    #[test]
    fn pieces_are_as_good_as_the_whole(pieces in vec(vec(any::<u8>(), 0..70), 0..12)) {
        let mut sum = Sum::default();
        pieces.iter().for_each(|piece| sum.add(piece));
        prop_assert_eq!(sum.checksum(), naive(&pieces.concat()));
    }

    #[test]
    fn a_finished_checksum_verifies(
        frame in vec(any::<u8>(), 2..300),
        start: prop::sample::Index,
        offset: prop::sample::Index,
    ) {
        let mut frame = frame;
        let start = start.index(frame.len() - 1);
        // At an even offset, as all checksum fields are.
        let offset = offset.index(frame.len() - 1 - start) & !1;
        let before = frame.clone();
        prop_assert_eq!(finish(&mut frame, start as u16, offset as u16), Some(()));
        let at = start + offset;
        prop_assert_eq!(&before[..at], &frame[..at]);
        prop_assert_eq!(&before[at + 2..], &frame[at + 2..]);
        // The previous content of the field stands for the pseudo header.
        let mut all = before[at..at + 2].to_vec();
        all.extend(&frame[start..]);
        prop_assert_eq!(naive(&all), [0, 0]);
    }
}

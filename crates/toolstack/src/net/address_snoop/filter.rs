//! Packet filter programs of the sockets, which the kernel runs for each frame.

use socket2::SockFilter;

use super::dhcp::{DHCP_BYTES, IPV4};
use super::frame::{ARP, FRAME_BYTES, IPV6};

/// Frames that a socket captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaptureFilter {
    /// ARP.
    Arp,
    /// IPv6 neighbour discovery.
    Neighbours,
    /// DHCP client messages.
    Dhcp,
}

/// All kinds of frames that are captured.
pub(super) const KINDS: [CaptureFilter; 3] =
    [CaptureFilter::Arp, CaptureFilter::Neighbours, CaptureFilter::Dhcp];

/// BPF instructions (linux/bpf_common.h). The first two load 16 or 8 bits of the frame. Two jump if
/// they equal a number, or have some of these bits. The last returns the number of bytes to pass, 0
/// to drop.
const HALF: u16 = 0x28;
const BYTE: u16 = 0x30;
const IS: u16 = 0x15;
const HAS: u16 = 0x45;
const TAKE: u16 = 0x06;

const fn load(size: u16, offset: u32) -> SockFilter {
    SockFilter::new(size, 0, 0, offset)
}

/// Skips `yes` instructions if the value is `number`, else `no` instructions.
const fn is(number: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new(IS, yes, no, number)
}

const fn take(bytes: u32) -> SockFilter {
    SockFilter::new(TAKE, 0, 0, bytes)
}

/// Bytes of a frame that are read.
const ALL: u32 = FRAME_BYTES as u32;

/// ARP for IPv4 on Ethernet.
const OF_ARP: &[SockFilter] = &[
    load(HALF, 14),
    is(1, 0, 5),
    load(HALF, 16),
    is(0x0800, 0, 3),
    load(HALF, 18),
    is(0x0604, 0, 1),
    take(ALL),
    take(0),
];

/// ICMPv6 neighbour solicitations and advertisements that no router has forwarded.
const OF_NEIGHBOURS: &[SockFilter] = &[
    load(BYTE, 20),
    is(58, 0, 6),
    load(BYTE, 21),
    is(255, 0, 4),
    load(BYTE, 54),
    is(135, 1, 0),
    is(136, 0, 1),
    take(ALL),
    take(0),
];

/// UDP from the client port to the server port, in an unfragmented packet without IP options.
const OF_DHCP: &[SockFilter] = &[
    load(BYTE, 14),
    is(0x45, 0, 9),
    load(BYTE, 23),
    is(17, 0, 7),
    load(HALF, 20),
    SockFilter::new(HAS, 5, 0, 0x3fff),
    load(HALF, 34),
    is(68, 0, 3),
    load(HALF, 36),
    is(67, 0, 1),
    take(DHCP_BYTES as u32),
    take(0),
];

impl CaptureFilter {
    /// Returns the ethertype of the frames.
    pub(super) fn ethertype(self) -> u16 {
        match self {
            Self::Arp => ARP,
            Self::Neighbours => IPV6,
            Self::Dhcp => IPV4,
        }
    }

    /// Returns the program that passes these frames.
    pub(super) fn program(self) -> &'static [SockFilter] {
        match self {
            Self::Arp => OF_ARP,
            Self::Neighbours => OF_NEIGHBOURS,
            Self::Dhcp => OF_DHCP,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};

    use proptest::prelude::*;
    use socket2::{Domain, Socket, Type};

    use super::super::dhcp::tests::message;
    use super::super::frame::claim;
    use super::super::frame::tests::frames;
    use super::*;

    /// Returns what the kernel passes of an incoming frame.
    fn passed(capture_filter: CaptureFilter, frame: &[u8]) -> Option<Vec<u8>> {
        let (near, far) = Socket::pair(Domain::UNIX, Type::DGRAM, None).unwrap();
        far.set_nonblocking(true).unwrap();
        far.attach_filter(capture_filter.program()).unwrap();
        (&near).write_all(frame).unwrap();
        let mut bytes = [0; 4096];
        match (&far).read(&mut bytes) {
            Ok(len) => Some(bytes[..len].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    proptest! {
        /// A claim passes the filter of its kind only, and only with the bytes that are read.
        #[test]
        fn claims_pass(frame in frames().prop_filter("empty", |frame| !frame.is_empty())) {
            let all = [CaptureFilter::Arp, CaptureFilter::Neighbours].map(|capture_filter| (capture_filter, passed(capture_filter, &frame)));
            let kind = frame.get(12..14).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
            for (capture_filter, passed) in all {
                if let Some(passed) = &passed {
                    prop_assert!(passed.len() <= FRAME_BYTES && frame.starts_with(passed));
                    prop_assert_eq!(claim(passed), claim(&frame));
                }
                if kind == Some(capture_filter.ethertype()) && claim(&frame).is_some() {
                    prop_assert!(passed.is_some(), "{:?}", capture_filter);
                }
            }
        }
    }

    #[test]
    fn clients_of_dhcp_pass() {
        let asks = message([0; 4], &[53, 1, 1, 255]);
        assert_eq!(passed(CaptureFilter::Dhcp, &asks).as_deref(), Some(&asks[..]));
        let long = [&asks[..], &[0; 1000]].concat();
        assert_eq!(passed(CaptureFilter::Dhcp, &long).map(|one| one.len()), Some(DHCP_BYTES));
        // IP options, a fragment, more fragments, another protocol, other ports.
        for (at, byte) in [(14, 0x46), (20, 0x20), (21, 1), (23, 6), (35, 67), (37, 68)] {
            let mut other = asks.clone();
            other[at] = byte;
            assert_eq!(passed(CaptureFilter::Dhcp, &other), None, "{at}");
        }
    }

    #[test]
    fn what_is_neither_does_not_pass() {
        let mut frame = [0; 200];
        for capture_filter in KINDS {
            assert_eq!(passed(capture_filter, &frame), None);
        }
        // A neighbour solicitation that a router has forwarded.
        (frame[20], frame[54]) = (58, 135);
        for (hops, passes) in [(254, false), (255, true)] {
            frame[21] = hops;
            let found = passed(CaptureFilter::Neighbours, &frame);
            assert_eq!(found.map(|found| found.len()), passes.then_some(FRAME_BYTES));
        }
        for (kind, passes) in [(134, false), (135, true), (136, true), (137, false)] {
            frame[54] = kind;
            assert_eq!(passed(CaptureFilter::Neighbours, &frame).is_some(), passes, "{kind}");
        }
    }
}

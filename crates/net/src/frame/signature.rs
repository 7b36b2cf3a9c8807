//! Signature of a packet's flow as raw words: frames with equal signatures have equal endpoints.

use super::ip::TCP;
use super::{Frame, ethertype};
use crate::bytes::array;

/// Position of the first word in a frame. The frame is copied with its virtio-net header before it.
/// With this offset each word lies within one 16-byte piece of that copy, so a read need not wait
/// until the copy is in the cache.
const AT: usize = 12;
/// Mask of the first word: EtherType, IP version and IPv4 header length, and length of the packet.
const WHAT_V4: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0, 0xff, 0xff, 0, 0]);
const WHAT_V6: u64 = u64::from_ne_bytes([0xff, 0xff, 0xf0, 0, 0, 0, 0xff, 0xff]);
/// Mask of the second word: fragment fields, protocol, and part of the source.
const PART_V4: u64 = u64::from_ne_bytes([0xff, 0xff, 0, 0xff, 0, 0, 0xff, 0xff]);
const PART_V6: u64 = u64::from_ne_bytes([0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
/// Mask of the port word: destination port; for IPv6 also the end of its address and the other
/// port.
const PORT_V4: u64 = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
const PORT_V6: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);

/// All bytes that [`Frame::tuple`] reads in a frame without a tag. Comparing these words costs less
/// than reading the fields. The signature of a frame is never all zero.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct FlowSignature([u64; 7]);

// Compared in registers, as tuples are.
impl PartialEq for FlowSignature {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let ([a, b, c, d, e, f, g], [h, i, j, k, l, m, n]) = (self.0, other.0);
        (a ^ h) | (b ^ i) | (c ^ j) | (d ^ k) | (e ^ l) | (f ^ m) | (g ^ n) == 0
    }
}

impl FlowSignature {
    /// Returns the signature of an IPv4 or IPv6 packet without a tag. The prefix must reach the TCP
    /// field for the start of the data. Returns `None` for other frames: use [`Frame::tuple`] for
    /// them.
    #[inline]
    pub fn of(frame: &Frame<'_>) -> Option<Self> {
        let kind = array(frame.prefix, AT).map(u16::from_be_bytes)?;
        match kind {
            ethertype::IPV4 => Self::of_v4(frame),
            ethertype::IPV6 => Self::of_v6(frame),
            _ => None,
        }
    }

    #[inline]
    fn of_v4(frame: &Frame<'_>) -> Option<Self> {
        let head: [u8; 35] = array(frame.prefix, AT)?;
        let word = |at| array(&head, at).map(u64::from_ne_bytes);
        let (what, part, port) = (word(0)? & WHAT_V4, word(8)? & PART_V4, word(24)? & PORT_V4);
        let [.., data] = head;
        Some(Self([what, part, word(16)?, port, rest(frame, head[11], data), 0, 0]))
    }

    #[inline]
    fn of_v6(frame: &Frame<'_>) -> Option<Self> {
        let head: [u8; 55] = array(frame.prefix, AT)?;
        let word = |at| array(&head, at).map(u64::from_ne_bytes);
        let (what, part, port) = (word(0)? & WHAT_V6, word(8)? & PART_V6, word(40)? & PORT_V6);
        let [.., data] = head;
        let rest = rest(frame, head[8], data);
        Some(Self([what, part, word(16)?, port, rest, word(24)?, word(32)?]))
    }
}

/// Returns the length of the frame, and for TCP the position of its data. Other protocols have no
/// such field.
#[inline]
fn rest(frame: &Frame<'_>, protocol: u8, data: u8) -> u64 {
    u64::from(frame.len) << 8 | u64::from(if protocol == TCP { data } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::samples;

    /// Bytes that contain the headers.
    const HEADERS: usize = 70;

    /// Tries each changed bit of a frame's headers, and longer frames.
    #[test]
    fn frames_that_look_alike_have_the_same_ends() {
        let mut alike = 0;
        for bytes in samples() {
            let one = Frame::parse(&bytes, bytes.len()).unwrap();
            let (flow_signature, ends) = (FlowSignature::of(&one), one.tuple());
            assert_ne!(flow_signature, Some(FlowSignature::default()));
            let mut check = |other: &[u8], len: usize| {
                let Ok(other) = Frame::parse(other, len) else { return };
                if flow_signature.is_some() && FlowSignature::of(&other) == flow_signature {
                    assert_eq!(other.tuple(), ends, "{:x?} beside {:x?}", other.prefix, one.prefix);
                    alike += 1;
                }
            };
            for bit in 0..8 * HEADERS.min(bytes.len()) {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                check(&other, bytes.len());
            }
            let longer = [&bytes[..], &[0; 3]].concat();
            (1..3).for_each(|more| check(&longer[..bytes.len() + more], bytes.len() + more));
        }
        assert!(alike > 0);
    }
}

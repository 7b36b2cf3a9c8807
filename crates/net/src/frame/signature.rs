//! What a packet's ends are read from, unread: frames that look alike have the same ends.

use super::ip::TCP;
use super::{Frame, ethertype};
use crate::bytes::array;

/// Where the first word begins in a frame. Each word then lies within 16 bytes of a frame that was copied with
/// its header of virtio-net before it, and need not wait until that copy is in the cache.
const AT: usize = 12;
/// The type; IPv4's version and length of its header, IPv6's version; the length of the packet.
const WHAT_V4: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0, 0xff, 0xff, 0, 0]);
const WHAT_V6: u64 = u64::from_ne_bytes([0xff, 0xff, 0xf0, 0, 0, 0, 0xff, 0xff]);
/// Whether it is a fragment; the protocol; some of the source.
const PART_V4: u64 = u64::from_ne_bytes([0xff, 0xff, 0, 0xff, 0, 0, 0xff, 0xff]);
const PART_V6: u64 = u64::from_ne_bytes([0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
/// The destination's port; with IPv6 also the end of its address and the other port.
const PORT_V4: u64 = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
const PORT_V6: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);

/// All that [`Frame::tuple`] looks at in a frame without a tag, as words that are
/// compared for less than it costs to read the fields. No frame's are all zero.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct FlowSignature([u64; 7]);

// In registers, as tuples.
impl PartialEq for FlowSignature {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let ([a, b, c, d, e, f, g], [h, i, j, k, l, m, n]) = (self.0, other.0);
        (a ^ h) | (b ^ i) | (c ^ j) | (d ^ k) | (e ^ l) | (f ^ m) | (g ^ n) == 0
    }
}

impl FlowSignature {
    /// Of an IPv4 or IPv6 packet without a tag, of which the first bytes are there up to where TCP says where
    /// its data begins: for those without, [`Frame::tuple`] is to be asked.
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

/// How long the frame is, and where TCP says that its data begins. Others say nothing there.
#[inline]
fn rest(frame: &Frame<'_>, protocol: u8, data: u8) -> u64 {
    u64::from(frame.len) << 8 | u64::from(if protocol == TCP { data } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::samples;

    /// Bytes in which headers are.
    const HEADERS: usize = 70;

    /// Whatever bit of a frame's headers is another one, and however much longer it is.
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

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

/// All that [`Frame::tuple`] looks at in a frame without a tag, as words that compare fast, for a third of
/// what it costs to read them. No frame's are all zero.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct Look([u64; 7]);

// In registers, as tuples.
impl PartialEq for Look {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let ([a, b, c, d, e, f, g], [h, i, j, k, l, m, n]) = (self.0, other.0);
        (a ^ h) | (b ^ i) | (c ^ j) | (d ^ k) | (e ^ l) | (f ^ m) | (g ^ n) == 0
    }
}

impl Look {
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
    use proptest::prelude::*;

    use super::*;
    use crate::frame::tests::mutants;

    /// A frame, and the same with one byte that is another one.
    fn neighbours() -> impl Strategy<Value = [Vec<u8>; 2]> {
        (mutants(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(bytes, at, value)| {
            let mut other = bytes.clone();
            if !other.is_empty() {
                // Headers are what is looked at.
                other[at.index(bytes.len().min(70))] = value;
            }
            [bytes, other]
        })
    }

    proptest! {
        #[test]
        fn frames_that_look_alike_have_the_same_ends(frames in neighbours(), longer in 0..3_usize) {
            let [one, other] = &frames;
            let parsed = [(one, one.len()), (other, other.len() + longer)];
            let [Ok(one), Ok(other)] = parsed.map(|(bytes, len)| Frame::parse(bytes, len)) else {
                return Ok(());
            };
            let (looks, ends) = ([&one, &other].map(Look::of), [&one, &other].map(|frame| frame.tuple()));
            if looks[0].is_some() && looks[0] == looks[1] {
                prop_assert_eq!(ends[0], ends[1]);
            }
            prop_assert!(looks.iter().flatten().all(|look| *look != Look::default()));
        }
    }
}

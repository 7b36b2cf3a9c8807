//! Hashes of flows that were seen of late: what is told of one frame of a flow holds for the next.

use super::toeplitz::Toeplitz;
use crate::frame::{FiveTuple, FlowSignature, Frame};

/// Flows that are remembered: two to the power of this, of 48 bytes each.
const PLACES_BITS: u32 = 6;

/// A hash that is worked out once for flows that send many frames. It tells what [`Toeplitz::of`] does.
///
/// To parse what a frame carries, and to hash it, costs about a fifth of all that is done for one of
/// 1,514 bytes (`ringway lab run net-queues --only nic-1500` compares); to compare a few words does not.
#[derive(Clone, Debug)]
pub struct FlowHashCache {
    hash: Toeplitz,
    /// The last frame that had a tuple: that the next is of the same flow is foreseen by the CPU, which then
    /// need not wait for a place.
    last: Last,
    /// By [`FiveTuple::place`]. Flows that share a place take it from each other.
    places: Box<[(FiveTuple, u32)]>,
}

/// A frame, and the hash of its flow.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    flow_signature: FlowSignature,
    tuple: FiveTuple,
    hash: u32,
}

impl Default for FlowHashCache {
    fn default() -> Self {
        Self::new(Toeplitz::default())
    }
}

impl FlowHashCache {
    /// Of this hash.
    pub fn new(hash: Toeplitz) -> Self {
        let places = vec![Default::default(); 1 << PLACES_BITS].into();
        Self { hash, last: Last::default(), places }
    }

    /// The hash of a frame's flow; see [`Toeplitz::of`].
    #[inline]
    pub fn of(&mut self, frame: &Frame<'_>) -> Option<u32> {
        match FlowSignature::of(frame) {
            Some(flow_signature) if flow_signature == self.last.flow_signature => {
                Some(self.last.hash)
            }
            flow_signature => self.of_another(flow_signature.unwrap_or_default(), frame),
        }
    }

    /// Of a frame that is not just like the last one.
    #[inline(never)]
    fn of_another(&mut self, flow_signature: FlowSignature, frame: &Frame<'_>) -> Option<u32> {
        let Some(tuple) = frame.tuple() else { return self.hash.of(frame) };
        if tuple != self.last.tuple {
            (self.last.tuple, self.last.hash) = (tuple, self.find(tuple, frame)?);
        }
        self.last.flow_signature = flow_signature;
        Some(self.last.hash)
    }

    fn find(&mut self, tuple: FiveTuple, frame: &Frame<'_>) -> Option<u32> {
        let place = self.places.get_mut(tuple.place(PLACES_BITS))?;
        if tuple != place.0 {
            *place = (tuple, self.hash.of(frame)?);
        }
        Some(place.1)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::frame::ethertype;
    use crate::frame::tests::mutants;
    use crate::test_frames::{ether, mac, parse, tcp, v4};

    #[test]
    fn more_flows_than_places_are_told_apart() {
        let (mut flow_hash_cache, hash) = (FlowHashCache::default(), Toeplitz::default());
        let ends = [1, 2].map(|end| Ipv4Addr::new(10, 0, 0, end));
        for _ in 0..3 {
            for port in 1..500 {
                let packet = v4(ends, 6, &tcp([port, 80], 0, 0, 0, b""));
                let frame = parse(&ether(mac(2), mac(1), None, ethertype::IPV4, &packet));
                assert!(flow_hash_cache.of(&frame).is_some());
                assert_eq!(flow_hash_cache.of(&frame), hash.of(&frame));
            }
        }
    }

    proptest! {
        /// Mutants of few frames: they share ends, and differ in what makes a packet a broken one.
        #[test]
        fn it_says_what_the_hash_does(frames in vec(mutants(), 1..20)) {
            let (mut flow_hash_cache, hash) = (FlowHashCache::default(), Toeplitz::default());
            for bytes in frames {
                let Ok(frame) = Frame::parse(&bytes, bytes.len()) else { continue };
                prop_assert_eq!(flow_hash_cache.of(&frame), hash.of(&frame));
            }
        }
    }
}

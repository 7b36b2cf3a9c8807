//! Cache of the hashes of recent flows: all frames of a flow have the same hash.

use super::toeplitz::Toeplitz;
use crate::frame::{FiveTuple, FlowSignature, Frame};

/// Binary logarithm of the number of cached flows, which take 48 bytes each.
const PLACES_BITS: u32 = 6;

/// Hash that is computed once for flows that send many frames, with the results of
/// [`Toeplitz::of`].
///
/// Parsing and hashing a frame costs about a fifth of all work for a frame of 1,514 bytes (`ringway
/// lab run net-queues --only nic-1500` compares). Comparing a few words is much cheaper.
#[derive(Clone, Debug)]
pub struct FlowHashCache {
    hash: Toeplitz,
    /// Last frame with a tuple. The CPU predicts that the next frame belongs to the same flow, and
    /// then need not wait for a cache entry.
    last: Last,
    /// Entries by [`FiveTuple::place`]. Flows with the same place replace each other.
    places: Box<[(FiveTuple, u32)]>,
}

/// Frame, and the hash of its flow.
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
    /// Creates a cache for this hash.
    pub fn new(hash: Toeplitz) -> Self {
        let places = vec![Default::default(); 1 << PLACES_BITS].into();
        Self { hash, last: Last::default(), places }
    }

    /// Returns the hash of a frame's flow; see [`Toeplitz::of`].
    #[inline]
    pub fn of(&mut self, frame: &Frame<'_>) -> Option<u32> {
        match FlowSignature::of(frame) {
            Some(flow_signature) if flow_signature == self.last.flow_signature => {
                Some(self.last.hash)
            }
            flow_signature => self.of_another(flow_signature.unwrap_or_default(), frame),
        }
    }

    /// Returns the hash for a frame whose signature differs from the last one's.
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
        /// Mutated frames of few kinds: they share addresses, and differ in details that make a
        /// packet invalid.
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

//! Hashes of flows that were seen of late: what is told of one frame of a flow holds for the next.

use super::toeplitz::Toeplitz;
use crate::frame::{Frame, Tuple};

/// Flows that are remembered: two to the power of this, of 48 bytes each.
const PLACES_BITS: u32 = 6;

/// A hash that is worked out once for flows that send many frames. It tells what [`Toeplitz::of`] does.
///
/// To parse what a frame carries, and to hash it, costs about a fifth of all that is done for one of
/// 1,514 bytes (`ringway lab run net-queues --only nic-1500` compares); to compare five words does not.
#[derive(Clone, Debug)]
pub struct Memo {
    hash: Toeplitz,
    /// The flow of the last frame: that the next is of the same one is foreseen by the CPU, which then
    /// need not wait for a place.
    last: (Tuple, u32),
    /// By [`Tuple::place`]. Flows that share a place take it from each other.
    places: Box<[(Tuple, u32)]>,
}

impl Default for Memo {
    fn default() -> Self {
        Self::new(Toeplitz::default())
    }
}

impl Memo {
    /// Of this hash.
    pub fn new(hash: Toeplitz) -> Self {
        let places = vec![Default::default(); 1 << PLACES_BITS].into();
        Self { hash, last: Default::default(), places }
    }

    /// The hash of a frame's flow; see [`Toeplitz::of`].
    #[inline]
    pub fn of(&mut self, frame: &Frame<'_>) -> Option<u32> {
        match frame.tuple() {
            Some(tuple) if tuple == self.last.0 => Some(self.last.1),
            tuple => self.of_another(tuple, frame),
        }
    }

    /// Of another flow than the last frame's, or of what has no tuple.
    #[inline(never)]
    fn of_another(&mut self, tuple: Option<Tuple>, frame: &Frame<'_>) -> Option<u32> {
        let Some(tuple) = tuple else { return self.hash.of(frame) };
        self.last = (tuple, self.find(tuple, frame)?);
        Some(self.last.1)
    }

    fn find(&mut self, tuple: Tuple, frame: &Frame<'_>) -> Option<u32> {
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
    use crate::trial::{ether, mac, parse, tcp, v4};

    #[test]
    fn more_flows_than_places_are_told_apart() {
        let (mut memo, hash) = (Memo::default(), Toeplitz::default());
        let ends = [1, 2].map(|end| Ipv4Addr::new(10, 0, 0, end));
        for _ in 0..3 {
            for port in 1..500 {
                let packet = v4(ends, 6, &tcp([port, 80], 0, 0, 0, b""));
                let frame = parse(&ether(mac(2), mac(1), None, ethertype::IPV4, &packet));
                assert!(memo.of(&frame).is_some());
                assert_eq!(memo.of(&frame), hash.of(&frame));
            }
        }
    }

    proptest! {
        /// Mutants of few frames: they share ends, and differ in what makes a packet a broken one.
        #[test]
        fn it_says_what_the_hash_does(frames in vec(mutants(), 1..20)) {
            let (mut memo, hash) = (Memo::default(), Toeplitz::default());
            for bytes in frames {
                let Ok(frame) = Frame::parse(&bytes, bytes.len()) else { continue };
                prop_assert_eq!(memo.of(&frame), hash.of(&frame));
            }
        }
    }
}

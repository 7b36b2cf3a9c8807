//! Ways that frames have gone of late: what was decided about one holds for those that follow it.
//!
//! To decide takes two looks into a table and one at each policy that has a say. Between two stations the
//! answer is the same until something of that changes, so it is kept for a moment: most frames then cost
//! one comparison. Only what depends on nothing but addresses and tag is kept: of ports that are locked
//! every frame is checked, and what goes to many is decided each time.

use super::Switch;
use super::decide::longest;
use crate::frame::{Frame, Tag};
use crate::header::Header;
use crate::mac::Mac;
use crate::port::{EffectiveMode, PortId, TagAction};

/// Bits of a way's place: 256 ways.
const BITS: u32 = 8;
/// How long a way holds, in nanoseconds. A station that was silent for too long is forgotten that much
/// later, and that one has sent again is noted that much later.
const HOLDS_NS: u64 = 10_000_000;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardingEntry {
    /// The port that it goes to.
    pub to: PortId,
    /// What becomes of its tag.
    pub tag_action: TagAction,
}

#[derive(Clone, Copy, Debug)]
struct CacheSlot {
    from: PortId,
    tag: Option<Tag>,
    src: Mac,
    dst: Mac,
    /// Longest frame that may go this way, as [`longest`] tells.
    longest: u32,
    /// From then on it holds no more; 0: there is none.
    until_ns: u64,
    forwarding_entry: ForwardingEntry,
}

const EMPTY: CacheSlot = CacheSlot {
    from: PortId(0),
    tag: None,
    src: Mac([0; 6]),
    dst: Mac([0; 6]),
    longest: 0,
    until_ns: 0,
    forwarding_entry: ForwardingEntry { to: PortId(0), tag_action: TagAction::Keep },
};

/// The ways of a switch.
#[derive(Debug)]
pub(super) struct ForwardingCache {
    places: Box<[CacheSlot; 1 << BITS]>,
    /// There is none, so that to forget them costs nothing: a guest may make up stations.
    none: bool,
}

impl Default for ForwardingCache {
    fn default() -> Self {
        Self { places: Box::new([EMPTY; 1 << BITS]), none: true }
    }
}

impl ForwardingCache {
    /// Something has changed that others than frames on their way depend on.
    pub(super) fn forget(&mut self) {
        if !self.none {
            self.places.fill(EMPTY);
            self.none = true;
        }
    }

    /// Where the way of such a frame is kept, if it is.
    fn at(frame: &Frame<'_>) -> usize {
        let stations = frame.src.number() ^ frame.dst.number().rotate_left(24);
        // Fibonacci hashing: the high bits are good. They are a place.
        (stations.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BITS)) as usize
    }
}

impl Switch {
    /// Where a frame from port `from` goes at `now_ns`, if others like it went there just now. What
    /// [`Switch::decide`] would teach of it is known.
    pub fn lookup(
        &self,
        from: PortId,
        frame: &Frame<'_>,
        header: &Header,
        now_ns: u64,
    ) -> Option<ForwardingEntry> {
        let cache_slot = self.forwarding_cache.places.get(ForwardingCache::at(frame))?;
        let same = cache_slot.dst == frame.dst && cache_slot.src == frame.src;
        let holds = same
            && cache_slot.from == from
            && cache_slot.tag == frame.tag
            && now_ns < cache_slot.until_ns;
        (holds && longest(frame, header) <= cache_slot.longest)
            .then_some(cache_slot.forwarding_entry)
    }

    /// A frame goes from one station to another, and taught nothing: so do those after it.
    pub(super) fn insert(
        &mut self,
        from: PortId,
        frame: &Frame<'_>,
        to: (PortId, u16),
        now_ns: u64,
    ) {
        let Ok((policy, network)) = self.place(from) else { return };
        if !matches!(policy.mode(network.policy.default), EffectiveMode::Open) {
            return;
        }
        let (longest, (to, vlan)) = (network.policy.mtu.into(), to);
        let forwarding_entry = ForwardingEntry { to, tag_action: self.tagging(to, vlan, frame) };
        let until_ns = now_ns.saturating_add(HOLDS_NS);
        self.forwarding_cache.none = false;
        if let Some(cache_slot) = self.forwarding_cache.places.get_mut(ForwardingCache::at(frame)) {
            let Frame { tag, src, dst, .. } = *frame;
            *cache_slot = CacheSlot { from, tag, src, dst, longest, until_ns, forwarding_entry };
        }
    }
}

#[cfg(test)]
mod tests;

//! Cache of recent forwarding decisions.
//!
//! A decision takes two table look-ups and a check of each policy involved. Between two stations
//! the result stays the same until one of these changes, so it is cached for a short time. Most
//! frames then cost one comparison. Only decisions that depend on nothing but addresses and tag are
//! cached. Every frame of a locked port is checked, and every flood is decided anew.

use super::Switch;
use super::decide::longest;
use crate::frame::{Frame, Tag};
use crate::header::Header;
use crate::mac::Mac;
use crate::port::{EffectiveMode, PortId, TagAction};

/// Binary logarithm of the number of entries: 256.
const BITS: u32 = 8;
/// Lifetime of an entry in nanoseconds. The aging of a silent station, and the refresh of an active
/// one, may be late by as much.
const HOLDS_NS: u64 = 10_000_000;

/// Cached decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardingEntry {
    /// Destination port.
    pub to: PortId,
    /// Change of the frame's tag.
    pub tag_action: TagAction,
}

#[derive(Clone, Copy, Debug)]
struct CacheSlot {
    from: PortId,
    tag: Option<Tag>,
    src: Mac,
    dst: Mac,
    /// Length of the longest frame that the entry applies to, as [`longest`] computes it.
    longest: u32,
    /// Time at which the entry expires; 0 for an empty slot.
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

/// Cached decisions of a switch.
#[derive(Debug)]
pub(super) struct ForwardingCache {
    places: Box<[CacheSlot; 1 << BITS]>,
    /// True if the cache is empty, so that clearing it costs nothing: a guest may invent stations.
    none: bool,
}

impl Default for ForwardingCache {
    fn default() -> Self {
        Self { places: Box::new([EMPTY; 1 << BITS]), none: true }
    }
}

impl ForwardingCache {
    /// Clears the cache after a change that cached decisions depend on.
    pub(super) fn forget(&mut self) {
        if !self.none {
            self.places.fill(EMPTY);
            self.none = true;
        }
    }

    /// Returns the index of the slot for such a frame.
    fn at(frame: &Frame<'_>) -> usize {
        let stations = frame.src.number() ^ frame.dst.number().rotate_left(24);
        // Fibonacci hashing: the high bits are good, and they are the index.
        (stations.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BITS)) as usize
    }
}

impl Switch {
    /// Returns the decision for a frame from port `from` at `now_ns`, if it is cached from similar
    /// frames. Such a frame teaches the switch nothing new.
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

    /// Caches the decision for a frame between two stations that taught the switch nothing.
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

//! The flows of which most is sent, in few places (Metwally, Agrawal and El Abbadi, "Efficient
//! Computation of Frequent and Top-k Elements in Data Streams", 2005: Space-Saving).
//!
//! Each place has a flow and what was seen of it. A flow without a place takes that of the one with
//! least, and what that one had: so a flow that sends more than a sixteenth of everything always has a
//! place, and what is told of a flow is too much by no more than what it began with. Everything is
//! halved now and then, so that what was large long ago makes room.
//!
//! One frame of sixteen is looked at, by chance, and counts for sixteen: a flow that is worth a name
//! sends many.

use std::net::IpAddr;

use crate::frame::{Frame, Ip, NetworkLayer, TransportLayer};
use crate::port::PortId;

/// Places.
pub const FLOWS: usize = 16;
/// Half of what was seen is forgotten after so long, in nanoseconds.
pub const HALF_LIFE_NS: u64 = 5_000_000_000;
/// One frame of so many is looked at: two to the power of this.
const LOOKS_BITS: u32 = 4;
/// Numbers of frames that may pass between two that are looked at, from 0 on: that many on average.
const SPREAD: u64 = (2 << LOOKS_BITS) - 1;

/// Between whom a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    /// Source and destination; nothing if it is not IP.
    pub ends: Option<(IpAddr, IpAddr)>,
    /// Number of the protocol over IP.
    pub protocol: u8,
    /// Source and destination ports, if it has any.
    pub ports: Option<(u16, u16)>,
    /// The port of the switch that it goes to; nothing if it goes to several.
    pub to: Option<PortId>,
}

impl FlowKey {
    /// Of a frame that goes `to` there.
    pub fn of(frame: &Frame<'_>, to: Option<PortId>) -> Self {
        match frame.net() {
            NetworkLayer::V4(ip) => Self::packet(&ip, to),
            NetworkLayer::V6(ip) => Self::packet(&ip, to),
            NetworkLayer::Opaque | NetworkLayer::Broken | NetworkLayer::Arp(_) => {
                Self { ends: None, protocol: 0, ports: None, to }
            }
        }
    }

    fn packet<A: Copy + Into<IpAddr>>(ip: &Ip<A>, to: Option<PortId>) -> Self {
        let ports = match ip.transport_layer {
            // Its flow is that of the addresses alone: only the first fragment has ports.
            _ if ip.fragment => None,
            TransportLayer::Tcp(tcp) => Some((tcp.src, tcp.dst)),
            TransportLayer::Udp(udp) => Some((udp.src, udp.dst)),
            _ => None,
        };
        Self { ends: Some((ip.src.into(), ip.dst.into())), protocol: ip.protocol, ports, to }
    }
}

/// What was seen of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopFlow {
    /// Between whom.
    pub key: FlowKey,
    /// Bytes of late: about what it sent in the last seven seconds.
    pub bytes: u64,
    /// So many of those may be others'.
    pub error: u64,
}

/// What was seen of the largest flows.
#[derive(Clone, Debug)]
pub struct TopFlows {
    /// Looked at for each frame, so they lie together.
    hashes: [u32; FLOWS],
    flows: [Option<TopFlow>; FLOWS],
    /// Bytes of all flows of late.
    total: u64,
    /// When everything is halved next; 0: nothing was seen yet.
    halve_ns: u64,
    /// Frames that pass before one is looked at.
    unseen: u32,
    dice: u64,
}

impl Default for TopFlows {
    fn default() -> Self {
        Self { hashes: [0; FLOWS], flows: [None; FLOWS], total: 0, halve_ns: 0, unseen: 0, dice: 1 }
    }
}

impl TopFlows {
    /// Sees a frame of a flow with this hash, which is asked for if it is looked at. Flows with the same
    /// hash are taken for one, what has none is of no flow.
    pub fn see(
        &mut self,
        hash: impl FnOnce() -> Option<u32>,
        bytes: u64,
        now_ns: u64,
        key: impl FnOnce() -> FlowKey,
    ) {
        if self.unseen > 0 {
            self.unseen -= 1;
            return;
        }
        // Knuth's MMIX generator: its high bits are good. No flow keeps time with it.
        let dice = self.dice.wrapping_mul(6_364_136_223_846_793_005);
        self.dice = dice.wrapping_add(1_442_695_040_888_963_407);
        self.unseen = (((self.dice >> 32) * SPREAD) >> 32) as u32;
        if let Some(hash) = hash() {
            self.count(hash, bytes << LOOKS_BITS, now_ns, key);
        }
    }

    fn count(&mut self, hash: u32, bytes: u64, now_ns: u64, key: impl FnOnce() -> FlowKey) {
        self.age(now_ns);
        self.total = self.total.saturating_add(bytes);
        let places = self.hashes.iter().zip(&mut self.flows);
        let same = places.filter(|(one, _)| **one == hash).find_map(|(_, flow)| flow.as_mut());
        if let Some(flow) = same {
            flow.bytes = flow.bytes.saturating_add(bytes);
            return;
        }
        // An empty place has least.
        let places = self.hashes.iter_mut().zip(&mut self.flows);
        let least = places.min_by_key(|(_, flow)| flow.as_ref().map(|flow| flow.bytes));
        if let Some((place, flow)) = least {
            let error = flow.as_ref().map_or(0, |flow| flow.bytes);
            *place = hash;
            *flow = Some(TopFlow { key: key(), bytes: error.saturating_add(bytes), error });
        }
    }

    /// Forgets what is due to be forgotten.
    fn age(&mut self, now_ns: u64) {
        if self.halve_ns == 0 {
            self.halve_ns = now_ns.saturating_add(HALF_LIFE_NS);
        }
        let Some(late) = now_ns.checked_sub(self.halve_ns) else { return };
        let times = 1 + late / HALF_LIFE_NS;
        self.halve_ns = (now_ns - late % HALF_LIFE_NS).saturating_add(HALF_LIFE_NS);
        let halve = |sum: u64| sum.checked_shr(times.min(64) as u32).unwrap_or(0);
        self.total = halve(self.total);
        for place in &mut self.flows {
            *place = place.map(|flow| TopFlow {
                bytes: halve(flow.bytes),
                error: halve(flow.error),
                ..flow
            });
            place.take_if(|flow| flow.bytes == 0);
        }
    }

    /// What is there at `now_ns`, the largest first, and the bytes of all flows together.
    pub fn read(&mut self, now_ns: u64) -> (Vec<TopFlow>, u64) {
        self.age(now_ns);
        let mut all: Vec<_> = self.flows.iter().flatten().copied().collect();
        all.sort_by_key(|flow| std::cmp::Reverse(flow.bytes));
        (all, self.total)
    }
}

#[cfg(test)]
mod tests;

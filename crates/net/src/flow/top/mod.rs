//! Flows that send most, in few entries (Metwally, Agrawal and El Abbadi, "Efficient Computation of
//! Frequent and Top-k Elements in Data Streams", 2005: Space-Saving).
//!
//! Each entry has a flow and its bytes. A flow without an entry takes the entry with the fewest
//! bytes and inherits these bytes. So a flow that sends more than a sixteenth of all bytes always
//! has an entry. The bytes of a flow are too many by at most the inherited ones. All counts are
//! halved periodically, so that flows that were large long ago make room.
//!
//! One frame of sixteen is sampled at random and counts for sixteen: a flow that matters sends many
//! frames.

use std::net::IpAddr;

use crate::frame::{Frame, Ip, NetworkLayer, TransportLayer};
use crate::port::PortId;

/// Number of entries.
pub const FLOWS: usize = 16;
/// Time after which all counts are halved, in nanoseconds.
pub const HALF_LIFE_NS: u64 = 5_000_000_000;
/// Binary logarithm of the sampling interval: one frame of that many is sampled.
const SAMPLE_BITS: u32 = 4;
/// Possible numbers of frames between two samples, from 0 on; their average gives the sampling
/// interval.
const SPREAD: u64 = (2 << SAMPLE_BITS) - 1;

/// Endpoints of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    /// Source and destination; `None` if the flow is not IP.
    pub ends: Option<(IpAddr, IpAddr)>,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination ports, if there are any.
    pub ports: Option<(u16, u16)>,
    /// Destination port of the switch; `None` if the flow goes to several.
    pub to: Option<PortId>,
}

impl FlowKey {
    /// Returns the key of a frame that goes to `to`.
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
            // The flow is that of the addresses alone: only the first fragment has ports.
            _ if ip.fragment => None,
            TransportLayer::Tcp(tcp) => Some((tcp.src, tcp.dst)),
            TransportLayer::Udp(udp) => Some((udp.src, udp.dst)),
            _ => None,
        };
        Self { ends: Some((ip.src.into(), ip.dst.into())), protocol: ip.protocol, ports, to }
    }
}

/// Counts of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopFlow {
    /// Endpoints.
    pub key: FlowKey,
    /// Recent bytes: about those of the last seven seconds.
    pub bytes: u64,
    /// Part of `bytes` that may belong to other flows.
    pub error: u64,
}

/// Counts of the largest flows.
#[derive(Clone, Debug)]
pub struct TopFlows {
    /// Hashes of the entries, searched for each sample and therefore stored together.
    hashes: [u32; FLOWS],
    flows: [Option<TopFlow>; FLOWS],
    /// Recent bytes of all flows.
    total: u64,
    /// Time of the next halving; 0 before the first sample.
    halve_ns: u64,
    /// Frames until the next sample.
    unseen: u32,
    dice: u64,
}

impl Default for TopFlows {
    fn default() -> Self {
        Self { hashes: [0; FLOWS], flows: [None; FLOWS], total: 0, halve_ns: 0, unseen: 0, dice: 1 }
    }
}

impl TopFlows {
    /// Counts a frame of a flow if the frame is sampled; only then `hash` and `key` are called.
    /// Flows with the same hash count as one. A frame without a hash belongs to no flow.
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
        // Knuth's MMIX generator: its high bits are good. No flow stays in step with it.
        let dice = self.dice.wrapping_mul(6_364_136_223_846_793_005);
        self.dice = dice.wrapping_add(1_442_695_040_888_963_407);
        self.unseen = (((self.dice >> 32) * SPREAD) >> 32) as u32;
        if let Some(hash) = hash() {
            self.count(hash, bytes << SAMPLE_BITS, now_ns, key);
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
        // An empty entry has the fewest bytes.
        let places = self.hashes.iter_mut().zip(&mut self.flows);
        let least = places.min_by_key(|(_, flow)| flow.as_ref().map(|flow| flow.bytes));
        if let Some((place, flow)) = least {
            let error = flow.as_ref().map_or(0, |flow| flow.bytes);
            *place = hash;
            *flow = Some(TopFlow { key: key(), bytes: error.saturating_add(bytes), error });
        }
    }

    /// Halves all counts if that is due.
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

    /// Returns the flows at `now_ns`, the largest first, and the bytes of all flows.
    pub fn read(&mut self, now_ns: u64) -> (Vec<TopFlow>, u64) {
        self.age(now_ns);
        let mut all: Vec<_> = self.flows.iter().flatten().copied().collect();
        all.sort_by_key(|flow| std::cmp::Reverse(flow.bytes));
        (all, self.total)
    }
}

#[cfg(test)]
mod tests;

//! Forwarding decision for a frame: one function, on a private copy of its headers.

use super::{Network, Switch};
use crate::drop_reason::Reason;
use crate::frame::Frame;
use crate::header::Header;
use crate::port::{EffectiveMode, PortId, PortPolicy, PortSet, TagAction};
use crate::table::LearnOutcome;

/// Bytes of a full Ethernet frame with a tag, as the flood limit counts them.
const FULL_BYTES: u64 = 1518;

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Drop the frame.
    Drop(Reason),
    /// Forward the frame to one port.
    Forward(PortId),
    /// Forward the frame to each of these ports; never empty, and never the port it came from.
    Flood(PortSet),
}

/// Result of the decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameVerdict {
    /// Destination of the frame.
    pub decision: Decision,
    /// VLAN of the frame; 0 for none. [`Switch::tagging`] needs it.
    pub vlan: u16,
    /// Result of learning the source. If it [`LearnOutcome::should_broadcast`], the network's
    /// switches on other reactors should learn the station too.
    pub learn_outcome: Option<LearnOutcome>,
}

/// Returns the bytes of the longest packet that results from a frame, as an MTU counts them.
pub(super) fn longest(frame: &Frame<'_>, header: &Header) -> u32 {
    match header.gso() {
        None => frame.payload_bytes(),
        Some(gso) => u32::from(gso.header.saturating_sub(frame.net_at)) + u32::from(gso.size),
    }
}

impl Switch {
    /// Decides about a frame that came from port `from` at `now_ns`. Depends on nothing but its
    /// arguments, takes no lock, and allocates no memory. Costs two table look-ups; a flood costs a
    /// walk over the network's ports. [`Switch::lookup`] may save these.
    pub fn decide(
        &mut self,
        from: PortId,
        frame: &Frame<'_>,
        header: &Header,
        now_ns: u64,
    ) -> FrameVerdict {
        let (mut vlan, mut learn_outcome) = (0, None);
        let decision = self.admit(from, frame, header).and_then(|entered| {
            vlan = entered;
            learn_outcome = Some(self.learn(from, vlan, frame.src, now_ns));
            self.destination(from, frame, vlan, now_ns)
        });
        if let (Some(LearnOutcome::Known), Ok(Decision::Forward(to))) = (learn_outcome, decision) {
            self.insert(from, frame, (to, vlan), now_ns);
        }
        FrameVerdict { decision: decision.unwrap_or_else(Decision::Drop), vlan, learn_outcome }
    }

    /// Returns the change of a frame's tag when the frame leaves at `port`, after `vlan` was
    /// decided.
    pub fn tagging(&self, port: PortId, vlan: u16, frame: &Frame<'_>) -> TagAction {
        self.port(port).map_or(TagAction::Keep, |policy| policy.vlan.leave(vlan, frame.tag))
    }

    /// Returns the VLAN of a frame, or the reason why it may not enter.
    fn admit(&self, from: PortId, frame: &Frame<'_>, header: &Header) -> Result<u16, Reason> {
        let (policy, network) = self.place(from)?;
        let mode = policy.mode(network.policy.default);
        if matches!(mode, EffectiveMode::Closed) {
            return Err(Reason::Closed);
        }
        if !frame.src.is_station() {
            return Err(Reason::BadSource);
        }
        if frame.dst.is_reserved() {
            return Err(Reason::ReservedDestination);
        }
        let vlan = policy.vlan.enter(frame.tag).ok_or(Reason::WrongVlan)?;
        if longest(frame, header) > network.policy.mtu.into() {
            return Err(Reason::Oversize);
        }
        if let EffectiveMode::Locked(lock) = mode {
            lock.check(frame, header)?;
        }
        Ok(vlan)
    }

    pub(super) fn place(&self, port: PortId) -> Result<(&PortPolicy, &Network), Reason> {
        let policy = self.port(port).ok_or(Reason::NoPort)?;
        Ok((policy, self.network(policy.network).ok_or(Reason::NoPort)?))
    }

    fn destination(
        &self,
        from: PortId,
        frame: &Frame<'_>,
        vlan: u16,
        now_ns: u64,
    ) -> Result<Decision, Reason> {
        let (policy, network) = self.place(from)?;
        match network.mac_table.lookup(vlan, frame.dst, now_ns) {
            Some(to) if to == from => Err(Reason::SamePort),
            Some(to) if self.is_open(network, to, vlan) => Ok(Decision::Forward(to)),
            Some(_) => Err(Reason::ReceiverClosed),
            None => {
                if let Some(rate_limiter) = &policy.flood
                    && rate_limiter.admit(full_frames(frame), now_ns).is_err()
                {
                    return Err(Reason::FloodLimit);
                }
                self.flood(network, from, vlan)
            }
        }
    }

    fn flood(&self, network: &Network, from: PortId, vlan: u16) -> Result<Decision, Reason> {
        let mut ports = PortSet::default();
        let others = network.members.iter().filter(|port| *port != from);
        others
            .filter(|port| self.is_open(network, *port, vlan))
            .for_each(|port| ports.insert(port));
        if ports.is_empty() { Err(Reason::NoReceiver) } else { Ok(Decision::Flood(ports)) }
    }
}

/// Returns the cost of a flooded frame in full Ethernet frames, rounded up. Each receiver gets a
/// copy of all its bytes, so an unsegmented frame of 64 KiB costs as much as the full frames with
/// those bytes.
fn full_frames(frame: &Frame<'_>) -> u64 {
    u64::from(frame.len).div_ceil(FULL_BYTES)
}

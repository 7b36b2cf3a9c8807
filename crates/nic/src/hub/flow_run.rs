//! Frames that follow each other to the same place.

use net::port::PortId;

use super::egress::Egress;
use super::port_state::{PortState, QueueLocation};
use crate::link::LinkAddress;

/// Frames of one flow, one after the other in one batch, to one queue. Where they go is found for the
/// first of them, and what the queue's [`net::flow::Spread`] is to know of them is told at their end: a
/// stream's frames cost the same whether its receiver has one queue or many.
#[derive(Debug)]
pub(super) struct FlowRun {
    to: PortId,
    /// Of the flow, if that says which queue it is.
    hash: Option<u32>,
    pub(super) queue_location: QueueLocation,
    pub(super) address: LinkAddress,
    now_ns: u64,
    /// Some of it is on its way.
    goes: bool,
    /// How much work it was.
    units: u64,
}

impl FlowRun {
    /// Begins with a frame for a port at `now_ns`, of a flow with this hash.
    pub(super) fn begin(
        to: PortId,
        hash: Option<u32>,
        port_state: &mut PortState,
        now_ns: u64,
        egress: &Egress,
    ) -> Self {
        let queue = port_state.pick(hash, now_ns, egress);
        let (queue_location, address) =
            (port_state.seat(queue), LinkAddress::new(to, queue, port_state.epoch));
        Self { to, hash, queue_location, address, now_ns, goes: false, units: 0 }
    }

    /// For which port it is.
    pub(super) fn to(&self) -> PortId {
        self.to
    }

    /// A frame for that port belongs to it.
    #[inline]
    pub(super) fn is_of(&self, to: PortId, hash: Option<u32>) -> bool {
        self.to == to && self.hash == hash
    }

    /// What came of a frame: whether any of it is on its way, and how much work it was.
    #[inline]
    pub(super) fn sent(&mut self, (goes, units): (bool, u64)) {
        self.goes |= goes;
        self.units = self.units.saturating_add(units);
    }

    /// Tells the port that it was for what became of it.
    pub(super) fn end(&self, port_state: &mut PortState, egress: &Egress) {
        let outcome = (self.goes, self.units);
        port_state.sent(self.hash, self.address.queue(), outcome, self.now_ns, egress);
    }
}

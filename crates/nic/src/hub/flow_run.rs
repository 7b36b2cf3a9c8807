//! Consecutive frames to the same queue.

use net::port::PortId;

use super::egress::Egress;
use super::port_state::{PortState, QueueLocation};
use crate::link::LinkAddress;

/// Consecutive frames of one flow to one queue in a batch. The queue is looked up for the first
/// frame. The queue's [`net::flow::QueueSelector`] is updated at the end. So a stream's frames cost
/// the same whether its receiver has one queue or many.
#[derive(Debug)]
pub(super) struct FlowRun {
    to: PortId,
    /// Hash of the flow, if it determines the queue.
    hash: Option<u32>,
    pub(super) queue_location: QueueLocation,
    pub(super) address: LinkAddress,
    now_ns: u64,
    /// True once a frame of the run was sent.
    goes: bool,
    /// Work of the run.
    units: u64,
}

impl FlowRun {
    /// Begins a run with a frame for a port at `now_ns`, of a flow with this hash.
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

    /// Returns the port of the run.
    pub(super) fn to(&self) -> PortId {
        self.to
    }

    /// Returns whether a frame for that port belongs to the run.
    #[inline]
    pub(super) fn is_of(&self, to: PortId, hash: Option<u32>) -> bool {
        self.to == to && self.hash == hash
    }

    /// Records the outcome of a frame: whether any of it was sent, and its work.
    #[inline]
    pub(super) fn sent(&mut self, (goes, units): (bool, u64)) {
        self.goes |= goes;
        self.units = self.units.saturating_add(units);
    }

    /// Reports the outcome of the run to its port.
    pub(super) fn end(&self, port_state: &mut PortState, egress: &Egress) {
        let outcome = (self.goes, self.units);
        port_state.sent(self.hash, self.address.queue(), outcome, self.now_ns, egress);
    }
}

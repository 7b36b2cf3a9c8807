//! Forwards an incoming frame to its receivers.

use memory::Buffers;
use net::Reason;
use net::flow::FlowKey;
use net::frame::{FRAME_MAX, Frame};
use net::header::{Header, SoftwareOffload};
use net::port::{PortId, TagAction};
use net::switch::Decision;

use super::budget::{PIECE_BYTES, TurnBudget};
use super::egress::Egress;
use super::flow_run::FlowRun;
use super::offload::OffloadScratch;
use super::port_state::{PortState, QueueLocation};
use super::rewrite::RewrittenHead;
use super::{Hub, IngressFrame, port_state};
use crate::frame_sink::EgressFrame;
use crate::link::StationUpdate;

/// Most segments of a frame: 64 KiB in segments of the smallest size that Linux negotiates (48
/// bytes).
const PIECES_MAX: usize = 1400;
/// Most segments of a flooded frame: 64 KiB in segments of 1 KiB.
const FLOODED_PIECES_MAX: usize = 64;

/// Returns the bytes that count for a frame. A chain may claim gigabytes in pieces that share the
/// same memory.
pub(crate) fn counted(bytes: usize) -> usize {
    bytes.min(FRAME_MAX as usize)
}

/// Frame with its decision.
struct ParsedFrame<'a> {
    frame: &'a Frame<'a>,
    header: &'a Header,
    /// True if the destination is unknown, so that the frame is flooded.
    flooded: bool,
    prefix: &'a [u8],
    body: &'a Buffers,
}

impl Hub {
    /// Forwards a frame that came from a port at `now_ns`. [`Hub::flush`] publishes it to its
    /// receivers. Returns the reason if the frame was dropped, which is counted already.
    pub fn forward(
        &mut self,
        from: PortId,
        ingress_frame: &IngressFrame<'_>,
        now_ns: u64,
    ) -> Option<Reason> {
        let bytes = ingress_frame.prefix.len() + ingress_frame.body.len();
        self.turn_budget.spend(ingress_frame.body.iovecs().len() * PIECE_BYTES);
        let refused = self.switch_frame(from, ingress_frame, bytes, now_ns).err();
        if let Some(port_state) = port_state(&mut self.ports, from) {
            port_state.counts.sends(counted(bytes));
            if let Some(reason) = refused {
                port_state.counts.refused.count(reason);
            }
        }
        refused
    }

    fn switch_frame(
        &mut self,
        from: PortId,
        ingress_frame: &IngressFrame<'_>,
        bytes: usize,
        now_ns: u64,
    ) -> Result<(), Reason> {
        let IngressFrame { header, prefix, body, may } = *ingress_frame;
        let frame = Frame::parse(prefix, bytes)?;
        let header = Header::parse(header, &frame, *may)?;
        let mut parsed_frame =
            ParsedFrame { frame: &frame, header: &header, flooded: false, prefix, body };
        if let Some(forwarding_entry) = self.switch.lookup(from, &frame, &header, now_ns) {
            self.count_flow(from, &frame, Some(forwarding_entry.to), now_ns);
            self.send_to_port(
                forwarding_entry.to,
                forwarding_entry.tag_action,
                &parsed_frame,
                now_ns,
            );
            return Ok(());
        }
        let verdict = self.switch.decide(from, &frame, &header, now_ns);
        let vlan = verdict.vlan;
        if verdict.learn_outcome.is_some_and(|learn_outcome| learn_outcome.should_broadcast()) {
            let term = port_state(&mut self.ports, from).map_or(0, |port_state| port_state.term);
            self.egress.broadcast_station(StationUpdate { port: from, term, vlan, mac: frame.src });
        }
        match verdict.decision {
            Decision::Drop(reason) => return Err(reason),
            Decision::Forward(to) => {
                self.count_flow(from, &frame, Some(to), now_ns);
                self.send_to_port(to, self.switch.tagging(to, vlan, &frame), &parsed_frame, now_ns);
            }
            Decision::Flood(ports) => {
                self.count_flow(from, &frame, None, now_ns);
                parsed_frame.flooded = true;
                for to in ports.iter() {
                    self.send_to_port(
                        to,
                        self.switch.tagging(to, vlan, &frame),
                        &parsed_frame,
                        now_ns,
                    );
                }
            }
        }
        Ok(())
    }

    /// Counts a forwarded frame for its flow.
    fn count_flow(&mut self, from: PortId, frame: &Frame<'_>, to: Option<PortId>, now_ns: u64) {
        if let Some(port_state) = port_state(&mut self.ports, from) {
            let (hash, key) = (|| self.hash.of(frame), || FlowKey::of(frame, to));
            port_state.flows.see(hash, frame.len.into(), now_ns, key);
        }
    }

    /// Delivers a frame to a port, in the form that the port accepts. The outcome is counted for
    /// that port and does not concern the sender.
    fn send_to_port(
        &mut self,
        to: PortId,
        tag_action: TagAction,
        parsed_frame: &ParsedFrame<'_>,
        now_ns: u64,
    ) {
        let ParsedFrame { header, prefix, body, .. } = *parsed_frame;
        let Some(hash) = self.flow_for(to, parsed_frame) else { return };
        if !self.run.as_ref().is_some_and(|run| run.is_of(to, hash)) {
            self.begin_run(to, hash, now_ns);
        }
        let (Some(port_state), Some(run)) = (port_state(&mut self.ports, to), &mut self.run) else {
            return;
        };
        let mut way = Delivery {
            port_state,
            egress: &mut self.egress,
            turn_budget: &mut self.turn_budget,
            run,
        };
        let outcome = if header.is_plain() && tag_action == TagAction::Keep {
            let raw = Header::default().bytes(1);
            way.give(&EgressFrame { header: raw, head: prefix, body, since_ns: now_ns })
        } else {
            way.finish(&mut self.offload_scratch, tag_action, parsed_frame, now_ns)
        };
        way.run.sent(outcome);
    }

    /// Returns the hash of a frame's flow if the port needs it. Returns `None` if the port does not
    /// want the frame.
    #[inline]
    fn flow_for(&mut self, to: PortId, parsed_frame: &ParsedFrame<'_>) -> Option<Option<u32>> {
        let ParsedFrame { frame, flooded, .. } = *parsed_frame;
        let port_state = port_state(&mut self.ports, to)?;
        if flooded && !port_state.wants(frame.dst) {
            return None;
        }
        // For further ports of the same frame, the hash is cached.
        Some(if port_state.is_wide() { self.hash.of(frame) } else { None })
    }

    /// Begins a run to another queue.
    #[inline(never)]
    fn begin_run(&mut self, to: PortId, hash: Option<u32>, now_ns: u64) {
        self.end_run();
        let port_state = port_state(&mut self.ports, to);
        self.run =
            port_state.map(|port_state| FlowRun::begin(to, hash, port_state, now_ns, &self.egress));
    }

    /// Ends the current run.
    pub(super) fn end_run(&mut self) {
        if let Some(run) = self.run.take()
            && let Some(port_state) = port_state(&mut self.ports, run.to())
        {
            run.end(port_state, &self.egress);
        }
    }
}

/// Frame on its way to a queue.
struct Delivery<'a> {
    port_state: &'a mut PortState,
    egress: &'a mut Egress,
    turn_budget: &'a mut TurnBudget,
    run: &'a mut FlowRun,
}

impl Delivery<'_> {
    /// Delivers a finished frame. Returns whether it was sent, and its work.
    #[inline]
    fn give(&mut self, egress_frame: &EgressFrame<'_>) -> (bool, u64) {
        let bytes = egress_frame.bytes();
        let FlowRun { queue_location, address, .. } = *self.run;
        let mut more = 0;
        let given = self.egress.deliver(queue_location, address, egress_frame, &mut more);
        // A frame to another reactor is counted on arrival.
        if given.is_err() || !matches!(queue_location, QueueLocation::Remote(_)) {
            self.port_state.got(bytes, given);
        }
        (given.is_ok(), self.turn_budget.spend(bytes + more * PIECE_BYTES))
    }

    /// Does the offloads that the port lacks, then delivers the result. Returns whether any of it
    /// was sent, and its work.
    #[inline(never)]
    fn finish(
        &mut self,
        offload_scratch: &mut OffloadScratch,
        tag_action: TagAction,
        parsed_frame: &ParsedFrame<'_>,
        now_ns: u64,
    ) -> (bool, u64) {
        let ParsedFrame { header, flooded, prefix, body, .. } = *parsed_frame;
        let changed = RewrittenHead::new(prefix, header, tag_action);
        let (head, header) = match &changed {
            None => (prefix, header),
            Some((head, header)) => (head.bytes(), header),
        };
        let (takes, nothing) = (self.port_state.takes, Buffers::default());
        let raw = header.for_receiver(takes).bytes(1);
        let (mut goes, mut units) = (false, 0);
        // The result of each delivery is counted there.
        let mut give = |head: &[u8], body: &Buffers| {
            let given = self.give(&EgressFrame { header: raw, head, body, since_ns: now_ns });
            goes |= given.0;
            units += given.1;
        };
        let finished = match header.finish_for(takes) {
            SoftwareOffload::Nothing => {
                give(head, body);
                Ok(())
            }
            SoftwareOffload::Checksum => {
                offload_scratch.complete(head, body, header).map(|whole| give(whole, &nothing))
            }
            // If a segment is dropped, the others are still sent: TCP retransmits that segment.
            SoftwareOffload::Segment => {
                let most = if flooded { FLOODED_PIECES_MAX } else { PIECES_MAX };
                offload_scratch.cut(head, body, header, most, |piece| give(piece, &nothing))
            }
        };
        if let Err(reason) = finished {
            self.port_state.got(0, Err(reason));
        }
        (goes, units)
    }
}

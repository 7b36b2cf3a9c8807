//! One reactor's part of the switch: forwards incoming frames to their receivers.

mod budget;
mod egress;
mod flow_run;
mod forward;
mod offload;
mod port_state;
mod rewrite;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use memory::Buffers;
use net::Reason;
use net::control::ControlSettings;
use net::flow::{FlowHashCache, QueueLoads, TopFlow};
use net::header::{HEADER_BYTES, Offloads};
use net::port::{PortId, PortPolicy};
use net::switch::{LearntStation, NetworkId, NetworkPolicy, PORTS_MAX, Switch, SwitchError};
use reactor::{Context, PeerNotifier, PollerId};

use crate::consumption::ConsumptionCounter;
use crate::counts::Counts;
use crate::frame_sink::{EgressFrame, FrameSink};
use crate::link::{LinkAddress, StationUpdate, Writer};
use budget::TurnBudget;
pub(crate) use budget::{PIECE_BYTES, TURN_BYTES};
use egress::Egress;
use flow_run::FlowRun;
pub(crate) use forward::counted;
use offload::OffloadScratch;
use port_state::{PortState, QueueLocation};

/// Incoming frame. All fields are references: composing the parts in one place would be slow. A
/// value that is written byte by byte and then read as words has to wait. The CPU first completes
/// all earlier writes to the cache, including those to guests' memory.
#[derive(Clone, Copy, Debug)]
pub struct IngressFrame<'a> {
    /// The virtio-net header, as the driver wrote it.
    pub header: &'a [u8; HEADER_BYTES],
    /// First [`net::frame::PREFIX_BYTES`] of the frame, or all of it, in private memory.
    pub prefix: &'a [u8],
    /// Bytes that follow the prefix.
    pub body: &'a Buffers,
    /// Offloads that the sender may use.
    pub may: &'a Offloads,
}

/// Announcement of a queue that accepts frames from now on.
#[derive(Clone, Debug)]
pub(crate) struct QueueAnnouncement {
    pub(crate) port: PortId,
    pub(crate) queue: u16,
    pub(crate) epoch: u32,
    pub(crate) takes: Offloads,
    /// Counter of the consumed buffers, if the queue's reactor maintains one.
    pub(crate) consumption_counter: Option<Arc<ConsumptionCounter>>,
}

/// State of a port that the hubs of all reactors share.
#[derive(Clone, Debug)]
pub(crate) struct SharedPortState {
    /// Counters of this reactor.
    pub(crate) counts: Arc<Counts>,
    pub(crate) queue_loads: Arc<QueueLoads>,
}

/// One reactor's part of the switch. It lives on that reactor, and so does everything that it
/// accesses.
pub struct Hub {
    /// Number of its reactor.
    number: usize,
    switch: Switch,
    hash: FlowHashCache,
    ports: Box<[Option<Box<PortState>>]>,
    egress: Egress,
    offload_scratch: OffloadScratch,
    /// Work since the last flush.
    turn_budget: TurnBudget,
    /// Current run of frames. `None` after any change of a port.
    run: Option<FlowRun>,
}

impl Hub {
    /// Creates the hub of reactor `number`.
    pub(crate) fn new(number: usize) -> Self {
        Self {
            number,
            switch: Switch::new(),
            hash: FlowHashCache::default(),
            ports: (0..PORTS_MAX).map(|_| None).collect(),
            egress: Egress::default(),
            offload_scratch: OffloadScratch::default(),
            turn_budget: TurnBudget::default(),
            run: None,
        }
    }

    /// Adds a link to reactor `number`, with the notifier that wakes its reader.
    pub(crate) fn add_link(&mut self, number: usize, link: Writer, peer_notifier: PeerNotifier) {
        self.egress.add_link(number, link, peer_notifier);
    }

    /// Creates or changes a network.
    pub(crate) fn set_network(
        &mut self,
        id: NetworkId,
        policy: NetworkPolicy,
    ) -> Result<(), SwitchError> {
        self.switch.set_network(id, policy)
    }

    /// Removes a network that has no ports.
    pub(crate) fn remove_network(&mut self, id: NetworkId) {
        self.switch.remove_network(id);
    }

    /// Adds or changes a port. A new port uses `shared_port_state`. Other reactors label stations
    /// that they learn under this policy with the number `term`.
    pub(crate) fn set_port(
        &mut self,
        id: PortId,
        policy: PortPolicy,
        shared_port_state: SharedPortState,
        term: u32,
    ) -> Result<(), SwitchError> {
        self.switch.set_port(id, policy)?;
        if let Some(place) = self.ports.get_mut(id.index()) {
            let SharedPortState { counts, queue_loads } = shared_port_state;
            let make = || Box::new(PortState::new(counts, queue_loads, self.number));
            place.get_or_insert_with(make).term = term;
        }
        Ok(())
    }

    /// Records the poller of transmit queue `queue` of a port.
    pub(crate) fn sends_by(&mut self, port: PortId, queue: u16, poller: PollerId) {
        if let Some(port_state) = port_state(&mut self.ports, port) {
            port_state.sends_by(queue, poller);
        }
    }

    /// Returns the transmit queues of a port on this reactor, possibly with some that have ended.
    pub(crate) fn senders(&self, port: PortId) -> Vec<PollerId> {
        let port_state = self.ports.get(port.index()).and_then(Option::as_ref);
        port_state.map_or_else(Vec::new, |port_state| port_state.senders().collect())
    }

    /// Removes a port.
    pub(crate) fn remove_port(&mut self, id: PortId) {
        self.end_run();
        self.switch.remove_port(id);
        if let Some(port_state) = self.ports.get_mut(id.index()).and_then(Option::take) {
            port_state.seats().for_each(|queue_location| self.egress.remove_sink(queue_location));
        }
    }

    /// Applies the settings that the driver of a port requested over its control queue; `None`
    /// without a control queue.
    pub(crate) fn set_control_settings(
        &mut self,
        port: PortId,
        control_settings: Option<Arc<ControlSettings>>,
    ) {
        self.end_run();
        if let Some(port_state) = port_state(&mut self.ports, port) {
            port_state.set_control_settings(control_settings);
        }
    }

    /// Opens a queue of a port that receives frames on this reactor from now on.
    pub(crate) fn open(
        &mut self,
        queue_announcement: QueueAnnouncement,
        frame_sink: Rc<RefCell<dyn FrameSink>>,
    ) {
        let queue_location = self.egress.add_sink(frame_sink);
        self.sit(queue_announcement, queue_location);
    }

    /// Opens a queue of a port that receives frames on reactor `number` from now on.
    pub(crate) fn open_there(&mut self, queue_announcement: QueueAnnouncement, number: usize) {
        self.sit(queue_announcement, QueueLocation::Remote(number));
    }

    /// Closes a queue of a port: it receives no more frames.
    pub fn close(&mut self, port: PortId, queue: u16) {
        self.end_run();
        if let Some(port_state) = port_state(&mut self.ports, port) {
            let queue_location = port_state.set_location(queue, QueueLocation::None, None);
            self.egress.remove_sink(queue_location);
        }
    }

    fn sit(&mut self, queue_announcement: QueueAnnouncement, queue_location: QueueLocation) {
        self.end_run();
        let QueueAnnouncement { port, queue, epoch, takes, consumption_counter } =
            queue_announcement;
        let Some(port_state) = port_state(&mut self.ports, port) else {
            return self.egress.remove_sink(queue_location);
        };
        (port_state.epoch, port_state.takes) = (epoch, takes);
        let former = port_state.set_location(queue, queue_location, consumption_counter);
        self.egress.remove_sink(former);
    }

    /// Charges `bytes` that a port sends at `now_ns` to its rate limit.
    ///
    /// # Errors
    /// The time to retry, in nanoseconds, if the limit does not admit them.
    pub(crate) fn may_send(&self, port: PortId, bytes: usize, now_ns: u64) -> Result<(), u64> {
        match self.switch.port(port).and_then(|policy| policy.rate.as_deref()) {
            Some(rate_limiter) => rate_limiter.admit(bytes as u64, now_ns),
            None => Ok(()),
        }
    }

    /// Counts a frame of a port that could not even be read.
    pub fn refuse(&mut self, port: PortId, reason: Reason) {
        if let Some(port_state) = port_state(&mut self.ports, port) {
            port_state.counts.sends(0);
            port_state.counts.refused.count(reason);
        }
    }

    /// Counts a frame that was dropped after a frame sink of a port had accepted it. The frame
    /// counts as received too.
    pub fn count_late_drop(&mut self, port: PortId, reason: Reason) {
        if let Some(port_state) = port_state(&mut self.ports, port) {
            port_state.got(0, Err(reason));
        }
    }

    /// Delivers a frame from a link to its queue on this reactor.
    pub(crate) fn arrive(&mut self, to: LinkAddress, frame: &EgressFrame<'_>) {
        let Some(port_state) = port_state(&mut self.ports, to.port()) else { return };
        // The driver may have stopped using the queue meanwhile.
        let is_used = port_state.epoch == to.epoch() && port_state.uses(to.queue());
        let mut more = 0;
        let outcome = match port_state.seat(to.queue()) {
            queue_location @ QueueLocation::Local(_) if is_used => {
                self.egress.deliver(queue_location, to, frame, &mut more)
            }
            _ => Err(Reason::ReceiverClosed),
        };
        port_state.got(frame.bytes(), outcome);
        // The rest was charged on the reactor where the frame came in.
        if more > 0 {
            self.turn_budget.spend(more * PIECE_BYTES);
        }
    }

    /// Learns a station that another reactor has learnt. The update is ignored if its policy is not
    /// the current one here: the station will be learnt again.
    pub(crate) fn learn(&mut self, station_update: StationUpdate, now_ns: u64) {
        let StationUpdate { port, term, vlan, mac } = station_update;
        if port_state(&mut self.ports, port).is_some_and(|port_state| port_state.term == term) {
            self.switch.learn(port, vlan, mac, now_ns);
        }
    }

    /// Returns the stations that this hub has learnt.
    pub(crate) fn stations(&self) -> Vec<LearntStation> {
        self.switch.stations().collect()
    }

    /// Restores a station that another switch had learnt.
    pub(crate) fn restore_station(&mut self, station: &LearntStation) {
        let LearntStation { port, vlan, mac, seen_ns, .. } = *station;
        self.switch.learn(port, vlan, mac, seen_ns);
    }

    /// Returns for each port the flows that send most through this hub, with the recent bytes of
    /// all its flows.
    pub(crate) fn top_flows(&mut self, now_ns: u64) -> Vec<(PortId, Vec<TopFlow>, u64)> {
        let known = (0..)
            .zip(self.ports.iter_mut())
            .filter_map(|(id, port_state)| Some((id, port_state.as_mut()?)));
        let all = known.map(|(id, port_state)| {
            let (flows, total) = port_state.flows.read(now_ns);
            (PortId(id), flows, total)
        });
        all.filter(|(_, flows, _)| !flows.is_empty()).collect()
    }

    /// Returns whether the batch has used up its budget: flush it and let other pollers run.
    pub fn is_spent(&self) -> bool {
        self.turn_budget.is_spent()
    }

    /// Ends the batch and publishes its frames to all their receivers.
    pub fn flush(&mut self, context: &mut Context<'_>) {
        self.turn_budget = TurnBudget::default();
        self.end_run();
        // Read once for all receivers.
        context.now_again_ns();
        self.egress.flush(context);
    }
}

/// Returns the state of a port.
fn port_state(ports: &mut [Option<Box<PortState>>], port: PortId) -> Option<&mut PortState> {
    ports.get_mut(port.index())?.as_deref_mut()
}

#[cfg(test)]
mod tests;

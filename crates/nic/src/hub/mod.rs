//! One reactor's part of the switch: from a frame that came in to those who get it.

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

/// A frame that came in. All of it is elsewhere: what is put together byte by byte and read as words at once has
/// to wait until everything that was written before is in the cache, guests' memory too.
#[derive(Clone, Copy, Debug)]
pub struct IngressFrame<'a> {
    /// Its virtio-net header, as it was written.
    pub header: &'a [u8; HEADER_BYTES],
    /// The first [`net::frame::PREFIX_BYTES`] of it, or all, in private memory.
    pub prefix: &'a [u8],
    /// What follows them.
    pub body: &'a Buffers,
    /// What its sender may leave undone.
    pub may: &'a Offloads,
}

/// A queue of a port that takes frames from now on.
#[derive(Clone, Debug)]
pub(crate) struct QueueAnnouncement {
    pub(crate) port: PortId,
    pub(crate) queue: u16,
    pub(crate) epoch: u32,
    pub(crate) takes: Offloads,
    /// What its reactor tells of what was taken, if it does.
    pub(crate) consumption_counter: Option<Arc<ConsumptionCounter>>,
}

/// What is shared of a port by the hubs of all reactors.
#[derive(Clone, Debug)]
pub(crate) struct SharedPortState {
    /// This reactor's counters.
    pub(crate) counts: Arc<Counts>,
    pub(crate) queue_loads: Arc<QueueLoads>,
}

/// One reactor's part of the switch. It lives on that reactor, and so does all that it touches.
pub struct Hub {
    /// Of its reactor.
    number: usize,
    switch: Switch,
    hash: FlowHashCache,
    ports: Box<[Option<Box<PortState>>]>,
    egress: Egress,
    offload_scratch: OffloadScratch,
    /// Since the last flush.
    turn_budget: TurnBudget,
    /// The last frames of this batch. None when anything of a port changes.
    run: Option<FlowRun>,
}

impl Hub {
    /// Of reactor `number`.
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

    /// Frames for reactor `number` go into this link; whoever reads it is woken by this bell.
    pub(crate) fn add_link(&mut self, number: usize, link: Writer, peer_notifier: PeerNotifier) {
        self.egress.add_link(number, link, peer_notifier);
    }

    /// Makes or changes a network.
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

    /// Plugs a port in, or changes it. It has `common` if it is new. What other reactors see by
    /// this policy they call by the number of its `term`.
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

    /// Transmit queue `queue` of a port is this poller from now on.
    pub(crate) fn sends_by(&mut self, port: PortId, queue: u16, poller: PollerId) {
        if let Some(port_state) = port_state(&mut self.ports, port) {
            port_state.sends_by(queue, poller);
        }
    }

    /// Transmit queues of a port on this reactor, and some that have ended.
    pub(crate) fn senders(&self, port: PortId) -> Vec<PollerId> {
        let port_state = self.ports.get(port.index()).and_then(Option::as_ref);
        port_state.map_or_else(Vec::new, |port_state| port_state.senders().collect())
    }

    /// Unplugs a port.
    pub(crate) fn remove_port(&mut self, id: PortId) {
        self.end_run();
        self.switch.remove_port(id);
        if let Some(port_state) = self.ports.get_mut(id.index()).and_then(Option::take) {
            port_state.seats().for_each(|queue_location| self.egress.remove_sink(queue_location));
        }
    }

    /// What the driver of a port has asked for over its control queue; `None`: there is none.
    pub(crate) fn set_asked(
        &mut self,
        port: PortId,
        control_settings: Option<Arc<ControlSettings>>,
    ) {
        self.end_run();
        if let Some(port_state) = port_state(&mut self.ports, port) {
            port_state.set_asked(control_settings);
        }
    }

    /// A queue of a port takes frames on this reactor from now on.
    pub(crate) fn open(
        &mut self,
        queue_announcement: QueueAnnouncement,
        frame_sink: Rc<RefCell<dyn FrameSink>>,
    ) {
        let queue_location = self.egress.add_sink(frame_sink);
        self.sit(queue_announcement, queue_location);
    }

    /// A queue of a port takes frames on reactor `number` from now on.
    pub(crate) fn open_there(&mut self, queue_announcement: QueueAnnouncement, number: usize) {
        self.sit(queue_announcement, QueueLocation::There(number));
    }

    /// A queue of a port takes no frames any more.
    pub fn close(&mut self, port: PortId, queue: u16) {
        self.end_run();
        if let Some(port_state) = port_state(&mut self.ports, port) {
            let queue_location = port_state.set_location(queue, QueueLocation::Nobody, None);
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

    /// Whether a port may send so many bytes at `now_ns`, by its cap. They count then.
    ///
    /// # Errors
    /// When to ask again, in nanoseconds.
    pub(crate) fn may_send(&self, port: PortId, bytes: usize, now_ns: u64) -> Result<(), u64> {
        match self.switch.port(port).and_then(|policy| policy.rate.as_deref()) {
            Some(rate_limiter) => rate_limiter.admit(bytes as u64, now_ns),
            None => Ok(()),
        }
    }

    /// A frame of a port could not even be read.
    pub fn refuse(&mut self, port: PortId, reason: Reason) {
        if let Some(port_state) = port_state(&mut self.ports, port) {
            port_state.counts.sends(0);
            port_state.counts.refused.count(reason);
        }
    }

    /// A frame that an outlet of a port had taken was lost behind it: it counts among those that
    /// the port got, too.
    pub fn count_late_drop(&mut self, port: PortId, reason: Reason) {
        if let Some(port_state) = port_state(&mut self.ports, port) {
            port_state.got(0, Err(reason));
        }
    }

    /// Gives a frame that came over a link to its queue on this reactor.
    pub(crate) fn arrive(&mut self, to: LinkAddress, frame: &EgressFrame<'_>) {
        let Some(port_state) = port_state(&mut self.ports, to.port()) else { return };
        // Its driver may have given up the queue meanwhile.
        let is_used = port_state.epoch == to.epoch() && port_state.uses(to.queue());
        let mut more = 0;
        let outcome = match port_state.seat(to.queue()) {
            queue_location @ QueueLocation::Here(_) if is_used => {
                self.egress.deliver(queue_location, to, frame, &mut more)
            }
            _ => Err(Reason::ReceiverClosed),
        };
        port_state.got(frame.bytes(), outcome);
        // The rest was spent where it came in.
        if more > 0 {
            self.turn_budget.spend(more * PIECE_BYTES);
        }
    }

    /// Another reactor has seen where a station is. What it saw by a policy that holds no more,
    /// or does not hold here yet, is forgotten: the station is heard again.
    pub(crate) fn learn(&mut self, station_update: StationUpdate, now_ns: u64) {
        let StationUpdate { port, term, vlan, mac } = station_update;
        if port_state(&mut self.ports, port).is_some_and(|port_state| port_state.term == term) {
            self.switch.learn(port, vlan, mac, now_ns);
        }
    }

    /// Where stations are, as far as this hub knows.
    pub(crate) fn stations(&self) -> Vec<LearntStation> {
        self.switch.stations().collect()
    }

    /// A station was there when another switch knew of it.
    pub(crate) fn restore_station(&mut self, station: &LearntStation) {
        let LearntStation { port, vlan, mac, seen_ns, .. } = *station;
        self.switch.learn(port, vlan, mac, seen_ns);
    }

    /// The flows of which each port sends most through this hub, with all that it sends of flows,
    /// in bytes of late.
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

    /// The batch has done as much as one may do: it is to be flushed, and others have their turn.
    pub fn is_spent(&self) -> bool {
        self.turn_budget.is_spent()
    }

    /// The batch is over: everybody who got something is shown it.
    pub fn flush(&mut self, context: &mut Context<'_>) {
        self.turn_budget = TurnBudget::default();
        self.end_run();
        // For all that are shown something.
        context.now_again_ns();
        self.egress.flush(context);
    }
}

/// What is known of a port.
fn port_state(ports: &mut [Option<Box<PortState>>], port: PortId) -> Option<&mut PortState> {
    ports.get_mut(port.index())?.as_deref_mut()
}

#[cfg(test)]
mod tests;

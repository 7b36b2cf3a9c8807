//! State of a port in a hub.

use std::sync::Arc;

use net::control::ControlSettings;
use net::flow::{QUEUES_MAX, QueueLoads, QueueSelector, TopFlows};
use net::header::Offloads;
use net::{Mac, Reason};
use reactor::PollerId;

use super::egress::Egress;
use crate::consumption::{ConsumptionCounter, ConsumptionTracker};
use crate::counts::Counts;

/// Location of a queue that receives frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueLocation {
    /// The queue does not exist.
    None,
    /// On this reactor: index among its frame sinks.
    Local(usize),
    /// On the reactor of this number.
    Remote(usize),
}

/// Receive queue of a port.
#[derive(Debug)]
struct QueueEntry {
    queue_location: QueueLocation,
    /// Consumption counter of the queue's reactor, if there is one, and the tracker of this hub's
    /// frames.
    taken: Option<(Arc<ConsumptionCounter>, ConsumptionTracker)>,
}

impl QueueEntry {
    fn empty() -> Self {
        Self { queue_location: QueueLocation::None, taken: None }
    }
}

/// State of a port that forwarding needs.
#[derive(Debug)]
pub(super) struct PortState {
    pub(super) counts: Arc<Counts>,
    /// Offloads that the port accepts.
    pub(super) takes: Offloads,
    /// Incarnation of the port that `takes` is valid for.
    pub(super) epoch: u32,
    /// Version of the port's policy. All hubs use the same number.
    pub(super) term: u32,
    /// Flows that the port sends.
    pub(super) flows: TopFlows,
    queue_selector: QueueSelector,
    /// Queues, up to the last one that ever existed.
    places: Vec<QueueEntry>,
    /// Transmit queues on this reactor by number, including ended ones.
    senders: Vec<Option<PollerId>>,
    /// Settings that the driver requested, if there is a control queue.
    control_settings: Option<Arc<ControlSettings>>,
    /// Number of leading queues that exist and are in use: frames are spread over these.
    open: u8,
}

impl PortState {
    /// Creates the state of a port without queues. `number` is the number of this reactor.
    pub(super) fn new(counts: Arc<Counts>, queue_loads: Arc<QueueLoads>, number: usize) -> Self {
        Self {
            counts,
            takes: Offloads::default(),
            epoch: 0,
            term: 0,
            flows: TopFlows::default(),
            queue_selector: QueueSelector::new(queue_loads, number),
            places: Vec::new(),
            senders: Vec::new(),
            control_settings: None,
            open: 0,
        }
    }

    /// Sets the location of a queue; returns the former one.
    pub(super) fn set_location(
        &mut self,
        queue: u16,
        queue_location: QueueLocation,
        consumption_counter: Option<Arc<ConsumptionCounter>>,
    ) -> QueueLocation {
        let at = usize::from(queue);
        if queue < u16::from(QUEUES_MAX) && self.places.len() <= at {
            self.places.resize_with(at + 1, QueueEntry::empty);
        }
        let Some(queue_entry) = self.places.get_mut(at) else { return queue_location };
        let taken = consumption_counter
            .map(|consumption_counter| (consumption_counter, ConsumptionTracker::default()));
        let former =
            std::mem::replace(queue_entry, QueueEntry { queue_location, taken }).queue_location;
        self.respread();
        former
    }

    /// Records the poller of transmit queue `queue`.
    pub(super) fn sends_by(&mut self, queue: u16, poller: PollerId) {
        let at = usize::from(queue);
        if queue < u16::from(QUEUES_MAX) && self.senders.len() <= at {
            self.senders.resize(at + 1, None);
        }
        if let Some(place) = self.senders.get_mut(at) {
            *place = Some(poller);
        }
    }

    /// Returns the transmit queues on this reactor, including ended ones.
    pub(super) fn senders(&self) -> impl Iterator<Item = PollerId> {
        self.senders.iter().copied().flatten()
    }

    /// Sets the settings that the driver requested.
    pub(super) fn set_control_settings(&mut self, control_settings: Option<Arc<ControlSettings>>) {
        self.control_settings = control_settings;
        self.respread();
    }

    /// Returns whether the driver wants a frame to `dst`, if that station is unknown.
    pub(super) fn wants(&self, dst: Mac) -> bool {
        self.control_settings.as_ref().is_none_or(|control_settings| control_settings.wants(dst))
    }

    /// Returns whether the driver uses this queue. Without a control queue it uses all started
    /// queues.
    pub(super) fn uses(&self, queue: u16) -> bool {
        self.control_settings
            .as_ref()
            .is_none_or(|control_settings| queue < control_settings.pairs())
    }

    /// Recomputes the queues in use. After a change, a flow's frames may go to another queue while
    /// earlier ones wait in the former: the driver has requested that, or the queue is gone.
    fn respread(&mut self) {
        let taking = |(queue, queue_entry): &(u16, &QueueEntry)| {
            queue_entry.queue_location != QueueLocation::None && self.uses(*queue)
        };
        // There are at most QUEUES_MAX queues.
        let open = (0..).zip(&self.places).take_while(taking).count() as u8;
        if open != self.open {
            self.open = open;
            self.queue_selector.set_queues(open);
        }
    }

    /// Returns the location of a queue.
    pub(super) fn seat(&self, queue: u16) -> QueueLocation {
        self.places
            .get(usize::from(queue))
            .map_or(QueueLocation::None, |queue_entry| queue_entry.queue_location)
    }

    /// Returns the locations of all queues.
    pub(super) fn seats(&self) -> impl Iterator<Item = QueueLocation> {
        self.places.iter().map(|queue_entry| queue_entry.queue_location)
    }

    /// Returns whether the port has several queues, so that the flow selects the queue.
    pub(super) fn is_wide(&self) -> bool {
        self.queue_selector.is_multi_queue()
    }

    /// Returns the queue for a frame. Carries out a waiting move of its bucket if that is possible
    /// now.
    pub(super) fn pick(&mut self, hash: Option<u32>, now_ns: u64, egress: &Egress) -> u16 {
        let Self { queue_selector: spread, places, .. } = self;
        let is_taken = |queue: u8, position: u64| {
            let QueueEntry { queue_location: seat, taken } = places.get_mut(usize::from(queue))?;
            match (*seat, taken) {
                (QueueLocation::Remote(to), Some((consumption_counter, consumption_tracker))) => {
                    Some(consumption_tracker.is_done(
                        position,
                        egress.arrived(to),
                        consumption_counter,
                    ))
                }
                // Positions on the own reactor are those of the ring.
                (QueueLocation::Local(_), Some((consumption_counter, _))) => {
                    Some(consumption_counter.has_passed(position))
                }
                // The frame has not even reached its reactor, which reports no consumption.
                (QueueLocation::Remote(to), None) if position > egress.arrived(to) => Some(false),
                _ => None,
            }
        };
        spread.pick(hash, now_ns, is_taken).into()
    }

    /// Records the outcome of one flow's frames for the selected queue: whether any of them was
    /// sent, and their work.
    pub(super) fn sent(
        &mut self,
        hash: Option<u32>,
        queue: u16,
        outcome: (bool, u64),
        now_ns: u64,
        egress: &Egress,
    ) {
        if !self.is_wide() {
            return;
        }
        let (goes, units) = outcome;
        let queue_entry = self.places.get_mut(usize::from(queue));
        let Some(queue_entry) = queue_entry.filter(|_| goes) else {
            return self.queue_selector.lost(hash, units, now_ns);
        };
        let position = match (queue_entry.queue_location, &mut queue_entry.taken) {
            (QueueLocation::Remote(number), Some((consumption_counter, consumption_tracker))) => {
                consumption_tracker.goes(|| egress.arrived(number), consumption_counter);
                egress.written(number)
            }
            (QueueLocation::Remote(number), None) => egress.written(number),
            // At least 1, because 0 means that none was sent: a frame may wait for the first
            // buffers.
            (_, Some((consumption_counter, _))) => consumption_counter.given().max(1),
            // This position is never queried; 0 would mean that none was sent.
            (_, None) => 1,
        };
        self.queue_selector.sent(hash, position, units, now_ns);
    }

    /// Counts the outcome of a frame for the port.
    pub(super) fn got(&self, bytes: usize, outcome: Result<(), Reason>) {
        match outcome {
            Ok(()) => self.counts.gets(bytes),
            Err(reason) => self.counts.missed.count(reason),
        }
    }
}

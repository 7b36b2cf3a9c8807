//! What a hub knows of a port.

use std::sync::Arc;

use net::control::ControlSettings;
use net::flow::{QUEUES_MAX, QueueLoads, QueueSelector, TopFlows};
use net::header::Offloads;
use net::{Mac, Reason};
use reactor::PollerId;

use super::egress::Egress;
use crate::consumption::{ConsumptionCounter, ConsumptionTracker};
use crate::counts::Counts;

/// Where a queue takes frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueLocation {
    /// Nowhere.
    Nobody,
    /// On this reactor: place among its outlets.
    Here(usize),
    /// On the reactor of this number.
    There(usize),
}

/// A queue of a port.
#[derive(Debug)]
struct QueueEntry {
    queue_location: QueueLocation,
    /// What its reactor tells of what was taken, if it does, and what that says of our frames.
    taken: Option<(Arc<ConsumptionCounter>, ConsumptionTracker)>,
}

impl QueueEntry {
    fn empty() -> Self {
        Self { queue_location: QueueLocation::Nobody, taken: None }
    }
}

/// A port, as far as frames for it and from it are concerned.
#[derive(Debug)]
pub(super) struct PortState {
    pub(super) counts: Arc<Counts>,
    /// What may be left to it.
    pub(super) takes: Offloads,
    /// Which life of the port that holds for.
    pub(super) epoch: u32,
    /// Which policy of the port is in force. All hubs give it the same number.
    pub(super) term: u32,
    /// The flows that it sends.
    pub(super) flows: TopFlows,
    queue_selector: QueueSelector,
    /// Up to the last queue that was ever there.
    places: Vec<QueueEntry>,
    /// Transmit queues on this reactor, by number; those that have ended, too.
    senders: Vec<Option<PollerId>>,
    /// What its driver has asked for, if it has a control queue.
    control_settings: Option<Arc<ControlSettings>>,
    /// Queues from the first on that take frames and are in use: over these they are spread.
    open: u8,
}

impl PortState {
    /// Nothing of it is open. Reactor `number` is ours.
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

    /// Somebody else sits there from now on; who did before.
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

    /// Transmit queue `queue` is this poller from now on.
    pub(super) fn sends_by(&mut self, queue: u16, poller: PollerId) {
        let at = usize::from(queue);
        if queue < u16::from(QUEUES_MAX) && self.senders.len() <= at {
            self.senders.resize(at + 1, None);
        }
        if let Some(place) = self.senders.get_mut(at) {
            *place = Some(poller);
        }
    }

    /// Its transmit queues here, and those that were.
    pub(super) fn senders(&self) -> impl Iterator<Item = PollerId> {
        self.senders.iter().copied().flatten()
    }

    /// Its driver asks for something else from now on.
    pub(super) fn set_asked(&mut self, control_settings: Option<Arc<ControlSettings>>) {
        self.control_settings = control_settings;
        self.respread();
    }

    /// Its driver wants a frame to `dst`, of which nobody knows whose it is.
    pub(super) fn wants(&self, dst: Mac) -> bool {
        self.control_settings.as_ref().is_none_or(|control_settings| control_settings.wants(dst))
    }

    /// Its driver uses this queue. Without a control queue, it does what is started.
    pub(super) fn uses(&self, queue: u16) -> bool {
        self.control_settings
            .as_ref()
            .is_none_or(|control_settings| queue < control_settings.pairs())
    }

    /// A flow's frames may go to another queue after this, while earlier ones lie in the former: the
    /// driver has asked for that, or the queue is gone.
    fn respread(&mut self) {
        let taking = |(queue, queue_entry): &(u16, &QueueEntry)| {
            queue_entry.queue_location != QueueLocation::Nobody && self.uses(*queue)
        };
        // There are QUEUES_MAX places at most.
        let open = (0..).zip(&self.places).take_while(taking).count() as u8;
        if open != self.open {
            self.open = open;
            self.queue_selector.set_queues(open);
        }
    }

    /// Who takes what goes to a queue.
    pub(super) fn seat(&self, queue: u16) -> QueueLocation {
        self.places
            .get(usize::from(queue))
            .map_or(QueueLocation::Nobody, |queue_entry| queue_entry.queue_location)
    }

    /// Everybody.
    pub(super) fn seats(&self) -> impl Iterator<Item = QueueLocation> {
        self.places.iter().map(|queue_entry| queue_entry.queue_location)
    }

    /// It has several queues, and a frame's flow says which one it goes to.
    pub(super) fn is_wide(&self) -> bool {
        self.queue_selector.is_wide()
    }

    /// The queue for a frame. A move of its bucket that waits is made if it may be now.
    pub(super) fn pick(&mut self, hash: Option<u32>, now_ns: u64, egress: &Egress) -> u16 {
        let Self { queue_selector: spread, places, .. } = self;
        let is_taken = |queue: u8, position: u64| {
            let QueueEntry { queue_location: seat, taken } = places.get_mut(usize::from(queue))?;
            match (*seat, taken) {
                (QueueLocation::There(to), Some((consumption_counter, consumption_tracker))) => {
                    Some(consumption_tracker.is_done(
                        position,
                        egress.arrived(to),
                        consumption_counter,
                    ))
                }
                // Positions on our own reactor are those of the ring.
                (QueueLocation::Here(_), Some((consumption_counter, _))) => {
                    Some(consumption_counter.has_passed(position))
                }
                // It has not even come to whoever would tell nothing of it.
                (QueueLocation::There(to), None) if position > egress.arrived(to) => Some(false),
                _ => None,
            }
        };
        spread.pick(hash, now_ns, is_taken).into()
    }

    /// What came of the frames of one flow for the queue that was picked: whether any of them is on its way
    /// there, and how much work they were.
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
            (QueueLocation::There(number), Some((consumption_counter, consumption_tracker))) => {
                consumption_tracker.goes(|| egress.arrived(number), consumption_counter);
                egress.written(number)
            }
            (QueueLocation::There(number), None) => egress.written(number),
            // Only 0 is none: a frame may wait for the first buffers.
            (_, Some((consumption_counter, _))) => consumption_counter.given().max(1),
            // Nobody will ask for it; only 0 is none.
            (_, None) => 1,
        };
        self.queue_selector.sent(hash, position, units, now_ns);
    }

    /// Counts what came of a frame for it.
    pub(super) fn got(&self, bytes: usize, outcome: Result<(), Reason>) {
        match outcome {
            Ok(()) => self.counts.gets(bytes),
            Err(reason) => self.counts.missed.count(reason),
        }
    }
}

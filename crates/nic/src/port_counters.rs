//! Counters of all ports, for their readers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use net::flow::QueueLoads;
use net::port::PortId;
use reactor::PollPolicy;
use virtq::{BrokenRing, BrokenRingRecord};

use crate::counts::{Counts, PortCounts};
use crate::hub::SharedPortState;
use crate::queue_counts::{PairStats, QueueCounts};
use crate::ring::RingKind;

/// Counters of the existing ports, and their busy-polling policies.
#[derive(Debug, Default)]
pub(crate) struct PortCounters {
    ports: HashMap<PortId, PortCounterSet>,
    policy: PollPolicy,
}

/// Counters of a port.
#[derive(Debug)]
struct PortCounterSet {
    /// Counters by reactor.
    hubs: Vec<Arc<Counts>>,
    /// Counters by queue pair.
    pairs: Vec<Arc<QueueCounts>>,
    /// Rings that were ever started, by index.
    rings: BTreeMap<u16, (RingKind, Arc<BrokenRingRecord>)>,
    /// Load that reactors send to each queue.
    queue_loads: Arc<QueueLoads>,
    /// Busy-polling policy of the port, if it has its own.
    policy: Option<PollPolicy>,
}

impl PortCounters {
    /// Adds or changes a port. Returns the shared state for each of `reactors` reactors.
    pub(crate) fn plug(&mut self, id: PortId, reactors: usize) -> Vec<SharedPortState> {
        let make = || PortCounterSet {
            hubs: (0..reactors).map(|_| Arc::default()).collect(),
            pairs: Vec::new(),
            rings: BTreeMap::new(),
            queue_loads: Arc::new(QueueLoads::new(reactors)),
            policy: None,
        };
        let PortCounterSet { hubs, queue_loads, .. } = self.ports.entry(id).or_insert_with(make);
        let common = |counts: &Arc<Counts>| {
            let (counts, queue_loads) = (Arc::clone(counts), Arc::clone(queue_loads));
            SharedPortState { counts, queue_loads }
        };
        hubs.iter().map(common).collect()
    }

    /// Removes a port.
    pub(crate) fn unplug(&mut self, id: PortId) {
        self.ports.remove(&id);
    }

    /// Returns the counters of a queue pair. For a port that does not exist, returns counters
    /// without readers.
    pub(crate) fn queue(&mut self, id: PortId, pair: u16) -> Arc<QueueCounts> {
        let (at, usual) = (usize::from(pair), self.policy);
        let new = |policy| {
            let counts = Arc::<QueueCounts>::default();
            counts.poll_control.set(policy);
            counts
        };
        let Some(port) = self.ports.get_mut(&id) else { return new(usual) };
        let policy = port.policy.unwrap_or(usual);
        let new = || new(policy);
        if port.pairs.len() <= at {
            port.pairs.resize_with(at + 1, new);
        }
        port.pairs.get(at).map_or_else(new, Arc::clone)
    }

    /// Sets the busy-polling policy for all ports without their own policy.
    pub(crate) fn set_polling(&mut self, policy: PollPolicy) {
        self.policy = policy;
        let ports = self.ports.values().filter(|port| port.policy.is_none());
        ports.for_each(|port| port.wait(policy));
    }

    /// Sets the busy-polling policy of a port, which overrides the common one.
    pub(crate) fn set_port_polling(&mut self, id: PortId, policy: PollPolicy) {
        if let Some(port) = self.ports.get_mut(&id) {
            port.policy = Some(policy);
            port.wait(policy);
        }
    }

    /// Returns the record of a ring that starts. For a port that does not exist, returns one
    /// without readers.
    pub(crate) fn ring(&mut self, id: PortId, index: u16, kind: RingKind) -> Arc<BrokenRingRecord> {
        let Some(port) = self.ports.get_mut(&id) else { return Arc::default() };
        let (known, record) = port.rings.entry(index).or_insert_with(|| (kind, Arc::default()));
        // Without a second pair, the control queue has the index of another one.
        *known = kind;
        Arc::clone(record)
    }

    /// Records that a port's rings are not broken any more: the one of this index, or all of them.
    pub(crate) fn clear_broken_rings(&self, id: PortId, index: Option<u16>) {
        let rings = self.ports.get(&id).into_iter().flat_map(|port| &port.rings);
        let ended = rings.filter(|(at, _)| index.is_none_or(|index| **at == index));
        ended.for_each(|(_, (_, record))| record.clear());
    }

    pub(crate) fn broken_rings(&self, id: PortId) -> Vec<(u16, RingKind, BrokenRing)> {
        let rings = self.ports.get(&id).into_iter().flat_map(|port| &port.rings);
        rings.filter_map(|(index, (kind, record))| Some((*index, *kind, record.get()?))).collect()
    }

    pub(crate) fn broken_ring_count(&self, id: PortId) -> u64 {
        let rings = self.ports.get(&id).into_iter().flat_map(|port| port.rings.values());
        rings.map(|(_, record)| record.count()).sum()
    }

    pub(crate) fn counts(&self, id: PortId) -> PortCounts {
        let mut sum = PortCounts::default();
        if let Some(port) = self.ports.get(&id) {
            port.hubs.iter().for_each(|one| sum.add(one));
        }
        sum
    }

    pub(crate) fn moves(&self, id: PortId) -> u64 {
        self.ports.get(&id).map_or(0, |port| port.queue_loads.moves())
    }

    pub(crate) fn queues(&self, id: PortId) -> Vec<PairStats> {
        let pairs = self.ports.get(&id).map(|port| &port.pairs);
        pairs.into_iter().flatten().map(|pair| pair.read()).collect()
    }
}

impl PortCounterSet {
    fn wait(&self, policy: PollPolicy) {
        self.pairs.iter().for_each(|pair| pair.poll_control.set(policy));
    }
}

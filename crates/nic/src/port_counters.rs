//! Counters of all ports, for their readers.

use std::collections::HashMap;
use std::sync::Arc;

use net::flow::QueueLoads;
use net::port::PortId;
use reactor::PollPolicy;

use crate::counts::{Counts, PortCounts};
use crate::hub::SharedPortState;
use crate::queue_counts::{PairStats, QueueCounts};

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

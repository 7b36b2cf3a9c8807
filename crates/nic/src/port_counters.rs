//! What is counted for each port, by those who read it.

use std::collections::HashMap;
use std::sync::Arc;

use net::flow::QueueLoads;
use net::port::PortId;
use reactor::PollPolicy;

use crate::counts::{Counts, PortCounts};
use crate::hub::SharedPortState;
use crate::queue_counts::{PairStats, QueueCounts};

/// What is counted for ports that are plugged in, and how their queues wait.
#[derive(Debug, Default)]
pub(crate) struct PortCounters {
    ports: HashMap<PortId, PortCounterSet>,
    policy: PollPolicy,
}

/// What is counted for a port.
#[derive(Debug)]
struct PortCounterSet {
    /// By reactor.
    hubs: Vec<Arc<Counts>>,
    /// By pair.
    pairs: Vec<Arc<QueueCounts>>,
    /// What reactors send to each queue.
    queue_loads: Arc<QueueLoads>,
    /// How its queues wait, if not as all do.
    policy: Option<PollPolicy>,
}

impl PortCounters {
    /// A port is plugged in, or changed; what each of so many reactors has of it.
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

    /// A port is unplugged.
    pub(crate) fn unplug(&mut self, id: PortId) {
        self.ports.remove(&id);
    }

    /// Counters of a pair of a port. Whatever is served at a port that there is not counts for
    /// nobody.
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

    /// Queues of all ports that have no policy of their own wait otherwise from now on.
    pub(crate) fn set_polling(&mut self, policy: PollPolicy) {
        self.policy = policy;
        let ports = self.ports.values().filter(|port| port.policy.is_none());
        ports.for_each(|port| port.wait(policy));
    }

    /// Queues of a port wait otherwise from now on, whatever is said of all.
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

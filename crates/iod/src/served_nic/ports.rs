//! Statistics of the ports of a switch.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use model::report::{self, BrokenRing, DirectionStats, PollStats, PortStats, SizeCount};
use net::Reason;
use net::port::PortId;
use nic::{DirectionCounts, Fabric, PairStats, size_bounds};
use reactor::{PollState, clock_ns};

use super::flows::Flows;
use super::{ServedNic, SwitchNetwork, Uplink, ring_kind};
use crate::metrics::Residence;
use crate::stats::{self, StatsDetail};

/// Number of flows reported for each port.
const MAX_REPORTED_FLOWS: usize = 8;
/// Number of ports in one reply above which only the largest flow of each is reported. A reply has
/// a limited length ([`model::rpc::MAX_LINE_BYTES`]).
const PORTS_IN_FULL: usize = 256;

/// NIC or host at a port.
#[derive(Clone, Debug)]
pub(crate) struct PortOwner {
    id: String,
    port: PortId,
    /// `None` for the host.
    nic: Option<Arc<ServedNic>>,
    since: SystemTime,
}

impl PortOwner {
    /// Creates the owner for a NIC.
    pub(crate) fn nic(id: &str, nic: &Arc<ServedNic>) -> Self {
        Self { id: id.into(), port: nic.spec.port, nic: Some(Arc::clone(nic)), since: nic.made }
    }

    /// Adds the host at a device to the present owners.
    pub(crate) fn add_host(all: &mut Vec<Self>, uplink: &Uplink) {
        let id = apart(uplink.name(), |id| all.iter().any(|one| one.id == id));
        all.push(Self { id, port: uplink.port(), nic: None, since: uplink.made() });
    }
}

/// Returns the id of a device in reports: its name, with a prefix if another port has this id.
fn apart(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut id = name.to_owned();
    while is_taken(&id) {
        id.insert_str(0, "tap:");
    }
    id
}

/// Returns the statistics of `wanted` ports in `all`. Any network of their switch will do.
pub(crate) fn ports(
    switch_network: &SwitchNetwork,
    all: &[PortOwner],
    wanted: impl Fn(&str) -> bool,
    detail: StatsDetail,
) -> Vec<PortStats> {
    let numbers = switch_network.pool.reactors().into_iter().zip(0..);
    let reported: Vec<_> = all.iter().filter(|one| wanted(&one.id)).collect();
    let port_reporter = PortReporter {
        switch_network,
        detail,
        numbers: numbers.map(|((one, _), at)| (one.number(), at)).collect(),
        names: all.iter().map(|one| (one.port, one.id.as_str())).collect(),
        flows: Flows::of(switch_network.fabric.top_flows()),
        most: if reported.len() > PORTS_IN_FULL { 1 } else { MAX_REPORTED_FLOWS },
    };
    reported.into_iter().map(|one| port_reporter.port(one)).collect()
}

/// Returns the residence times of frames for these ports.
pub(crate) fn residences(switch_network: &SwitchNetwork, all: &[PortOwner]) -> Vec<Residence> {
    let of_port = |one: &PortOwner| {
        let queues = switch_network.fabric.queues(one.port).into_iter();
        let (nic, since) = (one.id.clone(), stats::unix_seconds(one.since));
        let one = move |(queue, state): (u16, PairStats)| Residence {
            nic: nic.clone(),
            queue,
            times: state.residence,
            since,
        };
        (0..).zip(queues).map(one).collect::<Vec<_>>()
    };
    all.iter().flat_map(of_port).collect()
}

/// Context of port reports, with the names that they use.
struct PortReporter<'a> {
    switch_network: &'a SwitchNetwork,
    detail: StatsDetail,
    /// Index in the list of reactors by reactor number.
    numbers: HashMap<u32, u32>,
    names: HashMap<PortId, &'a str>,
    flows: Flows,
    /// Number of flows reported for each port.
    most: usize,
}

impl PortReporter<'_> {
    fn port(&self, PortOwner { id, port, nic, since }: &PortOwner) -> PortStats {
        let fabric = &self.switch_network.fabric;
        let (counts, queues) = (fabric.counts(*port), fabric.queues(*port));
        let drops = |lost: &dyn Fn(Reason) -> u64| {
            let all = Reason::ALL.iter().map(|reason| (reason.name().to_owned(), lost(*reason)));
            all.filter(|(_, count)| *count > 0).collect::<BTreeMap<_, _>>()
        };
        let sum = |frames, bytes, drops| DirectionStats { frames, bytes, drops, sizes: Vec::new() };
        let (refused, missed) =
            (drops(&|reason| counts.refused(reason)), drops(&|reason| counts.missed(reason)));
        PortStats {
            id: id.clone(),
            port: port.0,
            counting_since_unix_seconds: Some(stats::unix_seconds(*since)),
            socket: nic.as_ref().map(|nic| nic.spec.socket.display().to_string()),
            connected: nic.as_ref().is_none_or(|nic| nic.is_connected()),
            pairs: nic.as_ref().map_or(0, |nic| nic.pairs()),
            pairs_started: queues.iter().filter(|queue| queue.served).count() as u16,
            tx: sum(counts.sent_frames, counts.sent_bytes, refused),
            rx: sum(counts.got_frames, counts.got_bytes, missed),
            broken_rings: broken_rings(fabric, *port),
            broken_rings_total: fabric.broken_ring_count(*port),
            moves: fabric.moves(*port),
            polling: nic.as_ref().filter(|_| !queues.is_empty()).map(|nic| polling(nic, &queues)),
            each_queue: (0..).zip(&queues).map(|(at, queue)| self.pair(at, queue)).collect(),
            flows: self.flows.flow_stats(*port, self.most, &self.names),
        }
    }

    fn pair(&self, index: u16, queue: &PairStats) -> report::PairStats {
        let since = queue.held_since_ns.map_or(0, |since| clock_ns().saturating_sub(since));
        report::PairStats {
            index,
            served: queue.served,
            reactor: self.numbers.get(&queue.reactor).copied().unwrap_or(queue.reactor),
            tx: self.way(&queue.sent),
            rx: self.way(&queue.got),
            residence: stats::latency(&queue.residence.summary()),
            residence_seconds: queue.residence.sum_ns() as f64 / 1e9,
            throttled: queue.held,
            throttled_seconds: (queue.held_ns + since) as f64 / 1e9,
            throttled_now: queue.held_since_ns.is_some(),
            backlogged: queue.waited,
            backlog: queue.waiting,
            polling: stats::waits(&queue.poll, queue.served),
        }
    }

    fn way(&self, counts: &DirectionCounts) -> DirectionStats {
        let drops = Reason::ALL.iter().map(|one| (one.name().to_owned(), counts.drops(*one)));
        let bounds = size_bounds().map(Some).chain([None]);
        let sizes = bounds.zip(counts.sizes).map(|(up_to, frames)| SizeCount { up_to, frames });
        DirectionStats {
            frames: counts.frames,
            bytes: counts.bytes,
            drops: drops.filter(|(_, count)| *count > 0).collect(),
            sizes: if self.detail == StatsDetail::Everything {
                sizes.collect()
            } else {
                Vec::new()
            },
        }
    }
}

fn broken_rings(fabric: &Fabric, port: PortId) -> Vec<BrokenRing> {
    let all = fabric.broken_rings(port).into_iter();
    all.map(|(queue, kind, one)| stats::broken_ring(queue, ring_kind::to_report(kind), one))
        .collect()
}

fn polling(nic: &ServedNic, queues: &[PairStats]) -> PollStats {
    let mut sum = PollState::default();
    queues.iter().for_each(|queue| sum.add(&queue.poll));
    let served = queues.iter().any(|queue| queue.served);
    let (queues, refused) = (stats::waits(&sum, served), stats::refusals(&sum));
    PollStats { set: nic.polling(), queues, refused }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_the_name_of_a_nic_is_told_apart() {
        let report_id = |name, taken: &[&str]| apart(name, |id| taken.contains(&id));
        assert_eq!(report_id("tap0", &["a"]), "tap0");
        assert_eq!(report_id("tap0", &["tap0"]), "tap:tap0");
        assert_eq!(report_id("tap0", &["tap0", "tap:tap0"]), "tap:tap:tap0");
    }
}

//! What the ports of a switch do, as it is reported.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use model::report::{FlowStats, PairStats, PollStats, PortStats, SizeCount, WayStats};
use net::Reason;
use net::flow::{FlowKey, TopFlow};
use net::port::PortId;
use nic::{QueueState, WayCounts, size_bounds};
use reactor::{PollState, clock_ns};

use super::{Lan, Nic, Uplink};
use crate::metrics::Residence;
use crate::stats::{self, Detail};

/// Flows that are told of each port.
const FLOWS_TOLD: usize = 8;
/// Of more ports than this only the largest flow is told when all are asked for: an answer has
/// bounds ([`model::rpc::MAX_LINE_BYTES`]).
const PORTS_IN_FULL: usize = 256;

/// Who is at a port.
#[derive(Clone, Debug)]
pub(crate) struct Plugged {
    id: String,
    port: PortId,
    /// Absent for the host.
    nic: Option<Arc<Nic>>,
    since: SystemTime,
}

impl Plugged {
    /// A NIC.
    pub(crate) fn nic(id: &str, nic: &Arc<Nic>) -> Self {
        Self { id: id.into(), port: nic.spec.port, nic: Some(Arc::clone(nic)), since: nic.made }
    }

    /// The host.
    pub(crate) fn host(uplink: &Uplink) -> Self {
        let (port, since) = (uplink.port(), uplink.made());
        Self { id: uplink.name().into(), port, nic: None, since }
    }
}

/// What those of `all` do that are `wanted`. Any network of their switch will do.
pub(crate) fn ports(
    lan: &Lan,
    all: &[Plugged],
    wanted: impl Fn(&str) -> bool,
    detail: Detail,
) -> Vec<PortStats> {
    let numbers = lan.pool.reactors().into_iter().zip(0..);
    let teller = Teller {
        lan,
        detail,
        numbers: numbers.map(|((one, _), at)| (one.number(), at)).collect(),
        names: all.iter().map(|one| (one.port, one.id.as_str())).collect(),
        flows: flows(lan),
        most: if all.len() > PORTS_IN_FULL && detail == Detail::Counts { 1 } else { FLOWS_TOLD },
    };
    all.iter().filter(|one| wanted(&one.id)).map(|one| teller.port(one)).collect()
}

/// How long frames for them took.
pub(crate) fn residences(lan: &Lan, all: &[Plugged]) -> Vec<Residence> {
    let of_port = |one: &Plugged| {
        let queues = lan.fabric.queues(one.port).into_iter();
        let (nic, since) = (one.id.clone(), stats::unix_seconds(one.since));
        let one = move |(queue, state): (u16, QueueState)| Residence {
            nic: nic.clone(),
            queue,
            times: state.residence,
            since,
        };
        (0..).zip(queues).map(one).collect::<Vec<_>>()
    };
    all.iter().flat_map(of_port).collect()
}

/// Largest flows of a port, with all that it sends in flows.
type Flows = HashMap<PortId, (Vec<TopFlow>, u64)>;

/// What is told of ports, and by which names.
struct Teller<'a> {
    lan: &'a Lan,
    detail: Detail,
    /// Places in the list of reactors by their number.
    numbers: HashMap<u32, u32>,
    names: HashMap<PortId, &'a str>,
    flows: Flows,
    /// Flows of each port.
    most: usize,
}

impl Teller<'_> {
    fn port(&self, Plugged { id, port, nic, since }: &Plugged) -> PortStats {
        let fabric = &self.lan.fabric;
        let (counts, queues) = (fabric.counts(*port), fabric.queues(*port));
        let drops = |lost: &dyn Fn(Reason) -> u64| {
            let all = Reason::ALL.iter().map(|reason| (reason.name().to_owned(), lost(*reason)));
            all.filter(|(_, count)| *count > 0).collect::<BTreeMap<_, _>>()
        };
        let sum = |frames, bytes, drops| WayStats { frames, bytes, drops, sizes: Vec::new() };
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
            sent: sum(counts.sent_frames, counts.sent_bytes, refused),
            got: sum(counts.got_frames, counts.got_bytes, missed),
            moves: fabric.moves(*port),
            polling: nic.as_ref().filter(|_| !queues.is_empty()).map(|nic| polling(nic, &queues)),
            each_queue: (0..).zip(&queues).map(|(at, queue)| self.pair(at, queue)).collect(),
            flows: self.flows(*port),
        }
    }

    fn flows(&self, port: PortId) -> Vec<FlowStats> {
        let Some((flows, total)) = self.flows.get(&port) else { return Vec::new() };
        let one = |flow: &TopFlow| {
            let (from, to) = ends(&flow.key);
            FlowStats {
                from,
                to,
                protocol: protocol(flow.key.protocol),
                nic: flow.key.to.and_then(|port| self.names.get(&port)).map(|id| (*id).into()),
                share: flow.bytes as f64 / (*total).max(1) as f64,
                recent_bytes: flow.bytes,
            }
        };
        flows.iter().take(self.most).map(one).collect()
    }

    fn pair(&self, index: u16, queue: &QueueState) -> PairStats {
        let since = queue.held_since_ns.map_or(0, |since| clock_ns().saturating_sub(since));
        PairStats {
            index,
            served: queue.served,
            reactor: self.numbers.get(&queue.reactor).copied().unwrap_or(queue.reactor),
            sent: self.way(&queue.sent),
            got: self.way(&queue.got),
            residence: stats::latency(&queue.residence.summary()),
            residence_seconds: queue.residence.sum_ns() as f64 / 1e9,
            held: queue.held,
            held_seconds: (queue.held_ns + since) as f64 / 1e9,
            held_now: queue.held_since_ns.is_some(),
            waited: queue.waited,
            waiting: queue.waiting,
            polling: stats::waits(&queue.poll, queue.served),
        }
    }

    fn way(&self, counts: &WayCounts) -> WayStats {
        let drops = Reason::ALL.iter().map(|one| (one.name().to_owned(), counts.drops(*one)));
        let bounds = size_bounds().map(Some).chain([None]);
        let sizes = bounds.zip(counts.sizes).map(|(up_to, frames)| SizeCount { up_to, frames });
        WayStats {
            frames: counts.frames,
            bytes: counts.bytes,
            drops: drops.filter(|(_, count)| *count > 0).collect(),
            sizes: if self.detail == Detail::Everything { sizes.collect() } else { Vec::new() },
        }
    }
}

fn polling(nic: &Nic, queues: &[QueueState]) -> PollStats {
    let mut sum = PollState::default();
    queues.iter().for_each(|queue| sum.add(&queue.poll));
    let served = queues.iter().any(|queue| queue.served);
    let (queues, refused) = (stats::waits(&sum, served), stats::refusals(&sum));
    PollStats { set: nic.polling(), queues, refused }
}

fn flows(lan: &Lan) -> Flows {
    let mut all = Flows::new();
    for (port, flows, total) in lan.fabric.top_flows() {
        let (sum, bytes) = all.entry(port).or_default();
        sum.extend(flows);
        *bytes += total;
    }
    for (flows, _) in all.values_mut() {
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes));
    }
    all
}

fn ends(key: &FlowKey) -> (String, String) {
    match (key.ends, key.ports) {
        (None, _) => ("?".into(), "?".into()),
        (Some((from, to)), None) => (from.to_string(), to.to_string()),
        (Some((from, to)), Some((source, target))) => {
            (SocketAddr::new(from, source).to_string(), SocketAddr::new(to, target).to_string())
        }
    }
}

fn protocol(number: u8) -> String {
    match number {
        6 => "tcp".into(),
        17 => "udp".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn ends_are_as_people_write_them() {
        let key = |ends, ports| FlowKey { ends, protocol: 6, ports, to: None };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let two = |from: &str, to: &str| Some((ip(from), ip(to)));
        let told = ends(&key(two("10.0.0.1", "10.0.0.2"), Some((1, 2))));
        assert_eq!(told, ("10.0.0.1:1".into(), "10.0.0.2:2".into()));
        let told = ends(&key(two("fe80::1", "fe80::2"), None));
        assert_eq!(told, ("fe80::1".into(), "fe80::2".into()));
        assert_eq!((protocol(17), protocol(47)), ("udp".into(), "47".into()));
    }
}

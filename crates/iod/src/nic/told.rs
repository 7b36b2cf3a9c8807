//! What a switch says of itself, to callers and scrapers.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use model::poll::Polling;
use model::report::{FlowStats, PairStats, PollStats, PortStats, SizeCount, Stats, WayStats};
use net::Reason;
use net::flow::{FlowKey, TopFlow};
use net::port::PortId;
use nic::{QueueState, WayCounts, size_bounds};
use reactor::{PollState, clock_ns};

use super::{Lan, Nic};
use crate::metrics::{self, Residence};
use crate::stats;

/// Flows that are told of each port.
const FLOWS_TOLD: usize = 8;

/// A switch, and who is at its ports.
#[derive(Debug)]
pub struct Told {
    lan: Arc<Lan>,
    nics: Vec<(String, Arc<Nic>)>,
    /// The host's port and device.
    host: Option<(PortId, String)>,
    polling: Polling,
    started: (Instant, SystemTime),
}

/// Largest flows of a port, with all that it sends in flows.
type Flows = HashMap<PortId, (Vec<TopFlow>, u64)>;

impl Told {
    /// Of a switch with these NICs, and perhaps the host at a device, whose queues wait like this.
    pub fn new(
        lan: &Arc<Lan>,
        nics: &[Arc<Nic>],
        host: Option<(PortId, String)>,
        polling: Polling,
    ) -> Arc<Self> {
        let sockets: Vec<_> = nics.iter().map(|nic| nic.spec.socket.as_path()).collect();
        let nics = names(&sockets).into_iter().zip(nics.iter().cloned()).collect();
        let started = (Instant::now(), SystemTime::now());
        Arc::new(Self { lan: Arc::clone(lan), nics, host, polling, started })
    }

    /// Everything.
    pub(crate) fn stats(&self) -> Stats {
        let pool = &self.lan.pool;
        let mut all = stats::process(self.started.0, pool, &[], |_| false, stats::Detail::Counts);
        let numbers = pool.reactors().into_iter().zip(0..);
        let numbers: HashMap<_, _> = numbers.map(|((one, _), at)| (one.number(), at)).collect();
        let flows = self.flows();
        let nics = self.nics.iter().map(|(id, nic)| self.nic(id, nic, &numbers));
        let host = self.host.iter().map(|(port, name)| self.port(name, *port, &numbers));
        all.ports = nics.chain(host).collect();
        for port in &mut all.ports {
            port.flows = self.named(&flows, PortId(port.port));
        }
        all.poll_defaults = Some(self.polling);
        all
    }

    /// The page that a scraper gets.
    pub(crate) fn metrics(&self) -> String {
        let residences = self.nics.iter().flat_map(|(id, nic)| {
            let queues = self.lan.fabric.queues(nic.spec.port).into_iter();
            (0..).zip(queues).map(move |(queue, state)| Residence {
                nic: id.clone(),
                queue,
                times: state.residence,
            })
        });
        let residences: Vec<_> = residences.collect();
        metrics::ports_page(&self.stats(), &residences, stats::unix_seconds(self.started.1))
    }

    fn nic(&self, id: &str, nic: &Nic, numbers: &HashMap<u32, u32>) -> PortStats {
        PortStats {
            socket: Some(nic.spec.socket.display().to_string()),
            connected: nic.session().is_some(),
            pairs: nic.offer.pairs,
            ..self.port(id, nic.spec.port, numbers)
        }
    }

    fn port(&self, id: &str, port: PortId, numbers: &HashMap<u32, u32>) -> PortStats {
        let fabric = &self.lan.fabric;
        let (counts, queues) = (fabric.counts(port), fabric.queues(port));
        let drops = |lost: &dyn Fn(Reason) -> u64| {
            let all = Reason::ALL.iter().map(|reason| (reason.name().to_owned(), lost(*reason)));
            all.filter(|(_, count)| *count > 0).collect::<BTreeMap<_, _>>()
        };
        let sum = |frames, bytes, drops| WayStats { frames, bytes, drops, sizes: Vec::new() };
        let (refused, missed) =
            (drops(&|reason| counts.refused(reason)), drops(&|reason| counts.missed(reason)));
        PortStats {
            id: id.into(),
            port: port.0,
            socket: None,
            connected: true,
            pairs: 0,
            pairs_started: queues.iter().filter(|queue| queue.served).count() as u16,
            sent: sum(counts.sent_frames, counts.sent_bytes, refused),
            got: sum(counts.got_frames, counts.got_bytes, missed),
            moves: fabric.moves(port),
            polling: (!queues.is_empty()).then(|| self.polling(&queues)),
            each_queue: (0..).zip(&queues).map(|(at, queue)| pair(at, queue, numbers)).collect(),
            flows: Vec::new(),
        }
    }

    fn polling(&self, queues: &[QueueState]) -> PollStats {
        let mut sum = PollState::default();
        queues.iter().for_each(|queue| sum.add(&queue.poll));
        let served = queues.iter().any(|queue| queue.served);
        let (queues, refused) = (stats::waits(&sum, served), stats::refusals(&sum));
        PollStats { set: self.polling, queues, refused }
    }

    fn flows(&self) -> Flows {
        let mut all = Flows::new();
        for (port, flows, total) in self.lan.fabric.top_flows() {
            let (sum, bytes) = all.entry(port).or_default();
            sum.extend(flows);
            *bytes += total;
        }
        for (flows, _) in all.values_mut() {
            flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes));
            flows.truncate(FLOWS_TOLD);
        }
        all
    }

    fn named(&self, flows: &Flows, port: PortId) -> Vec<FlowStats> {
        let Some((flows, total)) = flows.get(&port) else { return Vec::new() };
        let one = |flow: &TopFlow| {
            let (from, to) = ends(&flow.key);
            FlowStats {
                from,
                to,
                protocol: protocol(flow.key.protocol),
                nic: flow.key.to.and_then(|port| self.name(port)),
                share: flow.bytes as f64 / (*total).max(1) as f64,
                recent_bytes: flow.bytes,
            }
        };
        flows.iter().map(one).collect()
    }

    fn name(&self, port: PortId) -> Option<String> {
        let nic = self.nics.iter().find(|(_, nic)| nic.spec.port == port);
        let host = self.host.as_ref().filter(|(host, _)| *host == port);
        nic.map(|(id, _)| id).or(host.map(|(_, name)| name)).cloned()
    }
}

/// Short names of NICs: those of their sockets, without folder and ending, where they differ.
fn names(sockets: &[&Path]) -> Vec<String> {
    let short = |socket: &Path| socket.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let shorts: Vec<_> = sockets.iter().copied().map(short).collect();
    let is_alone = |name: &Option<String>| shorts.iter().filter(|one| *one == name).count() == 1;
    let all = sockets.iter().zip(&shorts);
    let name = all.map(|(socket, short)| match short {
        Some(name) if is_alone(short) => name.clone(),
        _ => socket.display().to_string(),
    });
    name.collect()
}

fn pair(index: u16, queue: &QueueState, numbers: &HashMap<u32, u32>) -> PairStats {
    let since = queue.held_since_ns.map_or(0, |since| clock_ns().saturating_sub(since));
    PairStats {
        index,
        served: queue.served,
        reactor: numbers.get(&queue.reactor).copied().unwrap_or(queue.reactor),
        sent: way(&queue.sent),
        got: way(&queue.got),
        residence: stats::latency(&queue.residence.summary()),
        residence_seconds: queue.residence.sum_ns() as f64 / 1e9,
        held: queue.held,
        held_seconds: (queue.held_ns + since) as f64 / 1e9,
        held_now: queue.held_since_ns.is_some(),
        polling: stats::waits(&queue.poll, queue.served),
    }
}

fn way(counts: &WayCounts) -> WayStats {
    let drops = Reason::ALL.iter().map(|one| (one.name().to_owned(), counts.drops(*one)));
    let bounds = size_bounds().map(Some).chain([None]);
    let sizes = bounds.zip(counts.sizes).map(|(up_to, frames)| SizeCount { up_to, frames });
    WayStats {
        frames: counts.frames,
        bytes: counts.bytes,
        drops: drops.filter(|(_, count)| *count > 0).collect(),
        sizes: sizes.collect(),
    }
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
    fn names_are_short_where_they_tell_enough() {
        let paths = ["/run/a.sock", "/run/b.sock", "/x/b.sock", "fd:3"].map(Path::new);
        assert_eq!(names(&paths), ["a", "/run/b.sock", "/x/b.sock", "fd:3"]);
    }

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

//! Largest flows that ports send, for reports.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::SocketAddr;

use model::report::FlowStats;
use net::flow::{FlowKey, TopFlow};
use net::port::PortId;

/// Largest flows of each port, largest first, and the bytes of all flows that it sent recently.
pub(super) struct Flows(HashMap<PortId, (Vec<TopFlow>, u64)>);

impl Flows {
    /// Merges what each reactor has seen of its ports. A flow that several reactors have seen
    /// counts as one.
    pub(super) fn of(seen: impl IntoIterator<Item = (PortId, Vec<TopFlow>, u64)>) -> Self {
        let mut sums = HashMap::<PortId, (HashMap<_, TopFlow>, u64)>::new();
        for (port, flows, total) in seen {
            let (sum, bytes) = sums.entry(port).or_default();
            *bytes = bytes.saturating_add(total);
            for flow in flows {
                let FlowKey { ends, protocol, ports, to } = flow.key;
                let place = sum.entry((ends, protocol, ports));
                let one = place.and_modify(|one| {
                    one.bytes = one.bytes.saturating_add(flow.bytes);
                    one.error = one.error.saturating_add(flow.error);
                });
                let one = one.or_insert(flow);
                // One of the reactors had not learnt its destination yet.
                one.key.to = one.key.to.or(to);
            }
        }
        let sorted = |flows: HashMap<_, TopFlow>| {
            let mut all: Vec<_> = flows.into_values().collect();
            all.sort_by_key(|flow| (Reverse(flow.bytes), flow.key.ends, flow.key.ports));
            all
        };
        let all = sums.into_iter();
        Self(all.map(|(port, (flows, total))| (port, (sorted(flows), total))).collect())
    }

    /// Returns at most `most` flows of a port. `names` has the names of ports.
    pub(super) fn flow_stats(
        &self,
        port: PortId,
        most: usize,
        names: &HashMap<PortId, &str>,
    ) -> Vec<FlowStats> {
        let Some((flows, total)) = self.0.get(&port) else { return Vec::new() };
        let one = |flow: &TopFlow| {
            let (from, to) = ends(&flow.key);
            FlowStats {
                from,
                to,
                protocol: protocol(flow.key.protocol),
                nic: flow.key.to.and_then(|port| names.get(&port)).map(|id| (*id).into()),
                share: flow.bytes as f64 / (*total).max(1) as f64,
                recent_bytes: flow.bytes,
            }
        };
        flows.iter().take(most).map(one).collect()
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

    fn key(from: &str, to: &str, ports: Option<(u16, u16)>) -> FlowKey {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        FlowKey { ends: Some((ip(from), ip(to))), protocol: 6, ports, to: None }
    }

    #[test]
    fn ends_are_as_people_write_them() {
        let texts = ends(&key("10.0.0.1", "10.0.0.2", Some((1, 2))));
        assert_eq!(texts, ("10.0.0.1:1".into(), "10.0.0.2:2".into()));
        let texts = ends(&key("fe80::1", "fe80::2", None));
        assert_eq!(texts, ("fe80::1".into(), "fe80::2".into()));
        assert_eq!((protocol(17), protocol(47)), ("udp".into(), "47".into()));
    }

    #[test]
    fn a_flow_that_two_reactors_have_seen_is_told_once() {
        let (here, there) = (PortId(1), PortId(2));
        let flow = |port: u16, to, bytes| TopFlow {
            key: FlowKey { to, ..key("10.0.0.1", "10.0.0.2", Some((port, 9))) },
            bytes,
            error: 0,
        };
        let flows = Flows::of([
            (here, vec![flow(1, None, 300), flow(2, None, 200)], 600),
            (here, vec![flow(2, Some(there), 200)], 400),
        ]);
        let names = HashMap::from([(there, "b")]);
        let stats = flows.flow_stats(here, 8, &names);
        let all: Vec<_> = stats.iter().map(|one| (one.from.as_str(), one.recent_bytes)).collect();
        assert_eq!(all, [("10.0.0.1:2", 400), ("10.0.0.1:1", 300)]);
        assert_eq!((stats[0].nic.as_deref(), stats[0].share), (Some("b"), 0.4));
        assert_eq!(flows.flow_stats(here, 1, &names).len(), 1);
        assert!(flows.flow_stats(there, 8, &names).is_empty());
    }
}

//! Metrics of NICs.

use model::report::{DirectionStats, PairStats, PortStats, Stats};
use reactor::Snapshot;

use super::families::{self, BOUNDS};
use super::text::{Labels, MetricType, Page};
use super::{broken_rings, polling};

/// Residence times of the frames of a queue pair.
#[derive(Debug)]
pub(crate) struct Residence {
    /// Name of the NIC.
    pub(crate) nic: String,
    /// Index of the queue pair.
    pub(crate) queue: u16,
    /// Histogram of the times.
    pub(crate) times: Snapshot,
    /// Start of counting, in seconds since 1970.
    pub(crate) since: f64,
}

/// Formats the page of a process that only has a switch and started at `since`, in seconds since
/// 1970.
pub(crate) fn page(stats: &Stats, residences: &[Residence], since: f64) -> String {
    let (mut page, since) = (Page::default(), Some(since));
    families::process(&mut page, stats);
    families::reactors(&mut page, &stats.reactors, since);
    polling::reactors(&mut page, &stats.reactors, since);
    nics(&mut page, &stats.ports, residences);
    page.end()
}

/// Writes the metrics of NICs, and of the host if it has a port.
pub(super) fn nics(page: &mut Page, ports: &[PortStats], residences: &[Residence]) {
    type Value = fn(&PortStats) -> u16;
    let families: [(&'static str, &str, Value); 2] = [
        ("ringway_nic_connected", "A front-end is connected, or the port is the host's.", |port| {
            port.connected.into()
        }),
        ("ringway_nic_queues_started", "Pairs of queues that its driver has started.", |port| {
            port.pairs_started
        }),
    ];
    for (name, help, value) in families {
        let mut family = page.family(name, MetricType::Gauge, None, help);
        for port in ports {
            family.add(&[("nic", &port.id)], value(port));
        }
    }
    broken_rings::nics(page, ports);
    directions(page, ports);
    lost(page, ports);
    pairs(page, ports);
    queue_directions(page, ports);
    sizes(page, ports);
    flows(page, ports);
    polling::nics(page, ports);
    durations(page, residences);
}

/// Returns both directions, as the NIC's guest sees them.
fn both(port: &PortStats) -> [(&'static str, &DirectionStats); 2] {
    [("tx", &port.tx), ("rx", &port.rx)]
}

fn directions(page: &mut Page, ports: &[PortStats]) {
    type Count = fn(&DirectionStats) -> u64;
    let families: [(&'static str, Option<&str>, &str, Count); 2] = [
        ("ringway_nic_frames", None, "Frames; tx includes frames that reached no port.", |way| {
            way.frames
        }),
        ("ringway_nic_bytes", Some("bytes"), "Their bytes.", |way| way.bytes),
    ];
    for (name, unit, help, count) in families {
        let mut family = page.family(name, MetricType::Counter, unit, help);
        for port in ports {
            for (direction, counts) in both(port) {
                let labels = [("nic", port.id.as_str()), ("direction", direction)];
                family.count(&labels, count(counts), port.counting_since_unix_seconds);
            }
        }
    }
    let help = "Requested moves of flows between the NIC's queues.";
    let mut family = page.family("ringway_nic_flow_moves", MetricType::Counter, None, help);
    for port in ports {
        family.count(&[("nic", &port.id)], port.moves, port.counting_since_unix_seconds);
    }
}

fn lost(page: &mut Page, ports: &[PortStats]) {
    let help = "Dropped frames by reason: sent by the NIC, or destined for it.";
    let mut family = page.family("ringway_nic_dropped_frames", MetricType::Counter, None, help);
    for port in ports {
        for (direction, counts) in both(port) {
            for (reason, count) in &counts.drops {
                let reason = reason.as_str();
                let labels =
                    [("nic", port.id.as_str()), ("direction", direction), ("reason", reason)];
                family.count(&labels, count, port.counting_since_unix_seconds);
            }
        }
    }
}

fn pairs(page: &mut Page, ports: &[PortStats]) {
    type Count = fn(&PairStats) -> f64;
    let families: [(&'static str, Option<&str>, &str, Count); 3] = [
        ("ringway_nic_queue_throttled", None, "Times that its cap throttled the queue.", |pair| {
            pair.throttled as f64
        }),
        (
            "ringway_nic_queue_throttled_seconds",
            Some("seconds"),
            "Time for which its cap throttled the queue.",
            |pair| pair.throttled_seconds,
        ),
        (
            "ringway_nic_queue_backlogged_frames",
            None,
            "Frames that waited for buffers of the guest.",
            |pair| pair.backlogged as f64,
        ),
    ];
    for (name, unit, help, count) in families {
        let mut family = page.family(name, MetricType::Counter, unit, help);
        for port in ports {
            for pair in &port.each_queue {
                let queue = pair.index.to_string();
                let labels = [("nic", port.id.as_str()), ("queue", queue.as_str())];
                family.count(&labels, count(pair), port.counting_since_unix_seconds);
            }
        }
    }
}

fn queue_directions(page: &mut Page, ports: &[PortStats]) {
    type Count = fn(&DirectionStats) -> u64;
    let families: [(&'static str, Option<&str>, &str, Count); 2] = [
        ("ringway_nic_queue_frames", None, "Frames by the queue that sent or got them.", |way| {
            way.frames
        }),
        ("ringway_nic_queue_bytes", Some("bytes"), "Their bytes.", |way| way.bytes),
    ];
    for (name, unit, help, count) in families {
        let mut family = page.family(name, MetricType::Counter, unit, help);
        each_direction(ports, |port, labels, way| {
            family.count(labels, count(way), port.counting_since_unix_seconds);
        });
    }
    let help = "Dropped frames by queue and reason; frames dropped on the way to the queue's \
                reactor are counted by the NIC alone.";
    let name = "ringway_nic_queue_dropped_frames";
    let mut family = page.family(name, MetricType::Counter, None, help);
    each_direction(ports, |port, labels, way| {
        for (reason, count) in &way.drops {
            let labels = [labels, &[("reason", reason.as_str())]].concat();
            family.count(&labels, count, port.counting_since_unix_seconds);
        }
    });
}

/// Calls `with` for both directions of each queue pair, with its labels.
fn each_direction(
    ports: &[PortStats],
    mut with: impl FnMut(&PortStats, &Labels<'_>, &DirectionStats),
) {
    for port in ports {
        for pair in &port.each_queue {
            let queue = pair.index.to_string();
            for (direction, counts) in [("tx", &pair.tx), ("rx", &pair.rx)] {
                let labels = [
                    ("nic", port.id.as_str()),
                    ("queue", queue.as_str()),
                    ("direction", direction),
                ];
                with(port, &labels, counts);
            }
        }
    }
}

fn sizes(page: &mut Page, ports: &[PortStats]) {
    let help = "Sizes of frames and unsplit segments, without virtio-net headers.";
    let name = "ringway_nic_frame_size_bytes";
    let mut family = page.family(name, MetricType::Histogram, Some("bytes"), help);
    each_direction(ports, |port, labels, way| {
        let mut below = 0;
        let buckets = way.sizes.iter().filter_map(|size| {
            below += size.frames;
            Some((size.up_to? as f64, below))
        });
        let all: Vec<_> = buckets.collect();
        let sums = (way.sizes.iter().map(|size| size.frames).sum(), way.bytes as f64);
        family.histogram(labels, all.into_iter(), sums, port.counting_since_unix_seconds);
    });
}

/// Writes the flows that `stats` reports: few of each NIC, and each flow once.
fn flows(page: &mut Page, ports: &[PortStats]) {
    let help = "Approximate traffic of the NIC's largest tx flows in the last seven seconds.";
    let name = "ringway_nic_flow_recent_bytes";
    let mut family = page.family(name, MetricType::Gauge, Some("bytes"), help);
    for port in ports {
        for flow in &port.flows {
            let ends = [("from", flow.from.as_str()), ("to", flow.to.as_str())];
            let of = [("nic", port.id.as_str()), ("protocol", flow.protocol.as_str())];
            family.add(&[&of[..], &ends].concat(), flow.recent_bytes);
        }
    }
}

fn durations(page: &mut Page, residences: &[Residence]) {
    let help = "Time of frames from their sender's ring to this queue's ring.";
    let name = "ringway_nic_residence_seconds";
    let mut family = page.family(name, MetricType::Histogram, Some("seconds"), help);
    for Residence { nic, queue, times, since } in residences {
        let queue = queue.to_string();
        let labels = [("nic", nic.as_str()), ("queue", queue.as_str())];
        let buckets = BOUNDS.iter().map(|ns| (*ns as f64 / 1e9, times.count_up_to(*ns)));
        let sums = (times.count(), times.sum_ns() as f64 / 1e9);
        family.histogram(&labels, buckets, sums, Some(*since));
    }
}

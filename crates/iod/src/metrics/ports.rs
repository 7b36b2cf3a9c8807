//! What is told of a switch.

use model::report::{PairStats, PollReason, PortStats, Stats, WayStats};
use reactor::Snapshot;

use super::families::{self, BOUNDS};
use super::polling;
use super::text::{Kind, Page};

/// How long frames for a pair of queues took.
#[derive(Debug)]
pub(crate) struct Residence {
    /// Name of the NIC.
    pub(crate) nic: String,
    /// Which pair of it.
    pub(crate) queue: u16,
    /// The times.
    pub(crate) times: Snapshot,
}

/// The page. Counters count from `since` on, in seconds since 1970.
pub(crate) fn page(stats: &Stats, residences: &[Residence], since: f64) -> String {
    let (mut page, since) = (Page::default(), Some(since));
    families::process(&mut page, stats);
    families::reactors(&mut page, &stats.reactors, since);
    polling::reactors(&mut page, &stats.reactors, since);
    let help = "A front-end is connected.";
    let mut family = page.family("ringway_nic_connected", Kind::Gauge, None, help);
    for port in &stats.ports {
        family.add(&[("nic", &port.id)], u8::from(port.connected));
    }
    ways(&mut page, &stats.ports, since);
    lost(&mut page, &stats.ports, since);
    pairs(&mut page, &stats.ports, since);
    sizes(&mut page, &stats.ports, since);
    polled(&mut page, &stats.ports);
    durations(&mut page, residences, since);
    page.end()
}

/// Both ways, seen from the NIC's guest.
fn both(port: &PortStats) -> [(&'static str, &WayStats); 2] {
    [("sent", &port.sent), ("got", &port.got)]
}

fn ways(page: &mut Page, ports: &[PortStats], since: Option<f64>) {
    type Count = fn(&WayStats) -> u64;
    let families: [(&'static str, Option<&str>, &str, Count); 2] = [
        ("ringway_nic_frames", None, "Frames; of those sent also what went nowhere.", |way| {
            way.frames
        }),
        ("ringway_nic_bytes", Some("bytes"), "Their bytes.", |way| way.bytes),
    ];
    for (name, unit, help, count) in families {
        let mut family = page.family(name, Kind::Counter, unit, help);
        for port in ports {
            for (way, counts) in both(port) {
                family.count(&[("nic", &port.id), ("way", way)], count(counts), since);
            }
        }
    }
    let help = "Moves of flows between its queues that were asked for.";
    let mut family = page.family("ringway_nic_flow_moves", Kind::Counter, None, help);
    for port in ports {
        family.count(&[("nic", &port.id)], port.moves, since);
    }
}

fn lost(page: &mut Page, ports: &[PortStats], since: Option<f64>) {
    let help = "Frames that were lost, by reason: what it sent, or what was for it.";
    let mut family = page.family("ringway_nic_lost_frames", Kind::Counter, None, help);
    for port in ports {
        for (way, counts) in both(port) {
            for (reason, count) in &counts.drops {
                let reason = reason.as_str();
                let labels = [("nic", port.id.as_str()), ("way", way), ("reason", reason)];
                family.count(&labels, count, since);
            }
        }
    }
}

fn pairs(page: &mut Page, ports: &[PortStats], since: Option<f64>) {
    type Count = fn(&PairStats) -> f64;
    let families: [(&'static str, Option<&str>, &str, Count); 5] = [
        ("ringway_nic_queue_sent_frames", None, "Frames by the queue that sent them.", |pair| {
            pair.sent.frames as f64
        }),
        ("ringway_nic_queue_got_frames", None, "Frames by the queue that got them.", |pair| {
            pair.got.frames as f64
        }),
        (
            "ringway_nic_queue_got_bytes",
            Some("bytes"),
            "Bytes by the queue that got them.",
            |pair| pair.got.bytes as f64,
        ),
        ("ringway_nic_queue_held", None, "Times that its cap held it.", |pair| pair.held as f64),
        (
            "ringway_nic_queue_held_seconds",
            Some("seconds"),
            "Time for which its cap held it.",
            |pair| pair.held_seconds,
        ),
    ];
    for (name, unit, help, count) in families {
        let mut family = page.family(name, Kind::Counter, unit, help);
        for port in ports {
            for pair in &port.each_queue {
                let queue = pair.index.to_string();
                let labels = [("nic", port.id.as_str()), ("queue", queue.as_str())];
                family.count(&labels, count(pair), since);
            }
        }
    }
}

fn sizes(page: &mut Page, ports: &[PortStats], since: Option<f64>) {
    let help = "Sizes of frames and unsplit segments, without virtio-net headers.";
    let name = "ringway_nic_frame_size_bytes";
    let mut family = page.family(name, Kind::Histogram, Some("bytes"), help);
    for port in ports {
        for pair in &port.each_queue {
            for (way, counts) in [("sent", &pair.sent), ("got", &pair.got)] {
                let queue = pair.index.to_string();
                let labels = [("nic", port.id.as_str()), ("queue", queue.as_str()), ("way", way)];
                let mut below = 0;
                let buckets = counts.sizes.iter().filter_map(|size| {
                    below += size.frames;
                    Some((size.up_to? as f64, below))
                });
                let all: Vec<_> = buckets.collect();
                let count = counts.sizes.iter().map(|size| size.frames).sum();
                family.histogram(&labels, all.into_iter(), (count, counts.bytes as f64), since);
            }
        }
    }
}

fn polled(page: &mut Page, ports: &[PortStats]) {
    let help = "What its queues do when they have nothing to send, or did when they were served last: \
                they look for frames (pays, probing, always), or sleep for this reason.";
    let mut family = page.family("ringway_nic_poll_reason", Kind::StateSet, None, help);
    for port in ports {
        let Some(polling) = &port.polling else { continue };
        for reason in PollReason::ALL {
            let labels = [("nic", port.id.as_str()), ("ringway_nic_poll_reason", reason.name())];
            family.add(&labels, u8::from(polling.queues.reason == reason));
        }
    }
}

fn durations(page: &mut Page, residences: &[Residence], since: Option<f64>) {
    let help = "Time of frames from their sender's ring to this queue's.";
    let name = "ringway_nic_residence_seconds";
    let mut family = page.family(name, Kind::Histogram, Some("seconds"), help);
    for Residence { nic, queue, times } in residences {
        let queue = queue.to_string();
        let labels = [("nic", nic.as_str()), ("queue", queue.as_str())];
        let buckets = BOUNDS.iter().map(|ns| (*ns as f64 / 1e9, times.count_up_to(*ns)));
        family.histogram(&labels, buckets, (times.count(), times.sum_ns() as f64 / 1e9), since);
    }
}

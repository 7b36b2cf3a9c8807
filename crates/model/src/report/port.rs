//! Report of a switch port.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{BrokenRing, Latency, PollStats, QueuePolling};

/// A port of a switch: a NIC of a guest, or the host's device. Counts start when the port was
/// plugged, or when its process began to serve it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortStats {
    /// Name of the NIC, or of the host's device.
    pub id: String,
    /// Number of the port.
    pub port: u16,
    /// Time at which its counts were 0, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counting_since_unix_seconds: Option<f64>,
    /// Socket of its front-end; absent for the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Whether a front-end is connected; true for the host.
    pub connected: bool,
    /// Number of queue pairs that its guest may use; 0 for the host.
    pub pairs: u16,
    /// Number of pairs whose receive queue is served now.
    pub pairs_started: u16,
    /// Frames sent.
    #[serde(alias = "sent")]
    pub tx: DirectionStats,
    /// Frames received.
    #[serde(alias = "got")]
    pub rx: DirectionStats,
    /// Rings that their driver has broken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken_rings: Vec<BrokenRing>,
    /// Number of times that one of its rings broke.
    #[serde(default)]
    pub broken_rings_total: u64,
    /// Number of requested flow moves between its queues.
    pub moves: u64,
    /// Polling while it has nothing to send; absent for the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<PollStats>,
    /// Each pair that was ever served.
    #[serde(default)]
    pub each_queue: Vec<PairStats>,
    /// Flows that currently account for most of its sent bytes.
    #[serde(default)]
    pub flows: Vec<FlowStats>,
}

/// Report of a queue pair of a NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairStats {
    /// Index of the pair, from 0.
    pub index: u16,
    /// Whether a reactor serves it.
    pub served: bool,
    /// Reactor that serves it, or served it last.
    pub reactor: u32,
    /// Frames that its guest sent through it.
    #[serde(alias = "sent")]
    pub tx: DirectionStats,
    /// Frames that its guest received through it. Only the NIC counts frames that were lost on the
    /// way to its reactor.
    #[serde(alias = "got")]
    pub rx: DirectionStats,
    /// Time from popping a frame off its sender's ring to writing it into this ring.
    pub residence: Latency,
    /// Sum of these times, in seconds.
    pub residence_seconds: f64,
    /// Number of times that the cap throttled it.
    #[serde(alias = "held")]
    pub throttled: u64,
    /// Time that the cap throttled it, up to now, in seconds.
    #[serde(alias = "held_seconds")]
    pub throttled_seconds: f64,
    /// Whether the cap throttles it now.
    #[serde(alias = "held_now")]
    pub throttled_now: bool,
    /// Frames that went to the backlog because its guest had posted too few buffers.
    #[serde(default)]
    #[serde(alias = "waited")]
    pub backlogged: u64,
    /// Frames in the backlog now.
    #[serde(default)]
    #[serde(alias = "waiting")]
    pub backlog: u64,
    /// Polling while its guest sends nothing.
    pub polling: QueuePolling,
}

/// Traffic of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionStats {
    /// Number of frames; sent frames include dropped ones.
    pub frames: u64,
    /// Bytes of the frames, without virtio-net headers.
    pub bytes: u64,
    /// Number of dropped frames by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
    /// Frames by size class, where they are counted. Each class has an upper limit; the last one
    /// has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<SizeCount>,
}

impl DirectionStats {
    /// Returns the number of dropped frames, for all reasons.
    pub fn lost(&self) -> u64 {
        self.drops.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the number of frames dropped for this reason.
    pub fn lost_for(&self, reason: &str) -> u64 {
        self.drops.get(reason).copied().unwrap_or(0)
    }
}

/// Number of frames in one size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeCount {
    /// Bytes of the largest frame in the class; absent for the last class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u64>,
    /// Number of frames.
    pub frames: u64,
}

/// A currently large flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowStats {
    /// Source, with its port if it has one: `10.0.0.1:4000`, `[fe80::1]:4000`.
    pub from: String,
    /// Destination, in the same form.
    pub to: String,
    /// `tcp`, `udp`, or the protocol number.
    pub protocol: String,
    /// NIC that receives it; absent if several do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Its recent share of all bytes that its NIC sends in flows: 0 to 1.
    pub share: f64,
    /// Approximate bytes sent in the last seven seconds.
    pub recent_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_written() {
        let nic = PortStats { id: "a".into(), ..PortStats::default() };
        let text = serde_json::to_string(&nic).unwrap();
        assert!(!text.contains("drops") && !text.contains("socket"), "{text}");
        assert_eq!(serde_json::from_str::<PortStats>(&text).unwrap(), nic);
        let drops = [("no-buffer".to_owned(), 3), ("oversize".into(), 4)].into();
        let counts = DirectionStats { drops, ..DirectionStats::default() };
        assert_eq!(
            (counts.lost(), counts.lost_for("oversize"), counts.lost_for("closed")),
            (7, 4, 0)
        );
    }
}

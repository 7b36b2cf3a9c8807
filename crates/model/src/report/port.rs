//! What a NIC does, as a port of a switch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Latency, PollStats, QueuePolling};

/// A port of a switch: a NIC of a guest, or the host at its device. Counts are since it was plugged
/// in, or since its process has begun to serve it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortStats {
    /// Name of the NIC, or of the host's device.
    pub id: String,
    /// Its number.
    pub port: u16,
    /// When its counters were 0, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counting_since_unix_seconds: Option<f64>,
    /// Socket of its front-end; absent for the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// A front-end is connected, or it is the host.
    pub connected: bool,
    /// Pairs of queues that its guest may use; 0 for the host.
    pub pairs: u16,
    /// Pairs whose receive queue is served now.
    pub pairs_started: u16,
    /// What it sent.
    pub sent: DirectionStats,
    /// What it got.
    pub got: DirectionStats,
    /// Moves of flows between its queues that were asked for.
    pub moves: u64,
    /// How it waits when it has nothing to send; absent for the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<PollStats>,
    /// Each pair that was ever served.
    #[serde(default)]
    pub each_queue: Vec<PairStats>,
    /// The flows of which it sends most of late.
    #[serde(default)]
    pub flows: Vec<FlowStats>,
}

/// One pair of queues of a NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairStats {
    /// Which, from 0 on.
    pub index: u16,
    /// It is served now.
    pub served: bool,
    /// Reactor that serves it, or served it last.
    pub reactor: u32,
    /// What its guest sent by it.
    pub sent: DirectionStats,
    /// What its guest got by it. What was lost on the way to its reactor is counted by the NIC only.
    pub got: DirectionStats,
    /// From when a frame was taken of its sender's ring to when it was in this one.
    pub residence: Latency,
    /// Sum of those times.
    pub residence_seconds: f64,
    /// Times that the cap held it.
    pub held: u64,
    /// For how long it was held, up to now.
    pub held_seconds: f64,
    /// The cap holds it now.
    pub held_now: bool,
    /// Frames for which its guest had posted too few buffers when they came, and which waited.
    #[serde(default)]
    pub waited: u64,
    /// Those that wait now.
    #[serde(default)]
    pub waiting: u64,
    /// How it waits when its guest sends nothing.
    pub polling: QueuePolling,
}

/// Frames one way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionStats {
    /// Frames; of those sent also what went nowhere.
    pub frames: u64,
    /// Their bytes, without virtio-net headers.
    pub bytes: u64,
    /// By reason: frames that were lost.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
    /// Frames by size, where they are counted: of up to so many bytes and no smaller one, and of all
    /// larger ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<SizeCount>,
}

impl DirectionStats {
    /// Frames that were lost, for whatever reason.
    pub fn lost(&self) -> u64 {
        self.drops.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Frames that were lost for this reason.
    pub fn lost_for(&self, reason: &str) -> u64 {
        self.drops.get(reason).copied().unwrap_or(0)
    }
}

/// Frames of about the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeCount {
    /// Bytes of the largest of them; absent: there is no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u64>,
    /// How many.
    pub frames: u64,
}

/// A flow that is large of late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowStats {
    /// Source and destination, with ports if it has any: `10.0.0.1:4000`, `[fe80::1]:4000`.
    pub from: String,
    /// See `from`.
    pub to: String,
    /// `tcp`, `udp`, or the number of the protocol.
    pub protocol: String,
    /// The NIC that it goes to; absent if it goes to several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Its part of all that its NIC sends in flows of late: 0 to 1.
    pub share: f64,
    /// About what it sent in the last seven seconds, in bytes.
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

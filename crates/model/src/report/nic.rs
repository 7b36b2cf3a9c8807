//! Reports of NICs and their networks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::nic::{MacAddress, NicRate};

/// Report of a NIC. Counts start at attach, or when its process began to serve it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicStats {
    /// Id of the NIC.
    pub id: String,
    /// Name of its network.
    pub network: String,
    /// Path of its socket.
    pub socket: String,
    /// Address that its driver reads.
    pub mac: MacAddress,
    /// Number of queue pairs offered.
    pub queues: u16,
    /// Its only VLAN, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Whether an address lock limits the addresses that it sends from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub locked: bool,
    /// Whether it may neither send nor receive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Limit of sent bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<NicRate>,
    /// Limit of flooded frames a second, if set; 0 for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flood: Option<u32>,
    /// Whether a front-end is connected.
    pub connected: bool,
    /// Reason why a new worker could not take the NIC over: cause and remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Frames that it sent and received.
    #[serde(flatten)]
    pub frames: FrameCounts,
}

/// Frames that a port sent and received. Byte counts exclude virtio-net headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameCounts {
    /// Frames sent, including those that the switch dropped.
    #[serde(alias = "sent_frames")]
    pub tx_frames: u64,
    /// Bytes of the frames sent.
    #[serde(alias = "sent_bytes")]
    pub tx_bytes: u64,
    /// Frames received.
    #[serde(alias = "got_frames")]
    pub rx_frames: u64,
    /// Bytes of the frames received.
    #[serde(alias = "got_bytes")]
    pub rx_bytes: u64,
    /// Sent frames that were dropped, by reason; only reasons that occurred.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[serde(alias = "refused_frames")]
    pub tx_dropped: BTreeMap<String, u64>,
    /// Frames for this port that were dropped, by reason; only reasons that occurred.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[serde(alias = "missed_frames")]
    pub rx_dropped: BTreeMap<String, u64>,
}

/// Report of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStats {
    /// Name of the network.
    pub name: String,
    /// Maximum bytes of a packet.
    pub mtu: u16,
    /// Number of NICs in it.
    pub nics: u64,
    /// The host's uplink, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkStats>,
}

/// The host's uplink of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkStats {
    /// Name of its TAP device.
    pub tap: String,
    /// Reason why the uplink was closed, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Frames that the host sent and received there.
    #[serde(flatten)]
    pub frames: FrameCounts,
}

//! NICs, and the networks that they are in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::nic::{MacAddress, NicRate};

/// One NIC. Counts since attach, or since its process has begun to serve it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicStats {
    /// Its id.
    pub id: String,
    /// Its network.
    pub network: String,
    /// Its socket.
    pub socket: String,
    /// Address that its driver is told.
    pub mac: MacAddress,
    /// Pairs of queues offered.
    pub queues: u16,
    /// Its only VLAN, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// It may send only as the addresses that it was given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub locked: bool,
    /// It may neither send nor get anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// How much it may send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<NicRate>,
    /// Frames a second that it may send to many, where that is set; 0 for as many as it likes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flood: Option<u32>,
    /// A front-end is connected.
    pub connected: bool,
    /// Why it is not served, when a new worker could not take it over: cause and next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Frames that it sent and got.
    #[serde(flatten)]
    pub frames: FrameCounts,
}

/// What a port has sent and got. Bytes are those of frames, without virtio-net headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameCounts {
    /// Frames that it sent, also those that were refused.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that it got.
    pub got_frames: u64,
    /// Their bytes.
    pub got_bytes: u64,
    /// Frames that it sent and that went nowhere, by reason; only reasons that there were.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_frames: BTreeMap<String, u64>,
    /// Frames for it that did not reach it, by reason; only reasons that there were.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missed_frames: BTreeMap<String, u64>,
}

/// One network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStats {
    /// Its name.
    pub name: String,
    /// Most bytes of a packet.
    pub mtu: u16,
    /// NICs in it.
    pub nics: u64,
    /// The host in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkStats>,
}

/// The host in a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkStats {
    /// Its TAP device.
    pub tap: String,
    /// Why the host is not in the network any more, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Frames that the host sent and got there.
    #[serde(flatten)]
    pub frames: FrameCounts,
}

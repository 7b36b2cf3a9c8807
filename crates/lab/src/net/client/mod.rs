//! Raw client: frames go from one NIC to another in a closed loop, with as many in flight as there
//! are buffers. It covers what DPDK's testpmd cannot do: 64 KiB frames that need segmentation, few
//! frames in flight, counts for each of several receive queues, and one request at a time.
//!
//! One thread serves all NICs of a client. It polls their rings all the time and touches no data,
//! so only the switch moves frames.

mod frame;
mod host;
mod inlets;
mod lane;
mod nic;
mod ping;
mod ring;

pub(in crate::net) use frame::{FULL, LARGEST, tcp};
pub(in crate::net) use host::{HostLane, write};
pub(in crate::net) use lane::{FramePath, Lane, Ran, Shape, run};
pub(in crate::net) use nic::with_header;
pub(crate) use ping::{PingPair, Waits};

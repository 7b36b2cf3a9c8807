//! A raw client: frames that go from one NIC to another in a closed loop, as many on their way as there
//! are buffers, and no more. It does what DPDK's testpmd cannot: frames of 64 KiB that are to be cut,
//! few of them on their way, several receive queues of which each is counted, one request at a time.
//!
//! All NICs of a client are served by one thread, which looks at their rings all the time and touches no
//! data: what moves a frame is the switch alone.

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
pub(in crate::net) use nic::{Nic, QUEUE_SIZE, Spec, with_header};
pub(in crate::net) use ping::{Waits, ping};

//! virtio-net semantics and the decisions of the switch.
//!
//! # Words
//! - [`Frame`](frame::Frame): what a frame's first bytes say, parsed once from a private copy.
//! - [`ForwardingEntry`](switch::ForwardingEntry): a cached decision about frames between two
//!   stations.
//! - [`Header`](header::Header): offloads that a sender leaves undone (checksum, segmentation),
//!   checked against the frame.
//! - **Port**: where frames enter and leave; **network**: ports that exchange frames; **VLAN**: a
//!   part of a network.
//! - **Station**: the owner of a MAC address. The MAC table of a network knows its port.
//! - **Command**: a driver's request on the control queue ([`control`]).
//! - **Flow**, **bucket**, **indirection table**: how frames spread over a receiver's queues
//!   ([`flow`]).
//!
//! # Model
//! ```text
//! descriptors --one copy--> Frame::parse -> Header::parse -> Switch::lookup, else Switch::decide
//! for each port: Switch::tagging, Header::finish_for, checksum or segments, QueueSelector::pick
//! ```
//! All of this is pure: bytes, counters and times come in, decisions go out. This crate knows no
//! ring, no socket and no clock.
//!
//! # Design
//! **Decisions are cached for 10 ms.** Between two stations the answer stays the same until
//! something changes. Most frames then cost one comparison. Locked ports are not cached: each of
//! their frames is checked.
//!
//! **IP is parsed on demand only:** for a lock, an offload, a receiver with several queues, and one
//! frame of sixteen for the names of flows.
//!
//! **A switch is one reactor's view.** Each reactor has ports, networks and stations of its own, so
//! a frame is decided without a lock. What one learns it tells the others, at most once a second
//! for each station. Only rate limits are shared, one atomic word each.
//!
//! **The sender's reactor balances.** A flow comes in on one queue of its sender, and so on one
//! reactor. That reactor can move the flow's bucket to another queue by itself, once nothing it has
//! sent is on its way. If a guest itself changes the queue by which it sends a flow, it reorders
//! the flow, as with any multi-queue NIC. Linux does so for TCP only when nothing is on its way
//! (`ooo_okay`).
//!
//! - Uneven queues are mended step by step. Only when that leads nowhere are the eight hottest
//!   buckets dealt anew, because each move costs a guest's CPU its warm cache.
//! - A receiver has no central balancer. Each reactor that sends to it decides about its own
//!   buckets, over what the others report that they send to each queue, after their moves. One
//!   balancer for all would need a lock or a home, and a home without frames would never run.
//!
//! **A locked port follows XenServer's rules, and a few more.** A guest may request an address by
//! DHCP for itself only. Content behind headers, fragments or tags that are not parsed is refused.
//! So is a checksum that a later hop would complete over what was checked ([`port`]).
//!
//! # Errors
//! A frame that is not passed on has a [`Reason`], and each reason has a counter.
//!
//! # Invariants
//! - A guest's bytes are parsed in a private copy only, so a receiver gets what was decided on.
//! - No input makes this crate panic, loop or point outside of a frame.
//! - No allocation and no lock per frame: tables have their size from the start.
//! - A move of a bucket never reorders frames of a flow.
//!
//! # How to test
//! Parsers get random and mutated bytes, tables and sets are compared with naive ones, and the
//! balancer with the best possible split.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bytes;
pub mod checksum;
pub mod config;
pub mod control;
mod drop_reason;
pub mod features;
pub mod flow;
pub mod frame;
pub mod header;
mod mac;
pub mod port;
pub mod segment;
pub mod switch;
pub mod table;
#[cfg(test)]
mod test_frames;

pub use drop_reason::{Drops, Reason};
pub use mac::Mac;

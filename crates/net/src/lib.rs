//! virtio-net semantics and the decisions of the switch.
//!
//! # Words
//! - [`Frame`](frame::Frame): what a frame's first bytes say, parsed once from a private copy.
//! - [`ForwardingEntry`](switch::ForwardingEntry): where frames between two stations went just now.
//! - [`Header`](header::Header): what a sender leaves to be done (checksum, segmentation), checked
//!   against the frame.
//! - **Port**: where frames come in and go out; **network**: ports that frames go between;
//!   **VLAN**: a part of a network.
//! - **Station**: whoever has an address of its own; the table of a network knows at which port.
//! - **Command**: what a driver asks its interface to be over the control queue; see [`control`].
//! - **Flow**, **bucket**, **steering**: how frames are spread over a receiver's queues; what that
//!   means exactly stands at the top of [`flow`].
//!
//! # Model
//! ```text
//! descriptors --one copy--> Frame::parse -> Header::parse -> Switch::way, else Switch::decide -> to ports
//! for each port: Switch::tagging, Header::finish_for, checksum or Segments, Steering::pick
//! ```
//! All of this is pure: bytes, counters and times come in, decisions go out. Nothing here knows a
//! ring, a socket or a clock.
//!
//! # Errors
//! A frame that is not passed on has a [`Reason`], and each reason has a counter.
//!
//! # Invariants
//! - A guest's bytes are looked at in a private copy only, so what was decided on is what a
//!   receiver gets.
//! - No input makes anything here panic, loop or point outside of a frame.
//! - No allocation and no lock in what is done for each frame: tables have their size from the
//!   start.
//! - Frames of a flow are never reordered by a move of their bucket.
//!
//! # How to test
//! Parsers get random and mutated bytes, tables and sets are compared with naive ones, and the
//! balancer with what the best possible split would be.
#![forbid(unsafe_code)]

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

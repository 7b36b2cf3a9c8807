//! virtio-blk semantics: parse, submit, complete.
//!
//! # Words
//! - [`BlkDevice`]: one disk as a guest sees it: features, configuration space, counters.
//! - [`RunningQueue`]: one ring being served on a reactor; stopping it drains it.
//! - **Zombie**: a queue that was given up because its storage does not answer: it touches neither
//!   its ring nor its guest any more, and lives until the kernel has let go of its memory.
//! - [`Stage`]: a part of a request's way that is measured; what that means exactly stands at the
//!   top of `insight`.
//! - [`Caps`]: what a guest may do with its disk in a second; what that means exactly stands at the
//!   top of `caps`.
//!
//! # Model
//! ```text
//! Queue::pop -> parse -> Geometry::check -> Channel::submit --Done--> complete
//!                                                 \--Pending--> Channel::reap -> complete
//! complete: status byte, Queue::push; once per batch: Queue::publish, call
//! ```
//! A [`disk::Channel`] per queue does the I/O; this crate knows no file and no format.
//!
//! # Errors
//! A request that cannot be served ends in a status byte (virtio 1.2, 5.2.6.1). A chain without
//! a status byte is returned empty and counted. A ring that breaks the rules is told to the
//! front-end through its error descriptor, logged once, and left alone.
//!
//! # Invariants
//! - Guest bytes become a `parse::Parsed` once; nothing later looks at them again.
//! - Sectors become bytes by checked multiplication; ranges are checked before the disk sees them.
//! - No allocation, no lock and no shared write on the request path in steady state; clocks are
//!   read once per batch and stage.
//!
//! # How to test
//! `virtq::driver` plays the guest against a device on a real reactor.
#![forbid(unsafe_code)]

mod config;
mod device;
mod drain;
mod latency;
mod parse;
mod queue;
mod spec;
#[cfg(feature = "stages")]
pub mod stages;
mod stats;
mod throttle;
mod throttled_request;

pub use device::{BlkDevice, DeviceOptions, FaultHandler, QueueError, RunningQueue};
pub use drain::{AbandonedQueue, DrainOutcome, DrainingQueue, QuiesceOutcome};
pub use latency::{Class, Oldest, Op, SlowRequest, Stage};
/// Now in nanoseconds, on the clock that records and ages use.
pub use reactor::clock_ns;
pub use reactor::{Histogram, Snapshot, Summary};
pub use spec::feature;
pub use stats::{Counts, DeviceStats, QueueState, QueueStats};
pub use throttle::{BURST_SECONDS_MAX, BYTES_MAX, Cap, Caps, REQUESTS_MAX, TokenBalance};

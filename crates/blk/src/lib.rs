//! virtio-blk semantics: parse, submit, complete.
//!
//! # Words
//! - [`BlkDevice`]: one disk as a guest sees it: features, configuration space, counters.
//! - [`RunningQueue`]: one ring being served on a reactor; a stop drains it.
//! - [`AbandonedQueue`]: a queue whose storage does not answer. It touches neither its ring nor its
//!   guest, and lives until the kernel has released its memory.
//! - [`Stage`]: a measured part of a request's time; `latency` defines each.
//! - [`Caps`]: limits on a guest's requests and bytes per second; `throttle` enforces them.
//!
//! # Model
//! ```text
//! Queue::pop -> parse, Geometry::check -> throttle -> Channel::submit --Done--> complete
//!                                                          \--Pending--> Channel::reap -> complete
//! complete: status byte, Queue::push; per batch or step: Queue::publish, call
//! ```
//! A [`disk::Channel`] per queue does the I/O; this crate knows no file and no format.
//!
//! # Design
//! **Caps delay requests in arrival order.** A disk's caps (requests and bytes per second, with
//! bursts) hold over all its queues and reactors. Tokens are numbered. A request takes the next
//! numbers of the disk's bucket, one atomic word, and waits until the first of them exists. That is
//! a queue of all waiting requests in arrival order, without a lock and without one waiter having
//! to wake another.
//!
//! - A request waits for its first token only. So a request larger than the bucket passes, and
//!   those after it pay.
//! - Numbers stay taken when caps change; only their time moves. So caps may change at any moment
//!   without giving anything away or charging it twice.
//! - Arithmetic is exact, in billionths of a token, and numbers wrap. No sequence of accepted caps
//!   (at most 2^32 requests and 1 TiB per second) leaves a bucket stuck.
//! - Each queue holds one popped request and leaves the others in the guest's ring, where a stop
//!   has nothing to drain. On a stop the waiting request is submitted early, and its cost becomes
//!   token debt ([`TokenBalance`]).
//! - A queue without caps checks one word a turn. Flushes are never delayed. Discards and zeroes
//!   count as requests. I/O of NBD clients is not the guest's and is not capped.
//! - After a crash the new worker does not know what was used, and begins with nothing saved up.
//!
//! **Times are recorded after the driver can see the request.** Recording happens once a turn, for
//! groups of requests that share their times; a single request costs a few counters. A queue that
//! is polled under load has turns of microseconds. After such a short turn the next three are only
//! counted, and take the times of a measured turn (`latency::sampler`). A longer turn is always
//! measured, so nothing slow is missed.
//!
//! **A stop waits for storage until a deadline, and no longer** (`stop_deadline_ms`, 30 s). Nothing
//! can take back what the kernel has. So an abandoned queue stays on its reactor, costs nothing,
//! and keeps memory, image and lock until the kernel ends its requests. The crate `iod` decides
//! what the front-end hears. Direct I/O that the kernel already has may still reach the guest's
//! memory. The queue itself copies nothing there any more and begins no further piece of a request.
//!
//! # Errors
//! A request that cannot be served ends in a status byte (virtio 1.2, 5.2.6.1). A chain without a
//! status byte is returned empty and counted. A ring that breaks the rules is reported to the
//! front-end through its error descriptor, logged once, and left alone.
//!
//! # Invariants
//! - Guest bytes become a `parse::Parsed` once; no later code reads them again.
//! - Sectors become bytes by checked multiplication; ranges are checked before the disk sees them.
//! - No allocation, no lock and no shared write on the request path in steady state; clocks are
//!   read once per batch and stage.
//!
//! # How to test
//! `virtq::driver` plays the guest against a device on a real reactor.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

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
mod storage_errors;
mod throttle;
mod throttled_request;

pub use device::{BlkDevice, DeviceOptions, FaultHandler, QueueError, RunningQueue, TrialHandle};
pub use drain::{AbandonedQueue, DrainOutcome, DrainingQueue, QuiesceOutcome};
pub use latency::{Class, Oldest, Op, SlowRequest, Stage};
pub use queue::TrialStart;
/// Now in nanoseconds, on the clock that records and ages use.
pub use reactor::clock_ns;
pub use reactor::{Histogram, Snapshot, Summary};
pub use spec::feature;
pub use stats::{Counts, DeviceStats, QueueState, QueueStats};
pub use storage_errors::StorageErrors;
pub use throttle::{BURST_SECONDS_MAX, BYTES_MAX, Cap, Caps, REQUESTS_MAX, TokenBalance};

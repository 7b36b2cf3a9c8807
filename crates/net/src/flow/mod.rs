//! Which receive queue a frame goes to.
//!
//! # Words
//! - **Flow**: frames between the same two ends, as [`Toeplitz::of`] sees them; their order is
//!   kept.
//! - **Bucket**: one of [`BUCKETS`] groups of flows, by the low bits of their hash. Buckets, and
//!   not flows, have a queue, so what is kept for a receiver is bounded.
//! - **Steering**: the queue of each bucket, as one sender's reactor knows it.
//!
//! # Model
//! ```text
//! Frame -> Toeplitz::of -> Steering::pick -> queue        (per frame)
//! counters of all Steerings -> Balancer::tick -> moves -> Steering::want   (now and then)
//! ```
//! A flow has one sender and so one reactor that picks for it. Each reactor therefore carries out a
//! move by itself, as soon as nothing of the bucket that it has sent is on its way.

mod balance;
mod steering;
mod toeplitz;

pub use balance::{Balancer, INTERVAL_NS, Load, MOVES_MAX, Move, Moves};
pub use steering::{Bucket, PATIENCE_NS, QUEUES_MAX, QUIET_NS, Steering};
pub use toeplitz::{KEY_BYTES, MICROSOFT_KEY, Toeplitz};

/// Buckets of a receiver, as a receive-side scaling table has them at least (virtio 1.2, 5.1.4.1).
pub const BUCKETS: usize = 128;

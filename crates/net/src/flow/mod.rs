//! Which receive queue a frame goes to.
//!
//! # Words
//! - **Flow**: frames between the same two ends, as [`Toeplitz::of`] sees them; their order is
//!   kept.
//! - **Bucket**: one of [`BUCKETS`] groups of flows, by the low bits of their hash. Buckets, and
//!   not flows, have a queue, so what is kept for a receiver is bounded.
//! - **Steering**: the queue of each bucket, as one sender's reactor knows it.
//! - **Share**: what one reactor sends to each queue of a receiver, told to the other reactors.
//! - **Top flows**: those of which most is sent, as far as few places tell ([`TopFlows`]).
//!
//! # Model
//! ```text
//! Frame -> Memo::of (Toeplitz::of) -> Spread::pick (Steering::pick) -> queue        (per frame)
//! own counters, others' shares -> Balancer::tick -> moves -> Steering::want   (now and then)
//! ```
//! A flow has one sender and so one reactor that picks for it. Each reactor therefore decides about
//! moves and carries them out by itself, as soon as nothing of the bucket that it has sent is on its
//! way. So that two of them do not choose the same queue, each tells what it sends where, as it is to
//! be after its moves ([`QueueLoads`]), and takes what others tell for given.

mod balance;
mod hash_cache;
mod indirection;
mod queue_loads;
mod queue_selector;
mod toeplitz;
mod top;

pub use balance::{Balancer, INTERVAL_NS, Load, MOVES_MAX, Move, Moves};
pub use hash_cache::FlowHashCache;
pub use indirection::{Bucket, IndirectionTable, PATIENCE_NS, QUEUES_MAX, QUIET_NS};
pub use queue_loads::QueueLoads;
pub use queue_selector::{QueueSelector, WORTH};
pub use toeplitz::{KEY_BYTES, MICROSOFT_KEY, Toeplitz};
pub use top::{FLOWS, FlowKey, HALF_LIFE_NS, TopFlow, TopFlows};

/// Buckets of a receiver, as a receive-side scaling table has them at least (virtio 1.2, 5.1.4.1).
pub const BUCKETS: usize = 128;

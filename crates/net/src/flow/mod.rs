//! Selection of the receive queue for a frame.
//!
//! # Words
//! - **Flow**: frames between the same two endpoints, as [`Toeplitz::of`] defines them. The order
//!   of a flow's frames is preserved.
//! - **Bucket**: one of [`BUCKETS`] groups of flows, by the low bits of their hash. Buckets, not
//!   flows, are assigned to queues, so the state for a receiver is bounded.
//! - **Indirection table**: the queue of each bucket, as one sender's reactor knows it.
//! - **Queue loads**: the load that one reactor sends to each queue of a receiver, published to the
//!   other reactors.
//! - **Top flows**: the flows that send most, as far as a few entries can show ([`TopFlows`]).
//!
//! # Model
//! ```text
//! Frame -> FlowHashCache::of -> QueueSelector::pick (IndirectionTable::pick) -> queue  (per frame)
//! own counters, QueueLoads of others -> Balancer::tick -> moves -> IndirectionTable::want
//!                                                                        (every INTERVAL_NS)
//! ```
//! A flow has one sender and so one reactor that selects its queue. Each reactor therefore decides
//! about moves and carries them out by itself, as soon as no frame of the bucket is in flight. To
//! keep two reactors from choosing the same queue, each publishes its load by queue as it will be
//! after its moves ([`QueueLoads`]). Each reactor takes the published loads of the others as given.

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

/// Buckets of a receiver: the smallest size of a receive-side scaling table (virtio 1.2, 5.1.4.1).
pub const BUCKETS: usize = 128;

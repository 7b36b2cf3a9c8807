//! Device side of the split virtqueue over guest memory.
//!
//! # Words
//! - **Ring** or **queue**: descriptor table, available ring and used ring (virtio 1.2, 2.7).
//! - [`Chain`]: the buffers of one request, popped from the available ring. It is owned, and it
//!   must be completed: [`Queue::push`] takes it by value, so it cannot be completed twice.
//! - [`SingleBuffer`]: a request of one descriptor, popped by [`Queue::pop_many`] where what a chain is made of
//!   would be most of the work.
//! - **Kick**: the driver tells the device that there is work. **Call**: the reverse.
//! - **Suppress** and **arm**: switch kicks off while a queue is served, and on before sleeping.
//!
//! # Model
//! One thread owns a [`Queue`]. It pops until the ring is empty, pushes what is done, and
//! [`Queue::publish`]es a batch: one store of the used index and one decision to call. Before it
//! sleeps it [`Queue::arm`]s, which looks at the ring once more after a full fence, so that no
//! request is lost between the last look and the sleep.
//!
//! A front-end that keeps an [`InflightRegion`] lets a ring go on after the death of whoever
//! served it: what was popped and not completed is popped again, first and in the same order. The
//! order of stores, and why each of them may be the last, is told at the top of `inflight`. A ring
//! without a region pays one comparison a request for that.
//!
//! # Errors and invariants
//! What a driver writes is read once into private memory and checked there. A ring that breaks
//! the rules ([`RingError`]) fails for good: from then on it yields nothing and changes nothing
//! until it is started anew. No descriptor, index or length can make this crate panic, loop or
//! touch memory outside the table.
//!
//! # How to test
//! Feature `driver` has the driver's side (`driver::Driver`). `virtio-queue` is the oracle: both
//! walk the same random rings. In this crate's own tests a life can end behind each store to
//! memory that outlives it (`crash`), in serving and in recovery; `inflight::lives` does so for
//! random requests, and compares with what must be. `doorbell` has every step by which the two sides
//! wake each other; its tests walk through all their orders under `loom`.
#![allow(unsafe_code)] // Ring fields are shared with the guest and reached by raw pointers.

mod chain;
mod crash;
mod doorbell;
#[cfg(any(test, feature = "driver"))]
pub mod driver;
mod error;
mod inflight;
mod queue;
mod ring;
mod single_buffer;
#[cfg(test)]
mod tests;
mod used_event;

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use chain::{Chain, MAX_CHAIN};
pub use error::RingError;
pub use inflight::{Inflight, InflightError, InflightRegion, MAX_INFLIGHT_QUEUES};
pub use queue::Queue;
pub use single_buffer::{Popped, SingleBuffer};
pub use used_event::UsedEventTracker;

/// Most entries a split ring may have (virtio 1.2, 2.7: 32768).
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// Where a ring is and where it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Entries: a power of two, at most [`MAX_QUEUE_SIZE`].
    pub size: u16,
    /// Guest physical address of the descriptor table.
    pub desc: u64,
    /// Guest physical address of the available ring.
    pub avail: u64,
    /// Guest physical address of the used ring.
    pub used: u64,
    /// Available index to serve next.
    pub next_avail: u16,
    /// VIRTIO_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
}

/// A ring that a front-end wants served, with everything that it takes. A clone shares the
/// descriptors: they are closed with the last of them.
#[derive(Clone, Debug)]
pub struct QueueStart {
    /// Number of the queue within the device.
    pub index: u16,
    /// The ring.
    pub ring: QueueConfig,
    /// The guest's memory.
    pub table: Arc<memory::Table>,
    /// Eventfd that the guest kicks; `None`: the guest never kicks, the ring must be polled.
    pub kick: Option<Arc<OwnedFd>>,
    /// Eventfd, pipe or socket that calls the guest, non-blocking; `None`: the guest polls.
    pub call: Option<Arc<OwnedFd>>,
    /// Eventfd that tells the front-end of a broken ring.
    pub err: Option<Arc<OwnedFd>>,
    /// Negotiated virtio features.
    pub features: u64,
    /// Where the ring's requests in flight are recorded, so that a successor finds them.
    pub inflight: Option<Inflight>,
}

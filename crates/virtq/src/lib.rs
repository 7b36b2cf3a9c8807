//! Device side of the split virtqueue over guest memory.
//!
//! # Words
//! - **Ring** or **queue**: descriptor table, available ring and used ring (virtio 1.2, 2.7).
//! - [`Chain`]: the buffers of one request, popped from the available ring. A chain is owned and
//!   must be completed: [`Queue::push`] takes it by value, so no chain completes twice.
//! - [`SingleBuffer`]: a request of one descriptor. [`Queue::pop_many`] returns it where the lists
//!   of a chain would cost more than the request.
//! - **Kick**: the driver notifies the device. **Call**: the device notifies the driver.
//! - **Suppress** and **arm**: switch kicks off while a queue is served, and on before a sleep.
//!
//! # Model
//! One thread owns a [`Queue`]. It pops until the ring is empty and pushes what is done.
//! [`Queue::publish`] shows a batch to the driver: one store of the used index, one decision to
//! call. Before the thread sleeps, [`Queue::arm`] enables kicks and checks the ring once more after
//! a full fence. So no request is lost between the last check and the sleep.
//!
//! The front-end may keep an [`InflightRegion`]. Then the ring goes on after its server dies:
//! chains that were popped and not completed are popped again, first and in the same order. The top
//! of `inflight` gives the order of stores and explains why each of them may be the last. A ring
//! without a region pays one comparison a request for this.
//!
//! # Design
//! **No wake-up is lost.** Driver and device announce that they check the ring or are about to
//! sleep. The module `doorbell` holds all loads, stores and fences for this. It is generic over the
//! memory. Its tests walk through all orders of these steps under `loom`.
//!
//! **Rings that complete in order need no region.** The used index tells everything
//! ([`Queue::in_order`]): chains that were popped and not used are popped again. NICs use this.
//!
//! **The device fetches ahead.** The driver has just written descriptors and buffers, so they are
//! in the cache of another CPU. While one request is served, the queue prefetches those of the next
//! ones. The prefetch decides nothing: each value is read again, and checked, when it is due.
//!
//! # Errors and invariants
//! What a driver writes is read once into private memory and checked there. A ring that breaks the
//! rules ([`RingError`]) fails for good: it yields nothing and changes nothing until it is started
//! anew. [`BrokenRingRecord`] keeps the first cause for reports. No descriptor, index or length makes
//! this crate panic, loop or touch memory outside the table.
//!
//! A buffer outside memory breaks no rule: the front-end may not share a DIMM that was added later.
//! The chain then has [`Chain::outside`], and the device fails it. A disk's request is the
//! exception if its last writable byte is outside, too. Its driver would take a completion for an
//! answer and read a status byte that the device has not written (virtio 1.2, 5.2.6: the status
//! tells the outcome, the used length does not). So the ring stops, as for an indirect table outside
//! memory, of which nobody knows the status byte.
//!
//! # How to test
//! Feature `driver` has the driver's side (`driver::Driver`). `virtio-queue` is the oracle: both
//! walk the same random rings. In this crate's tests a process can end behind each store to memory
//! that outlives it (`crash`), in serving and in recovery. `inflight` does so for random requests
//! and compares with a model.
#![allow(unsafe_code)] // Ring fields are shared with the guest and reached by raw pointers.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod broken_ring;
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
mod suspects;
#[cfg(test)]
mod tests;
mod used_event;

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use broken_ring::{BrokenRing, BrokenRingRecord};
pub use chain::{Chain, MAX_CHAIN};
pub use error::RingError;
pub use inflight::{Inflight, InflightError, InflightRegion, MAX_INFLIGHT_QUEUES, Suspect};
pub use queue::Queue;
pub use single_buffer::{Popped, SingleBuffer};
pub use used_event::UsedEventTracker;

/// Most entries of a split ring (virtio 1.2, 2.7: 32768).
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// Location of a ring in guest memory, and the entry to continue with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Number of entries: a power of two, at most [`MAX_QUEUE_SIZE`].
    pub size: u16,
    /// Guest physical address of the descriptor table.
    pub desc: u64,
    /// Guest physical address of the available ring.
    pub avail: u64,
    /// Guest physical address of the used ring.
    pub used: u64,
    /// Available index to serve next.
    pub next_avail: u16,
    /// True if VIRTIO_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
}

/// Parameters with which a front-end starts a ring. Clones share the descriptors, which close with
/// the last clone.
#[derive(Clone, Debug)]
pub struct QueueStart {
    /// Index of the queue within the device.
    pub index: u16,
    /// Location of the ring.
    pub ring: QueueConfig,
    /// Guest memory.
    pub table: Arc<memory::Table>,
    /// Eventfd that the guest kicks. `None`: the guest never kicks, and the device must poll the
    /// ring.
    pub kick: Option<Arc<OwnedFd>>,
    /// Non-blocking eventfd, pipe or socket that calls the guest. `None`: the guest polls.
    pub call: Option<Arc<OwnedFd>>,
    /// Eventfd that notifies the front-end of a broken ring.
    pub err: Option<Arc<OwnedFd>>,
    /// Negotiated virtio features.
    pub features: u64,
    /// Part of the in-flight region that records the ring's requests for a successor.
    pub inflight: Option<Inflight>,
}

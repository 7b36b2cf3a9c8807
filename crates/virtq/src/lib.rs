//! Device side of the split virtqueue over guest memory.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

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

/// Most entries a split ring may have (virtio 1.2, 2.7: 32768).
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// A ring that a front-end wants served, with everything that it takes.
#[derive(Debug)]
pub struct QueueStart {
    /// Number of the queue within the device.
    pub index: u16,
    /// The ring.
    pub ring: QueueConfig,
    /// The guest's memory.
    pub table: Arc<memory::Table>,
    /// Eventfd that the guest kicks; `None`: the guest never kicks, the ring must be polled.
    pub kick: Option<OwnedFd>,
    /// Eventfd or pipe that calls the guest, non-blocking; `None`: the guest polls.
    pub call: Option<OwnedFd>,
    /// Eventfd that tells the front-end of a broken ring.
    pub err: Option<OwnedFd>,
    /// Negotiated virtio features.
    pub features: u64,
}

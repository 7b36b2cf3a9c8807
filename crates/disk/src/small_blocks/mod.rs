//! Disk whose blocks are smaller than the blocks of its storage.
//!
//! ```text
//!          head |        middle         | tail      bytes of one request
//!   |-----######|###########|###########|####-----|  blocks of the storage
//!    merged      passed to the storage   merged
//! ```
//! The middle goes to the storage as it is. A head or tail is **merged**: the covering blocks are
//! read into a bounce buffer, changed there, and written back. A short request is merged as a whole.
//! Discards are rounded inwards.
//!
//! While a block is merged, no other request of any channel may change it. So every request that
//! changes blocks takes all of them at once from a table of the disk ([`ranges`]), and waits there
//! behind earlier requests for the same blocks. What waits holds nothing: no blocks, no buffer and
//! nothing in the kernel. Reads need not wait, because a merge writes the bytes beside the request
//! as they were. A request gives its blocks back when its last operation has ended, even if the
//! queue has abandoned it.

mod channel;
mod notifier;
mod ranges;
#[cfg(test)]
mod tests;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reactor::Context;

use crate::{Channel, Disk, DiskError, Extent, Geometry, IoError};
use channel::SmallBlockChannel;
use ranges::BlockRanges;

/// Disk over storage whose blocks are larger. It serves smaller requests by read-modify-write.
#[derive(Debug)]
pub struct SmallBlocks {
    block_size: u32,
    shared: Arc<Shared>,
}

/// State that the channels share.
#[derive(Debug)]
struct Shared {
    storage: Arc<dyn Disk>,
    ranges: Arc<BlockRanges>,
    /// Number of merges that were written.
    small_writes: AtomicU64,
}

impl SmallBlocks {
    /// Presents `storage` in blocks of `block_size` bytes. The block size of the storage is a
    /// multiple of it and at most 64 KiB.
    pub fn new(storage: Arc<dyn Disk>, block_size: u32) -> Self {
        let (ranges, small_writes) = (Arc::default(), AtomicU64::new(0));
        Self { block_size, shared: Arc::new(Shared { storage, ranges, small_writes }) }
    }

    fn storage(&self) -> &dyn Disk {
        &*self.shared.storage
    }

    fn present(&self, storage: Geometry) -> Geometry {
        Geometry { block_size: self.block_size, ..storage }
    }
}

impl Disk for SmallBlocks {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        Some(Arc::clone(&self.shared.storage))
    }

    fn geometry(&self) -> Geometry {
        self.present(self.storage().geometry())
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        Box::new(SmallBlockChannel::new(Arc::clone(&self.shared), context))
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        self.storage().wait_fence()
    }

    fn activate(&self) -> Result<(), DiskError> {
        self.storage().activate()
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        self.storage().deactivate()
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.storage().sync()
    }

    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError> {
        self.storage().resize(size).map(|geometry| self.present(geometry))
    }

    fn stalled(&self) -> u64 {
        self.storage().stalled()
    }

    fn small_writes(&self) -> u64 {
        self.shared.small_writes.load(Ordering::Relaxed)
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Extent>, IoError> {
        self.storage().extents(offset, len, limit)
    }

    fn zeroes_fast(&self, unmap: bool) -> bool {
        self.storage().zeroes_fast(unmap)
    }
}

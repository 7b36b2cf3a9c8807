//! Growth of the file, of the refcount blocks and of the refcount table.

use std::io;

use super::Qcow2Format;
use super::space::NewTable;
use crate::qcow2::header::MAX_REFCOUNT_TABLE_BYTES;
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> Qcow2Format<F> {
    /// Returns the number of refcount blocks that the table can name.
    fn table_words(&self) -> u64 {
        let on_disk = self.image.header.refcount_table.words();
        let words = |table: &NewTable| table.clusters * self.image.header.cluster_bytes() / 8;
        self.space.table.as_ref().map_or(on_disk, words)
    }

    /// Makes free cluster `cluster` the refcount block `block`.
    pub(super) async fn add_block(&mut self, block: u64, cluster: u64) -> Result<(), ImageError> {
        if block >= self.table_words() {
            return self.grow_table(cluster).await;
        }
        self.reserve_space(cluster).await?;
        self.space.taken.insert(cluster);
        self.space.blocks.insert(block, cluster);
        Ok(())
    }

    /// Chooses a larger refcount table behind everything, with the blocks that count it. No block
    /// counts clusters there, so only choices in memory are not free.
    async fn grow_table(&mut self, from: u64) -> Result<(), ImageError> {
        let (per_block, cluster_bytes) =
            (self.refcounts().per_block(), self.image.header.cluster_bytes());
        let mut first = from.max(self.table_words().saturating_mul(per_block));
        let (mut clusters, mut blocks) = (0, 0);
        loop {
            let end = first + clusters + blocks;
            if let Some(used) = self.space.taken.range(first..end).next_back() {
                (first, clusters, blocks) = (used + 1, 0, 0);
                continue;
            }
            let words = (self.table_words() * 3 / 2).max(end.div_ceil(per_block) + 1);
            let bytes = (words * 8).next_multiple_of(cluster_bytes);
            if bytes > MAX_REFCOUNT_TABLE_BYTES {
                return Err(ImageError::Full);
            }
            // Both grow with the end, so this ends.
            let needed = (bytes / cluster_bytes, end.div_ceil(per_block) - first / per_block);
            if needed == (clusters, blocks) {
                break;
            }
            (clusters, blocks) = needed;
        }
        let end = first + clusters + blocks;
        self.grow_to(end * cluster_bytes).await?;
        if let Some(former) = self.space.table.replace(NewTable { first, clusters }) {
            (former.first..former.first + former.clusters).for_each(|one| self.space.free(one));
        }
        self.space.taken.extend(first..end);
        let numbers = first / per_block..;
        self.space.blocks.extend(numbers.zip(first + clusters..end));
        Ok(())
    }

    /// Makes the file larger by some clusters.
    pub(super) async fn grow(&mut self) -> Result<(), ImageError> {
        let cluster = self.image.header.cluster_bytes();
        let mut step = self.space.growth.step(self.space.len).next_multiple_of(cluster);
        let start = self.space.len.next_multiple_of(cluster);
        loop {
            match self.grow_to(start.saturating_add(step)).await {
                Err(error) if error.is_full() && step > cluster => {
                    step = (step / 2).next_multiple_of(cluster);
                }
                other => return other,
            }
        }
    }

    /// Makes the file at least `len` bytes long, with space for them.
    async fn grow_to(&mut self, len: u64) -> Result<(), ImageError> {
        let file = &self.image.tables.file;
        let from = self.space.len;
        if len <= from {
            return Ok(());
        }
        let bits = self.image.header.cluster_bits;
        let grown = match file.allocate(from, len - from).await {
            // Without reservations, a write finds out that the storage is full.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => file.set_len(len).await,
            Ok(()) => {
                let first = from.div_ceil(self.image.header.cluster_bytes());
                let reserved = &mut self.space.reserved;
                *reserved = if reserved.end == first { reserved.start } else { first }..len >> bits;
                Ok(())
            }
            other => other,
        };
        match grown {
            Ok(()) => self.space.len = len,
            // A block device has one size.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(ImageError::Full);
            }
            Err(error) => return Err(ImageError::io("grow", from)(error)),
        }
        Ok(())
    }

    /// Makes sure that the storage has space for a free cluster, which may be a hole: no later write
    /// to it can find the storage full.
    pub(super) async fn reserve_space(&self, cluster: u64) -> Result<(), ImageError> {
        if self.space.reserved.contains(&cluster) {
            return Ok(());
        }
        let (offset, len) = (self.offset(cluster), self.image.header.cluster_bytes());
        match self.image.tables.file.allocate(offset, len).await {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            other => other.map_err(ImageError::io("reserve space", offset)),
        }
    }
}

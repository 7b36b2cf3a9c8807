//! Free clusters of the file: choice, growth of the file, new refcount blocks and tables.
//!
//! All choices are made in memory. [`Qcow2Format::write_refcounts`] writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::Qcow2Format;
use crate::qcow2::header::MAX_REFCOUNT_TABLE_BYTES;
use crate::qcow2::refcounts::Refcounts;
use crate::qcow2::tables::SLICE_BYTES;
use crate::{ImageError, ImageFile};

/// Bytes by which the file grows, if the storage has so many.
const GROWTH_BYTES: u64 = 64 << 20;

/// Free clusters, and those that are allocated in memory only.
#[derive(Debug)]
pub(super) struct Space {
    /// Next cluster to look at.
    cursor: u64,
    /// Lowest cluster before the cursor that became free. `u64::MAX` if there is none.
    lowest_freed: u64,
    /// Clusters that no new choice may give: allocated but not referenced on disk, or condemned.
    pub(super) taken: BTreeSet<u64>,
    /// Refcount blocks that are not on disk: number and cluster.
    pub(super) blocks: BTreeMap<u64, u64>,
    /// Larger refcount table that is not on disk.
    pub(super) table: Option<NewTable>,
    /// Size of the file in bytes.
    len: u64,
    pub(super) growth_bytes: u64,
}

/// Clusters of a new table.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewTable {
    pub(super) first: u64,
    pub(super) clusters: u64,
}

impl Space {
    /// Of a file of `len` bytes, for a disk of `size` bytes.
    pub(super) fn new(len: u64, size: u64) -> Self {
        Self {
            cursor: 0,
            lowest_freed: u64::MAX,
            taken: BTreeSet::new(),
            blocks: BTreeMap::new(),
            table: None,
            len,
            // A small disk never needs that much.
            growth_bytes: GROWTH_BYTES.min(size),
        }
    }

    /// Makes a cluster free that has no reference.
    pub(super) fn free(&mut self, cluster: u64) {
        self.taken.remove(&cluster);
        if cluster < self.cursor {
            self.lowest_freed = self.lowest_freed.min(cluster);
        }
    }
}

impl<F: ImageFile + Clone> Qcow2Format<F> {
    /// Chooses a free cluster.
    pub(super) async fn choose(&mut self) -> Result<u64, ImageError> {
        loop {
            let Some(cluster) = self.scan().await? else {
                let lowest = std::mem::replace(&mut self.space.lowest_freed, u64::MAX);
                if lowest < self.space.cursor {
                    self.space.cursor = lowest;
                } else {
                    self.grow().await?;
                }
                continue;
            };
            let block = cluster / self.refcounts().per_block();
            if self.has_block(block).await? {
                self.space.cursor = cluster + 1;
                self.space.taken.insert(cluster);
                return Ok(cluster);
            }
            self.add_block(block, cluster).await?;
        }
    }

    /// Makes sure that the refcount of a cluster has a block.
    pub(super) async fn cover(&mut self, cluster: u64) -> Result<(), ImageError> {
        let block = cluster / self.refcounts().per_block();
        while !self.has_block(block).await? {
            let chosen = self.choose().await?;
            // The choice may have made the block.
            if self.has_block(block).await? {
                self.space.free(chosen);
            } else {
                self.add_block(block, chosen).await?;
            }
        }
        Ok(())
    }

    pub(super) fn refcounts(&self) -> Refcounts {
        Refcounts::of(&self.image.header)
    }

    /// Returns whether refcounts of a block can be written.
    async fn has_block(&mut self, block: u64) -> Result<bool, ImageError> {
        let is_new = self.space.blocks.contains_key(&block);
        Ok(is_new || self.image.refcount_block(block).await?.is_some())
    }

    /// Returns the number of refcount blocks that the table can name.
    fn table_words(&self) -> u64 {
        let on_disk = self.image.header.refcount_table.words();
        let words = |table: &NewTable| table.clusters * self.image.header.cluster_bytes() / 8;
        self.space.table.as_ref().map_or(on_disk, words)
    }

    /// Makes free cluster `cluster` the refcount block `block`.
    async fn add_block(&mut self, block: u64, cluster: u64) -> Result<(), ImageError> {
        if block >= self.table_words() {
            return self.grow_table(cluster).await;
        }
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

    /// Returns the first free cluster from the cursor to the end of the file, and moves the cursor
    /// there.
    async fn scan(&mut self) -> Result<Option<u64>, ImageError> {
        let refcounts = self.refcounts();
        let end = self.space.len >> self.image.header.cluster_bits;
        let step = refcounts.per_block().min(refcounts.in_bytes(SLICE_BYTES));
        while self.space.cursor < end {
            let cursor = self.space.cursor;
            let stop = ((cursor / step + 1) * step).min(end);
            let block = self.image.refcount_block(cursor / refcounts.per_block()).await?;
            let taken = &self.space.taken;
            let found = if let Some(block) = block {
                let table = self.image.block_range(block);
                let at = cursor % refcounts.per_block() / step * SLICE_BYTES;
                let (slice, _) = self.image.tables.slice("refcount block", table, at).await?;
                // A slice has at most 32,768 refcounts.
                let is_free = |one: &u64| refcounts.get(slice, (one % step) as usize) == 0;
                (cursor..stop).find(|one| is_free(one) && !taken.contains(one))
            } else {
                (cursor..stop).find(|one| !taken.contains(one))
            };
            self.space.cursor = found.unwrap_or(stop);
            if let Some(cluster) = found {
                self.refuse_table(cluster)?;
                return Ok(Some(cluster));
            }
        }
        Ok(None)
    }

    /// Fails for a cluster of a table that the header names: its refcount is wrong.
    pub(super) fn refuse_table(&self, cluster: u64) -> Result<(), ImageError> {
        let header = &self.image.header;
        let offset = cluster << header.cluster_bits;
        let holds = |table: crate::qcow2::TableRange| {
            (table.offset..table.offset.saturating_add(table.bytes)).contains(&offset)
        };
        if cluster == 0 || holds(header.l1) || holds(header.refcount_table) {
            let problem = "its refcount is too small".into();
            return Err(ImageError::Corrupt { structure: "table", offset, problem });
        }
        Ok(())
    }

    /// Makes the file larger by some clusters.
    async fn grow(&mut self) -> Result<(), ImageError> {
        let cluster = self.image.header.cluster_bytes();
        let mut step = self.space.growth_bytes.next_multiple_of(cluster);
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
        let grown = match file.allocate(from, len - from).await {
            // Without reservations, a write finds out that the storage is full.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => file.set_len(len).await,
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
}

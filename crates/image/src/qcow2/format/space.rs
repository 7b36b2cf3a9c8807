//! Free clusters of the file. They are chosen in memory, and the next round writes their refcounts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::Qcow2Format;
use crate::growth::Growth;
use crate::qcow2::refcounts::Refcounts;
use crate::tables::SLICE_BYTES;
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

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
    pub(super) len: u64,
    /// Clusters that surely have space on the storage.
    pub(super) reserved: Range<u64>,
    pub(super) growth: Growth,
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
            reserved: 0..0,
            growth: Growth::of_disk(size),
        }
    }

    /// Makes a cluster free that has no reference.
    pub(super) fn free(&mut self, cluster: u64) {
        self.taken.remove(&cluster);
        if self.reserved.contains(&cluster) {
            // It may have been punched.
            self.reserved.start = cluster + 1;
        }
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
                self.reserve_space(cluster).await?;
                self.space.cursor = cluster + 1;
                self.space.taken.insert(cluster);
                return Ok(cluster);
            }
            self.add_block(block, cluster).await?;
        }
    }

    /// Chooses `count` clusters in a row. Returns the first one.
    pub(super) async fn choose_run(&mut self, count: u64) -> Result<u64, ImageError> {
        let (mut first, mut found, mut passed) = (0, 0, Vec::new());
        while found < count {
            let cluster = match self.choose().await {
                Ok(cluster) => cluster,
                Err(error) => {
                    passed.extend(first..first + found);
                    passed.into_iter().for_each(|cluster| self.space.free(cluster));
                    return Err(error);
                }
            };
            if found > 0 && cluster == first + found {
                found += 1;
            } else {
                passed.extend(first..first + found);
                (first, found) = (cluster, 1);
            }
        }
        passed.into_iter().for_each(|cluster| self.space.free(cluster));
        Ok(first)
    }

    /// Makes sure that the refcount of a cluster, which the journal names, has a block.
    pub(super) async fn cover(&mut self, cluster: u64) -> Result<(), ImageError> {
        if cluster >= self.space.len >> self.image.header.cluster_bits {
            let offset = cluster.saturating_mul(self.image.header.cluster_bytes());
            let problem = "it names a cluster behind the end of the file".into();
            return Err(ImageError::Corrupt { structure: "journal", offset, problem });
        }
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
                // A slice has at most 524,288 refcounts.
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

    /// Fails for a cluster of the header, the L1 table or the refcount table: a refcount or a
    /// reference is wrong.
    pub(super) fn refuse_table(&self, cluster: u64) -> Result<(), ImageError> {
        let header = &self.image.header;
        let offset = cluster << header.cluster_bits;
        let tables = [header.l1, header.refcount_table];
        let holds = |table: TableRange| {
            (table.offset..table.offset.saturating_add(table.bytes)).contains(&offset)
        };
        if cluster == 0 || tables.into_iter().any(holds) {
            let problem = "a reference or a refcount says that it is something else".into();
            return Err(ImageError::Corrupt { structure: "table", offset, problem });
        }
        Ok(())
    }
}

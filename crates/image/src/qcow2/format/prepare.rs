//! First phase of a round: what its references need and nothing references yet.

use std::collections::{BTreeMap, BTreeSet};

use super::Qcow2Format;
use super::space::NewTable;
use crate::map::Word;
use crate::planted::{Bug, is_planted};
use crate::qcow2::l2::L2Entry;
use crate::tables::SLICE_BYTES;
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

/// Offset of the place and size of the refcount table in the header.
const REFCOUNT_TABLE_OFFSET: u64 = 48;

impl<F: ImageFile + Clone> Qcow2Format<F> {
    pub(super) async fn prepare_round(
        &mut self,
        references: &[(u64, Word)],
    ) -> Result<(), ImageError> {
        self.replacing.clear();
        // Left by a round that failed.
        self.reserved.append(&mut self.prepared);
        let mut counts = BTreeMap::new();
        let changes = self.changes(references).await?;
        for &(granule, word) in &changes {
            self.note_replaced(granule).await?;
            if word.is_data() {
                let cluster = self.cluster_at(word.place());
                if self.space.taken.contains(&cluster) && !is_planted(Bug::NoRefcount) {
                    counts.insert(cluster, 1);
                }
            }
            let index = granule / self.entries_per_table();
            let has_table = self.prepared.contains_key(&index)
                || self.l1_entry(index).await?.is_some_and(|entry| entry.copied);
            if !has_table {
                let cluster = self.new_table(index).await?;
                counts.insert(cluster, 1);
            }
        }
        // New tables are complete before an L1 entry names them.
        let new: BTreeSet<_> = self.prepared.values().map(|one| self.offset(*one)).collect();
        for (table, entries) in self.new_entries(&changes).await? {
            if new.contains(&table) {
                self.patch("L2 table", self.l2_range(table), &entries).await?;
            }
        }
        self.write_new_blocks(counts).await
    }

    /// Returns the references that differ from those on disk.
    pub(super) async fn changes(
        &mut self,
        references: &[(u64, Word)],
    ) -> Result<Vec<(u64, Word)>, ImageError> {
        let mut changes = Vec::new();
        for &(granule, word) in references {
            let on_disk = match self.entry(granule).await? {
                Some(entry) => self.words.word(&entry),
                None => Some(self.words.absent()),
            };
            if on_disk != Some(word) {
                changes.push((granule, word));
            }
        }
        Ok(changes)
    }

    /// Notes the clusters of a shared or mixed granule. The owner knows those of data words.
    async fn note_replaced(&mut self, granule: u64) -> Result<(), ImageError> {
        let Some(entry) = self.entry(granule).await? else { return Ok(()) };
        if self.words.word(&entry).is_some_and(Word::is_data) {
            return Ok(());
        }
        let bits = self.image.header.cluster_bits;
        match entry {
            L2Entry::Cluster(cluster) => {
                self.replacing.extend(cluster.host.map(|host| host >> bits));
            }
            L2Entry::Compressed(compressed) => {
                let last = compressed.offset.saturating_add(compressed.bytes - 1);
                self.replacing.extend(compressed.offset >> bits..=last >> bits);
            }
        }
        Ok(())
    }

    /// Makes an L2 table for an L1 entry that has none, or one that a snapshot uses, too. Returns
    /// its cluster.
    async fn new_table(&mut self, index: u64) -> Result<u64, ImageError> {
        let cluster = match self.reserved.remove(&index) {
            Some(cluster) => cluster,
            None => self.choose().await?,
        };
        // A cluster has at most 2 MiB.
        let mut bytes = vec![0; self.image.header.cluster_bytes() as usize];
        if let Some(former) = self.l1_entry(index).await? {
            self.image.tables.read("L2 table", former.table, &mut bytes).await?;
            self.replacing.push(former.table >> self.image.header.cluster_bits);
        }
        self.image.tables.write(self.offset(cluster), &bytes).await?;
        self.prepared.insert(index, cluster);
        Ok(cluster)
    }

    /// Writes refcounts. If they need new refcount blocks, these are durable before the refcount
    /// table names them, and a larger table before the header names it.
    pub(super) async fn write_new_blocks(
        &mut self,
        mut counts: BTreeMap<u64, u64>,
    ) -> Result<(), ImageError> {
        let blocks = self.space.blocks.clone();
        let table = self.space.table;
        if blocks.is_empty() && table.is_none() {
            return self.write_refcounts(&counts).await;
        }
        let zeroes = vec![0; self.image.header.cluster_bytes() as usize];
        for &cluster in blocks.values() {
            self.image.tables.write(self.offset(cluster), &zeroes).await?;
            counts.insert(cluster, 1);
        }
        if let Some(NewTable { first, clusters }) = table {
            counts.extend((first..first + clusters).map(|cluster| (cluster, 1)));
        }
        self.write_refcounts(&counts).await?;
        match table {
            Some(table) => self.move_table(table, &blocks).await?,
            None => {
                self.sync_blocks().await?;
                let table = self.image.header.refcount_table.offset;
                for (number, cluster) in &blocks {
                    let entry = self.offset(*cluster).to_be_bytes();
                    self.image.tables.write(table + number * 8, &entry).await?;
                }
            }
        }
        self.space.table = None;
        for (number, cluster) in blocks {
            self.space.blocks.remove(&number);
            self.space.taken.remove(&cluster);
        }
        Ok(())
    }

    async fn sync_blocks(&self) -> Result<(), ImageError> {
        if is_planted(Bug::BlocksNotSynced) { Ok(()) } else { self.sync().await }
    }

    /// Writes a larger refcount table with the new blocks, syncs, then names it in the header.
    async fn move_table(
        &mut self,
        table: NewTable,
        blocks: &BTreeMap<u64, u64>,
    ) -> Result<(), ImageError> {
        let NewTable { first, clusters } = table;
        let former = self.image.header.refcount_table;
        let cluster_bytes = self.image.header.cluster_bytes();
        let new = TableRange { offset: self.offset(first), bytes: clusters * cluster_bytes };
        // A refcount table has at most 8 MiB.
        let mut bytes = vec![0; new.bytes as usize];
        let kept = bytes.get_mut(..former.bytes as usize).unwrap_or_default();
        self.image.tables.read("refcount table", former.offset, kept).await?;
        for (number, cluster) in blocks {
            let entry = self.offset(*cluster).to_be_bytes();
            let at = (number * 8) as usize;
            bytes.get_mut(at..at + 8).into_iter().for_each(|place| place.copy_from_slice(&entry));
        }
        self.image.tables.write(new.offset, &bytes).await?;
        self.sync_blocks().await?;
        let mut fields = new.offset.to_be_bytes().to_vec();
        // At most 8 MiB in clusters.
        fields.extend((clusters as u32).to_be_bytes());
        self.image.tables.write(REFCOUNT_TABLE_OFFSET, &fields).await?;
        self.image.header.refcount_table = new;
        self.space.taken.retain(|cluster| !(first..first + clusters).contains(cluster));
        let bits = self.image.header.cluster_bits;
        self.replacing.extend(former.offset >> bits..(former.offset + former.bytes) >> bits);
        Ok(())
    }

    /// Sets refcounts by cluster, one write a slice.
    pub(super) async fn write_refcounts(
        &mut self,
        counts: &BTreeMap<u64, u64>,
    ) -> Result<(), ImageError> {
        let refcounts = self.refcounts();
        let step = refcounts.per_block().min(refcounts.in_bytes(SLICE_BYTES));
        let mut rest = counts.iter().peekable();
        while let Some(&(&first, _)) = rest.peek() {
            let number = first / refcounts.per_block();
            let block = match self.space.blocks.get(&number) {
                Some(cluster) => Some(self.offset(*cluster)),
                None => self.image.refcount_block(number).await?,
            };
            let corrupt = |problem: &str| ImageError::Corrupt {
                structure: "refcount",
                offset: first << self.image.header.cluster_bits,
                problem: problem.into(),
            };
            let block = block.ok_or_else(|| corrupt("the cluster has no refcount block"))?;
            let at = first % refcounts.per_block() / step * SLICE_BYTES;
            let range = self.image.block_range(block);
            let (slice, _) = self.image.tables.slice("refcount block", range, at).await?;
            let old = slice.to_vec();
            let mut slice = old.clone();
            while let Some((&cluster, &count)) =
                rest.next_if(|(one, _)| **one / step == first / step)
            {
                // A slice has at most 524,288 refcounts.
                if !refcounts.set(&mut slice, (cluster % step) as usize, count) {
                    return Err(corrupt("its value is too large for the image"));
                }
            }
            self.image.tables.write_changes(block + at, &old, &slice).await?;
        }
        Ok(())
    }
}

//! Layout of a qcow2 image that is written as a stream, from its first byte to its last.

use super::create::{CreateOptions, Layout, header_bytes};
use super::l2::COPIED;
use crate::{BitSet, ImageError};

/// Shift of the smallest cluster: 64 KiB.
const CLUSTER_BITS: u32 = 16;
/// Most clusters of a disk. Larger disks have larger clusters, so that a set of them has at most
/// 32 MiB.
const MAX_CLUSTERS: u64 = 1 << 28;
/// Bytes of an entry of a table.
const ENTRY_BYTES: u64 = 8;

/// Returns the shift of the cluster size of an exported disk of `size` bytes.
pub fn export_cluster_bits(size: u64) -> u32 {
    // 64 TiB need 18 bits.
    (CLUSTER_BITS..21).find(|bits| size.div_ceil(1 << bits) <= MAX_CLUSTERS).unwrap_or(21)
}

/// Layout of an image: header, refcounts, L1 table, L2 tables, then the data of its clusters in the
/// order of the disk.
#[derive(Debug)]
pub struct ExportLayout<'a> {
    options: CreateOptions,
    layout: Layout,
    clusters: &'a BitSet,
    /// Numbers of the L2 tables that have entries.
    tables: BitSet,
    /// Clusters of the file, and those before the first L2 table and before the data.
    total: u64,
    first_table: u64,
    first_data: u64,
}

impl<'a> ExportLayout<'a> {
    /// Creates the layout of a disk of `size` bytes with these clusters of
    /// [`export_cluster_bits`]. Others are zero.
    ///
    /// # Errors
    /// [`ImageError::Create`] if a qcow2 image cannot have this disk.
    pub fn new(size: u64, clusters: &'a BitSet) -> Result<Self, ImageError> {
        let cluster_bits = export_cluster_bits(size);
        let options = CreateOptions { size, cluster_bits, extended_l2: false, backing: None };
        options.check()?;
        let cluster = 1 << cluster_bits;
        let per_table = cluster / ENTRY_BYTES;
        let l1_words = size.div_ceil(cluster).div_ceil(per_table);
        let mut tables = BitSet::new(l1_words);
        clusters.iter().for_each(|one| tables.insert(one / per_table));
        let l1_clusters = (l1_words * ENTRY_BYTES).div_ceil(cluster);
        let others = 1 + l1_clusters + tables.count() + clusters.count();
        // Refcounts have 16 bits, and count their own clusters.
        let per_block = cluster / 2;
        let (mut blocks, mut table_clusters) = (1, 1);
        while others + blocks + table_clusters > blocks * per_block {
            blocks = (others + blocks + table_clusters).div_ceil(per_block);
            table_clusters = (blocks * ENTRY_BYTES).div_ceil(cluster);
        }
        let l1 = 1 + table_clusters + blocks;
        let layout = Layout {
            cluster,
            refcount_table: cluster,
            refcount_table_clusters: table_clusters,
            block: (1 + table_clusters) * cluster,
            blocks,
            l1: l1 * cluster,
            l1_words,
            clusters: others + blocks + table_clusters,
        };
        let (total, first_table) = (layout.clusters, l1 + l1_clusters);
        let first_data = first_table + tables.count();
        Ok(Self { options, layout, clusters, tables, total, first_table, first_data })
    }

    /// Returns the size of the image in bytes.
    pub fn bytes(&self) -> u64 {
        self.total * self.layout.cluster
    }

    /// Returns the size of a cluster in bytes.
    pub fn cluster_bytes(&self) -> u64 {
        self.layout.cluster
    }

    /// Passes all that is before the data to `write`, in pieces of one cluster.
    ///
    /// # Errors
    /// Those of `write`, and [`ImageError::Create`].
    pub fn write_head<E: From<ImageError>>(
        &self,
        mut write: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let cluster = self.layout.cluster;
        let mut piece = header_bytes(&self.options, &self.layout)?;
        piece.resize(cluster as usize, 0);
        write(&piece)?;
        let block = |number: u64| match number < self.layout.blocks {
            true => self.layout.block + number * cluster,
            false => 0,
        };
        self.write_words(self.layout.refcount_table_clusters, block, &mut write)?;
        for number in 0..self.layout.blocks {
            let first = number * cluster / 2;
            let count = |at: u64| u16::from(first + at < self.total);
            piece.clear();
            piece.extend((0..cluster / 2).flat_map(|at| count(at).to_be_bytes()));
            write(&piece)?;
        }
        let mut next = self.first_table;
        let l1_clusters = self.first_table - self.layout.l1 / cluster;
        let l1_word = |number: u64| match self.tables.contains(number) {
            true => {
                next += 1;
                ((next - 1) * cluster) | COPIED
            }
            false => 0,
        };
        self.write_words(l1_clusters, l1_word, &mut write)?;
        let (per_table, mut next) = (cluster / ENTRY_BYTES, self.first_data);
        for table in self.tables.iter() {
            let word = |at: u64| match self.clusters.contains(table * per_table + at) {
                true => {
                    next += 1;
                    ((next - 1) * cluster) | COPIED
                }
                false => 0,
            };
            self.write_words(1, word, &mut write)?;
        }
        Ok(())
    }

    /// Writes clusters of words.
    fn write_words<E>(
        &self,
        clusters: u64,
        mut word: impl FnMut(u64) -> u64,
        write: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let words = self.layout.cluster / ENTRY_BYTES;
        for cluster in 0..clusters {
            let all =
                (cluster * words..(cluster + 1) * words).flat_map(|at| word(at).to_be_bytes());
            write(&all.collect::<Vec<u8>>())?;
        }
        Ok(())
    }
}

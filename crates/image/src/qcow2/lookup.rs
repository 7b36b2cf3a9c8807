//! Lookup: where the bytes of the disk are.

use super::image::Image;
use super::l2::{Cluster, L1Entry, L2Entry, Mapping};
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

/// Range of the disk with one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Place of the bytes.
    pub mapping: Mapping,
    /// Number of bytes. The neighbours may have the same mapping.
    pub bytes: u64,
}

impl<F: ImageFile> Image<F> {
    /// Returns where the bytes from `offset` are. The run ends at the end of the cluster at the
    /// latest, but a range without an L2 table is one run.
    ///
    /// # Errors
    /// `offset` is behind the end of the disk, a table is damaged, or the file fails.
    pub async fn lookup(&mut self, offset: u64) -> Result<Run, ImageError> {
        self.check_inside(offset)?;
        let size = self.header.size;
        let Some(entry) = self.entry(offset).await? else {
            let covers = self.header.l2_table_covers();
            let bytes = (covers - offset % covers).min(size - offset);
            return Ok(Run { mapping: Mapping::Unallocated, bytes });
        };
        let within = offset % self.header.cluster_bytes();
        let (mapping, bytes) = match entry {
            L2Entry::Compressed(compressed) => {
                (Mapping::Compressed(compressed), self.header.cluster_bytes() - within)
            }
            L2Entry::Cluster(cluster) if self.header.has_extended_l2() => {
                let unit = self.header.subcluster_bytes();
                // The position within a cluster is below 2 MiB.
                let index = (within / unit) as u32;
                let (mapping, count) = cluster.mapping(index, within);
                (mapping, u64::from(count) * unit - within % unit)
            }
            L2Entry::Cluster(cluster) => {
                (cluster.mapping(0, within).0, self.header.cluster_bytes() - within)
            }
        };
        Ok(Run { mapping, bytes: bytes.min(size - offset) })
    }

    /// Returns the entry of the cluster that contains `offset` of the disk. Returns `None` if the
    /// image has no L2 table there.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub async fn entry(&mut self, offset: u64) -> Result<Option<L2Entry>, ImageError> {
        self.check_inside(offset)?;
        let index = offset / self.header.l2_table_covers();
        let Some(l1_entry) = self.l1_entry(self.header.l1, index).await? else { return Ok(None) };
        let cluster = offset / self.header.cluster_bytes();
        let index = cluster % (self.header.cluster_bytes() / self.header.l2_entry_bytes());
        let entry = self.l2_entry(l1_entry.table, index).await?;
        let place = match entry {
            L2Entry::Compressed(compressed) => Some(compressed.offset),
            L2Entry::Cluster(Cluster { host, .. }) => host,
        };
        if let Some(place) = place
            && !self.tables.contains(place).await?
        {
            let problem = format!("it refers to {place:#x}, behind the end of the file");
            return Err(self.bad_l2_entry(l1_entry.table, index, problem));
        }
        Ok(Some(entry))
    }

    /// Returns an entry of an L1 table.
    pub(super) async fn l1_entry(
        &mut self,
        l1: TableRange,
        index: u64,
    ) -> Result<Option<L1Entry>, ImageError> {
        let structure = "L1 entry";
        let word = self.tables.word(structure, l1, index).await?;
        L1Entry::parse(word, self.header.cluster_bits).map_err(|problem| {
            let offset = l1.offset.saturating_add(index * 8);
            ImageError::Corrupt { structure, offset, problem }
        })
    }

    /// Returns an entry of the L2 table at `table` in the file.
    pub(super) async fn l2_entry(&mut self, table: u64, index: u64) -> Result<L2Entry, ImageError> {
        let range = TableRange { offset: table, bytes: self.header.cluster_bytes() };
        let format = self.header.entry_format();
        let words = format.bytes() / 8;
        let word = self.tables.word("L2 table", range, index * words).await?;
        let bitmap = match format.is_extended {
            true => self.tables.word("L2 table", range, index * words + 1).await?,
            false => 0,
        };
        format.parse(word, bitmap).map_err(|problem| self.bad_l2_entry(table, index, problem))
    }

    fn bad_l2_entry(&self, table: u64, index: u64, problem: String) -> ImageError {
        let offset = table.saturating_add(index * self.header.l2_entry_bytes());
        ImageError::Corrupt { structure: "L2 entry", offset, problem }
    }

    fn check_inside(&self, offset: u64) -> Result<(), ImageError> {
        let size = self.header.size;
        if offset < size { Ok(()) } else { Err(ImageError::Outside { offset, size }) }
    }
}

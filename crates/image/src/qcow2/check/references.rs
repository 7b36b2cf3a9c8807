//! Counting of all references to clusters of the file.

use super::counts::{Counts, Use};
use super::layout::{Layout, TableUse};
use crate::qcow2::bitmaps::BitmapDirectory;
use crate::qcow2::image::Image;
use crate::qcow2::l2::L2Entry;
use crate::report::CheckReport;
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

/// Counters of a pass, with the report if it is the first one.
struct Tally<'a> {
    counts: &'a mut Counts,
    /// Faults that every pass would find are reported by the first one.
    report: Option<&'a mut CheckReport>,
    cluster_bits: u32,
    /// Size of the file in bytes.
    len: u64,
}

impl Tally<'_> {
    /// Counts references to all clusters that contain a range of the file. The last cluster of the
    /// file may be shorter in it.
    fn add(&mut self, range: TableRange, times: u32, used_as: Use, what: &str) {
        let TableRange { offset, bytes } = range;
        if bytes == 0 {
            return;
        }
        let cluster_bytes = 1u64 << self.cluster_bits;
        let end = offset.checked_add(bytes);
        let Some(end) = end.filter(|end| end.saturating_sub(self.len) < cluster_bytes) else {
            self.error(offset, || {
                format!("{what} of {bytes} bytes lies behind the end of the file")
            });
            return;
        };
        let (first, last) = (offset >> self.cluster_bits, (end - 1) >> self.cluster_bits);
        // A range inside the file has a bounded number of clusters.
        for cluster in first..=last {
            if !self.counts.add(cluster, times, used_as) {
                let at = cluster << self.cluster_bits;
                self.error(at, || format!("{what} shares its cluster with a table"));
            }
        }
    }

    fn error(&mut self, offset: u64, problem: impl FnOnce() -> String) {
        if let Some(report) = &mut self.report {
            report.error(offset, problem);
        }
    }

    fn note<T>(&mut self, result: Result<T, ImageError>) -> Result<Option<T>, ImageError> {
        match &mut self.report {
            Some(report) => report.note(result),
            None => match result {
                Ok(value) => Ok(Some(value)),
                Err(ImageError::Corrupt { .. }) => Ok(None),
                Err(other) => Err(other),
            },
        }
    }
}

impl<F: ImageFile> Image<F> {
    /// Counts all references to the clusters of a pass.
    pub(super) async fn count_references(
        &mut self,
        layout: &Layout,
        counts: &mut Counts,
        report: Option<&mut CheckReport>,
    ) -> Result<(), ImageError> {
        let (cluster_bits, len) = (self.header.cluster_bits, self.tables.len());
        let mut tally = Tally { counts, report, cluster_bits, len };
        let header = TableRange { offset: 0, bytes: self.header.cluster_bytes() };
        tally.add(header, 1, Use::Table, "header");
        tally.add(self.header.refcount_table, 1, Use::Table, "refcount table");
        for index in 0..self.header.refcount_table.words() {
            let block = self.refcount_block(index).await;
            if let Some(Some(block)) = tally.note(block)? {
                tally.add(self.block_range(block), 1, Use::Table, "refcount block");
            }
        }
        tally.add(layout.snapshot_table, 1, Use::Table, "snapshot table");
        for table in &layout.l1_tables {
            tally.add(table.range, table.times, Use::Table, "L1 table");
        }
        self.count_bitmaps(&mut tally).await?;
        for table in &layout.l2_tables {
            tally.add(table.range, table.times, Use::Table, "L2 table");
        }
        for table in &layout.l2_tables {
            self.count_l2_table(table, &mut tally).await?;
        }
        Ok(())
    }

    async fn count_l2_table(
        &mut self,
        table: &TableUse,
        tally: &mut Tally<'_>,
    ) -> Result<(), ImageError> {
        if table.range.offset >= self.tables.len() {
            return Ok(()); // Reported as a reference.
        }
        let bytes = self.header.cluster_bytes();
        for index in 0..bytes / self.header.l2_entry_bytes() {
            let entry = self.l2_entry(table.range.offset, index).await;
            let Some(entry) = tally.note(entry)? else { continue };
            let (range, copied) = match entry {
                L2Entry::Compressed(compressed) => {
                    (TableRange { offset: compressed.offset, bytes: compressed.bytes }, None)
                }
                L2Entry::Cluster(cluster) => {
                    let Some(offset) = cluster.host else { continue };
                    (TableRange { offset, bytes }, Some(cluster.copied))
                }
            };
            tally.add(range, table.times, Use::Data, "guest data");
            if let Some(report) = &mut tally.report
                && table.is_active
            {
                report.allocated_clusters += 1;
                report.compressed_clusters += u64::from(copied.is_none());
                if let Some(copied) = copied {
                    self.check_copied(range.offset, copied, "data cluster", report).await?;
                }
            }
        }
        Ok(())
    }

    /// Checks that an entry is marked as copied exactly if its cluster has one reference.
    pub(super) async fn check_copied(
        &mut self,
        offset: u64,
        copied: bool,
        what: &str,
        report: &mut CheckReport,
    ) -> Result<(), ImageError> {
        // Damaged refcount tables are reported where references are counted.
        let refcount = match self.refcount(offset >> self.header.cluster_bits).await {
            Err(ImageError::Corrupt { .. }) => 0,
            other => other?,
        };
        if copied != (refcount == 1) {
            let mark = if copied { "is marked as copied" } else { "is not marked as copied" };
            report.error(offset, || format!("{what} {mark}, its refcount is {refcount}"));
            report.wrong_marks += 1;
        }
        Ok(())
    }

    async fn count_bitmaps(&mut self, tally: &mut Tally<'_>) -> Result<(), ImageError> {
        let Some(range) = BitmapDirectory::range(self) else { return Ok(()) };
        let directory = BitmapDirectory::new(self);
        let Some(mut directory) = tally.note(directory)? else { return Ok(()) };
        tally.add(range, 1, Use::Table, "bitmap directory");
        loop {
            let bitmap = directory.next(self).await;
            let Some(Some(bitmap)) = tally.note(bitmap)? else { return Ok(()) };
            tally.add(bitmap.table, 1, Use::Table, "bitmap table");
            for index in 0..bitmap.table.words() {
                let cluster = self.bitmap_cluster(bitmap.table, index).await;
                let Some(cluster) = tally.note(cluster)? else { break };
                if let Some(offset) = cluster {
                    let bytes = self.header.cluster_bytes();
                    tally.add(TableRange { offset, bytes }, 1, Use::Table, "bitmap");
                }
            }
        }
    }
}

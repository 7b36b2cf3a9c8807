//! Comparison of counted references with stored refcounts.

use super::OnLeak;
use super::counts::{Counts, MAX_COUNT};
use crate::qcow2::image::Image;
use crate::qcow2::refcounts::Refcounts;
use crate::report::CheckReport;
use crate::tables::SLICE_BYTES;
use crate::{ImageError, ImageFile};

impl<F: ImageFile> Image<F> {
    /// Compares the clusters of a pass.
    pub(super) async fn compare(
        &mut self,
        counts: &mut Counts,
        report: &mut CheckReport,
        on_leak: OnLeak,
    ) -> Result<(), ImageError> {
        let per_block = self.header.refcounts_per_block();
        let (start, end) = counts.clusters();
        let blocks = self.header.refcount_table.words();
        for index in start / per_block..blocks.min(end.div_ceil(per_block)) {
            // A damaged entry was reported by the first pass.
            let Ok(Some(block)) = self.refcount_block(index).await else { continue };
            self.compare_block(block, index * per_block, counts, report, on_leak).await?;
        }
        self.tables.check_stop()?;
        for (cluster, references) in counts.rest() {
            let offset = cluster << self.header.cluster_bits;
            report.error(offset, || format!("cluster has refcount 0, references {references}"));
        }
        Ok(())
    }

    /// Compares the clusters of a refcount block, of which `first` is the first.
    async fn compare_block(
        &mut self,
        block: u64,
        first: u64,
        counts: &mut Counts,
        report: &mut CheckReport,
        on_leak: OnLeak,
    ) -> Result<(), ImageError> {
        let refcounts = Refcounts::of(&self.header);
        let (len, bits) = (self.tables.len(), self.header.cluster_bits);
        for at in (0..self.header.cluster_bytes()).step_by(SLICE_BYTES as usize) {
            let (slice, _) =
                self.tables.slice("refcount block", self.block_range(block), at).await?;
            if slice.iter().all(|&byte| byte == 0) {
                continue;
            }
            let mut slice = slice.to_vec();
            let (first, mut repaired) = (first + refcounts.in_bytes(at), 0);
            let count = refcounts.in_bytes(slice.len() as u64);
            for (index, cluster) in (0..count as usize).zip(first..) {
                let stored = refcounts.get(&slice, index);
                if stored == 0 || !counts.covers(cluster) {
                    continue;
                }
                let references = counts.take(cluster);
                let is_saturated = references == MAX_COUNT && stored >= u64::from(MAX_COUNT);
                let references = u64::from(references);
                // Space behind the end of the file is not wasted.
                let is_unused = references == 0 && cluster.saturating_mul(1 << bits) >= len;
                if stored == references || is_saturated || is_unused {
                    continue;
                }
                let offset = cluster.saturating_mul(1 << bits);
                let problem = || format!("cluster has refcount {stored}, references {references}");
                if stored < references {
                    report.error(offset, problem);
                } else {
                    report.leak(offset, problem);
                    if on_leak == OnLeak::Repair && refcounts.set(&mut slice, index, references) {
                        repaired += 1;
                    }
                }
            }
            if repaired > 0 {
                self.tables.write(block + at, &slice).await?;
                report.repaired_leaks += repaired;
            }
        }
        Ok(())
    }
}

//! Check: references against refcounts.
//!
//! A check counts the references to each cluster of the file and compares them with the stored
//! refcounts. Counters have a budget: what does not fit is counted in a further pass over the
//! tables. So memory is bounded for every image.

mod compare;
mod counts;
mod layout;
mod references;
mod repair;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::image::Image;
use crate::{ImageError, ImageFile};
use counts::Counts;
use layout::Layout;

/// Most faults that a report lists; all are counted.
const MAX_LISTED: usize = 100;
/// Most pages of counters in memory: 64 MiB, for 2 TiB of 64 KiB clusters in a pass.
const MAX_PAGES: usize = 8192;

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Number of faults through which data is or can be lost.
    pub errors: u64,
    /// Number of clusters of the file that nothing uses.
    pub leaks: u64,
    /// The first 100 faults.
    pub faults: Vec<Fault>,
    /// Number of clusters of the disk that have a cluster of the file, or compressed data.
    pub allocated_clusters: u64,
    /// Number of these that are compressed.
    pub compressed_clusters: u64,
    /// Number of clusters of the disk.
    pub clusters: u64,
    /// Number of leaks that [`Image::repair_leaks`] has repaired before this check.
    pub repaired_leaks: u64,
    /// Number of marks as copied that it has corrected.
    pub repaired_marks: u64,
    /// Number of errors that are wrong marks as copied, which follow from right refcounts.
    wrong_marks: u64,
}

/// Fault of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Whether it only wastes space.
    pub is_leak: bool,
    /// Broken rule.
    pub problem: String,
}

impl CheckReport {
    /// Returns whether the image has neither errors nor leaks.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.leaks == 0
    }

    fn error(&mut self, offset: u64, problem: impl FnOnce() -> String) {
        self.errors += 1;
        self.add(offset, false, problem);
    }

    fn leak(&mut self, offset: u64, problem: impl FnOnce() -> String) {
        self.leaks += 1;
        self.add(offset, true, problem);
    }

    fn add(&mut self, offset: u64, is_leak: bool, problem: impl FnOnce() -> String) {
        if self.faults.len() < MAX_LISTED {
            self.faults.push(Fault { offset, is_leak, problem: problem() });
        }
    }

    /// Notes a damaged table as a fault.
    ///
    /// # Errors
    /// Every other error ends the check.
    fn note<T>(&mut self, result: Result<T, ImageError>) -> Result<Option<T>, ImageError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(ImageError::Corrupt { structure, offset, problem }) => {
                self.error(offset, || format!("{structure}: {problem}"));
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }
}

/// Effect of a check on leaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnLeak {
    Report,
    Repair,
}

impl<F: ImageFile> Image<F> {
    /// Checks all tables, refcounts and references. Writes nothing.
    ///
    /// # Errors
    /// The file fails, or the caller has requested an end. Damage is part of the report.
    pub async fn check(&mut self) -> Result<CheckReport, ImageError> {
        self.run_check(MAX_PAGES, OnLeak::Report).await
    }

    /// Returns how often the tables refer to each of these clusters of the file.
    ///
    /// # Errors
    /// The file fails. Damaged tables refer to nothing.
    pub async fn count_uses(
        &mut self,
        clusters: &BTreeSet<u64>,
    ) -> Result<BTreeMap<u64, u16>, ImageError> {
        let layout = Layout::read(self, &mut CheckReport::default()).await?;
        let (mut counts, mut uses) = (Counts::new(0, MAX_PAGES), BTreeMap::new());
        loop {
            self.count_references(&layout, &mut counts, None).await?;
            let covered: Vec<_> = clusters.iter().filter(|one| counts.covers(**one)).collect();
            uses.extend(covered.into_iter().map(|cluster| (*cluster, counts.take(*cluster))));
            let Some(first) = counts.next_pass() else { return Ok(uses) };
            counts = Counts::new(first, MAX_PAGES);
        }
    }

    async fn run_check(
        &mut self,
        max_pages: usize,
        on_leak: OnLeak,
    ) -> Result<CheckReport, ImageError> {
        let mut report = CheckReport {
            clusters: self.header.size.div_ceil(self.header.cluster_bytes()),
            ..CheckReport::default()
        };
        let layout = Layout::read(self, &mut report).await?;
        let mut counts = Counts::new(0, max_pages);
        self.count_references(&layout, &mut counts, Some(&mut report)).await?;
        loop {
            self.compare(&mut counts, &mut report, on_leak).await?;
            let Some(first) = counts.next_pass() else { return Ok(report) };
            counts = Counts::new(first, max_pages);
            self.count_references(&layout, &mut counts, None).await?;
        }
    }
}

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
use crate::report::CheckReport;
use crate::{ImageError, ImageFile};
use counts::Counts;
use layout::Layout;

/// Most pages of counters in memory: 64 MiB, for 2 TiB of 64 KiB clusters in a pass.
const MAX_PAGES: usize = 8192;

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

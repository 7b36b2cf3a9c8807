//! Counters of references, one for each cluster of the file, with a budget.

use std::collections::BTreeMap;

/// Number of counters of a page.
const PAGE: u64 = 4096;
/// Bit of a counter: a table uses the cluster.
const TABLE: u16 = 1 << 15;
/// Largest count. Counts stay there, and so do stored refcounts that are compared with them.
pub(super) const MAX_COUNT: u16 = TABLE - 1;

/// Use of a cluster by a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Guest data, which several references may share.
    Data,
    /// A table, which nothing else may use.
    Table,
}

/// Counters of the clusters of one pass.
#[derive(Debug)]
pub(super) struct Counts {
    pages: BTreeMap<u64, Box<[u16]>>,
    /// First page of this pass.
    first: u64,
    /// First page that this pass does not count.
    limit: u64,
    max_pages: usize,
}

impl Counts {
    /// Creates counters for the clusters from page `first` on, as many as fit `max_pages`.
    pub(super) fn new(first: u64, max_pages: usize) -> Self {
        Self { pages: BTreeMap::new(), first, limit: u64::MAX, max_pages }
    }

    /// Returns the first page of the next pass, if one is needed.
    pub(super) fn next_pass(&self) -> Option<u64> {
        (self.limit != u64::MAX).then_some(self.limit)
    }

    /// Returns whether this pass counts a cluster.
    pub(super) fn covers(&self, cluster: u64) -> bool {
        (self.first..self.limit).contains(&(cluster / PAGE))
    }

    /// Returns the first cluster of the pass and the first one behind it.
    pub(super) fn clusters(&self) -> (u64, u64) {
        (self.first.saturating_mul(PAGE), self.limit.saturating_mul(PAGE))
    }

    /// Counts `times` references. Returns false if a table would share the cluster.
    #[must_use]
    pub(super) fn add(&mut self, cluster: u64, times: u32, used_as: Use) -> bool {
        if !self.covers(cluster) {
            return true;
        }
        let page = self.pages.entry(cluster / PAGE);
        let page = page.or_insert_with(|| vec![0; PAGE as usize].into_boxed_slice());
        let cell = &mut page[(cluster % PAGE) as usize];
        let (count, was_table) = (*cell & MAX_COUNT, *cell & TABLE != 0);
        let sum = u32::from(count).saturating_add(times).min(u32::from(MAX_COUNT)) as u16;
        *cell = sum | if was_table || used_as == Use::Table { TABLE } else { 0 };
        let is_shared = was_table || used_as == Use::Table && count > 0;
        if self.pages.len() > self.max_pages
            && let Some((page, _)) = self.pages.pop_last()
        {
            self.limit = page;
        }
        !is_shared
    }

    /// Removes and returns the count of a cluster.
    pub(super) fn take(&mut self, cluster: u64) -> u16 {
        let cell = self.pages.get_mut(&(cluster / PAGE)).map(|page| {
            // The remainder is an index of the page.
            std::mem::take(&mut page[(cluster % PAGE) as usize])
        });
        cell.unwrap_or(0) & MAX_COUNT
    }

    /// Returns all clusters whose count was not taken, with their counts.
    pub(super) fn rest(&self) -> impl Iterator<Item = (u64, u16)> {
        self.pages.iter().flat_map(|(page, cells)| {
            let numbered = (page * PAGE..).zip(cells.iter());
            numbered
                .map(|(cluster, cell)| (cluster, cell & MAX_COUNT))
                .filter(|(_, count)| *count > 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_that_do_not_fit_are_left_to_the_next_pass() {
        let mut counts = Counts::new(0, 2);
        for cluster in [9 * PAGE, 5 * PAGE, 1, 7 * PAGE, 1] {
            assert!(counts.add(cluster, 1, Use::Data));
        }
        assert_eq!(counts.next_pass(), Some(7));
        assert!(!counts.covers(9 * PAGE) && counts.covers(5 * PAGE));
        assert_eq!((counts.take(1), counts.take(1)), (2, 0));
        assert_eq!(counts.rest().collect::<Vec<_>>(), [(5 * PAGE, 1)]);
        let mut next = Counts::new(7, 2);
        for cluster in [9 * PAGE, 5 * PAGE, 7 * PAGE] {
            assert!(next.add(cluster, 1, Use::Data));
        }
        assert_eq!(next.rest().collect::<Vec<_>>(), [(7 * PAGE, 1), (9 * PAGE, 1)]);
        assert_eq!(next.next_pass(), None);
    }

    #[test]
    fn a_table_shares_its_cluster_with_nothing() {
        let mut counts = Counts::new(0, 2);
        assert!(counts.add(1, 3, Use::Table));
        assert!(!counts.add(1, 1, Use::Data));
        assert!(counts.add(2, 1, Use::Data));
        assert!(counts.add(2, 1, Use::Data));
        assert!(!counts.add(2, 1, Use::Table));
        assert!(counts.add(3, u32::MAX, Use::Data));
        assert_eq!((counts.take(1), counts.take(2), counts.take(3)), (4, 3, MAX_COUNT));
    }
}

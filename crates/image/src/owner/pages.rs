//! Pages of the map: which are linked, and which may go.

use std::collections::{BTreeMap, VecDeque};

use super::{Obstacle, Owner};
use crate::format::Format;
use crate::map::{Kind, PageId, Word};
use crate::planted::{Bug, is_planted};

/// Pages that are unlinked together, and most that may wait for their readers.
const EVICT: usize = 16;

/// Pages of one map.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Linked pages, the oldest first.
    linked: VecDeque<u64>,
    /// Pages that were unlinked, and the epoch that ended with it.
    unlinked: BTreeMap<u64, (PageId, u64)>,
}

impl<F: Format> Owner<F> {
    /// Loads the words of the page that has a granule, unless it is linked.
    pub(super) async fn load_page(&mut self, granule: u64) -> Result<(), Obstacle> {
        let map = &self.shared.map;
        if map.load(granule).word.kind() != Kind::Ask {
            return Ok(());
        }
        let page = map.layout().page_of(granule);
        if let Some((id, epoch)) = self.pages.unlinked.remove(&page) {
            if map.epochs().oldest() <= epoch {
                // A request may still commit to it, so it must come back as it is.
                map.relink(page, id);
                self.pages.linked.push_back(page);
                return Ok(());
            }
            map.put(id);
        }
        let words = self.newest_words(page).await?;
        if !self.link(page, &words) {
            self.recycle_pages();
            if self.pages.unlinked.len() < EVICT {
                self.evict_oldest(EVICT);
                self.recycle_pages();
            }
            if !self.link(page, &words) {
                return Err(Obstacle::Later);
            }
        }
        Ok(())
    }

    fn link(&mut self, page: u64, words: &[Word]) -> bool {
        let is_linked = self.shared.map.link(page, words).is_some();
        if is_linked {
            self.pages.linked.push_back(page);
        }
        is_linked
    }

    /// Unlinks up to `count` pages, those first that were linked first.
    fn evict_oldest(&mut self, count: usize) {
        let mut evicted = 0;
        for _ in 0..self.pages.linked.len() {
            if evicted == count {
                return;
            }
            let Some(page) = self.pages.linked.pop_front() else { return };
            if self.unlink(page) {
                evicted += 1;
            } else {
                self.pages.linked.push_back(page);
            }
        }
    }

    /// Unlinks the page of a granule, if it can be loaded again as it is. Returns whether it was.
    #[cfg(test)]
    pub(crate) fn evict(&mut self, granule: u64) -> bool {
        let page = self.shared.map.layout().page_of(granule);
        let Some(at) = self.pages.linked.iter().position(|one| *one == page) else { return false };
        let is_unlinked = self.unlink(page);
        if is_unlinked {
            self.pages.linked.remove(at);
        }
        is_unlinked
    }

    /// Unlinks a page, unless a channel fills one of its granules. All others can be loaded again
    /// from the image and the journal.
    fn unlink(&mut self, page: u64) -> bool {
        let map = &self.shared.map;
        let mut granules = map.layout().granules_of(page);
        if granules.any(|granule| map.load(granule).word.kind() == Kind::Busy) {
            return false;
        }
        let Some(id) = map.unlink(page) else { return false };
        let epoch = map.epochs().advance();
        self.pages.unlinked.insert(page, (id, epoch));
        if is_planted(Bug::DirtyEvicted) {
            map.layout().granules_of(page).for_each(|granule| self.journal.remove(granule));
        }
        self.counts.evictions += 1;
        true
    }

    /// Gives pages back that other maps want, and unlinked pages without readers.
    pub fn give_pages(&mut self) {
        // A pool has far fewer pages.
        let excess = self.shared.map.user().excess() as usize;
        if excess > 0 {
            self.evict_oldest(excess);
            self.shared.map.user().clear_excess();
        }
        if !self.pages.unlinked.is_empty() {
            self.recycle_pages();
        }
    }

    /// Returns whether questions wait for a page or for an entry of the journal.
    pub fn is_short(&self) -> bool {
        !self.later.is_empty()
    }

    /// Asks all questions again that wait for a page or for an entry of the journal.
    pub fn retry_later(&mut self) {
        let waiting = std::mem::take(&mut self.later);
        waiting.into_iter().for_each(|question| self.shared.ask(question));
    }

    /// Gives unlinked pages without readers back to the pool.
    fn recycle_pages(&mut self) {
        let map = &self.shared.map;
        let oldest = map.epochs().oldest();
        self.pages.unlinked.retain(|_, (id, epoch)| {
            let is_used = oldest <= *epoch;
            if !is_used {
                map.put(*id);
            }
            is_used
        });
    }
}

impl<F> Drop for Owner<F> {
    /// Channels live no longer than their owner, so that no page has a reader.
    fn drop(&mut self) {
        let unlinked = std::mem::take(&mut self.pages.unlinked);
        unlinked.into_values().for_each(|(id, _)| self.shared.map.put(id));
    }
}

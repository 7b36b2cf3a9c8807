//! Block map: where each granule of a disk lies. All channels read it without a lock; only the
//! owner and the channel that fills a granule change it.
//!
//! An entry of the first level is a page of words, or one word that holds for all granules of the
//! page. Pages come from a pool of the process. The owner unlinks pages that it can load again.

mod epoch;
pub(crate) mod order;
mod pages;
mod word;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use epoch::{EpochSlot, Epochs, Hold};
pub use pages::{PAGE_WORDS, PagePool, PageUser};
pub use word::{Base, Kind, LOWER_FILES, MAX_FILES, MAX_PLACE, Place, Word};

/// Sizes of a map, as powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of granules of the disk.
    pub granules: u64,
    /// Bytes of a granule: one cluster, 64 KiB in images that this project creates.
    pub granule_bits: u8,
    /// Bytes of a block: one bit of a mask. A granule has at most 16 blocks.
    pub block_bits: u8,
    /// Bytes of the unit of places.
    pub unit_bits: u8,
    /// Granules of a page, at most [`PAGE_WORDS`].
    pub page_bits: u8,
}

impl Layout {
    /// Returns the mask of a granule whose blocks are all stored.
    pub fn full_mask(&self) -> u16 {
        let blocks = 1_u32 << self.granule_bits.saturating_sub(self.block_bits).min(4);
        u16::MAX >> (16 - blocks)
    }

    /// Returns the mask of the blocks that `len` bytes at byte `skip` of a granule touch. `len` is at
    /// least 1.
    #[inline]
    pub fn blocks_of(&self, skip: u64, len: u64) -> u16 {
        let (first, last) = (skip >> self.block_bits, (skip + len - 1) >> self.block_bits);
        (2_u32.wrapping_shl(last as u32) - 1_u32.wrapping_shl(first as u32)) as u16
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        self.granules.div_ceil(1 << self.page_bits)
    }

    /// Returns the page of a granule.
    pub fn page_of(&self, granule: u64) -> u64 {
        granule >> self.page_bits
    }

    /// Returns the granules of a page.
    pub fn granules_of(&self, page: u64) -> std::ops::Range<u64> {
        let first = page << self.page_bits;
        first..(first + (1 << self.page_bits)).min(self.granules)
    }
}

/// Tag of a first-level entry that names a page. No such entry has this kind as a word.
const PAGE_TAG: u64 = Kind::Busy as u64;

/// A page in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageId(u32);

/// A word with its location, valid while the reader holds its epoch.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The word.
    pub word: Word,
    /// Page of the word. `None` if one word holds for the whole page.
    pub page: Option<PageId>,
}

/// Block map of one image.
#[derive(Debug)]
pub struct Map {
    layout: Layout,
    user: Arc<PageUser>,
    entries: Box<[AtomicU64]>,
    epochs: Arc<Epochs>,
}

impl Map {
    /// Creates a map that knows nothing.
    pub fn new(layout: Layout, pool: &Arc<PagePool>) -> Self {
        let entries = (0..layout.pages()).map(|_| AtomicU64::new(Word::ASK.bits())).collect();
        Self { layout, user: pool.join(), entries, epochs: Arc::default() }
    }

    /// Returns the sizes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the map as a user of the pool.
    pub fn user(&self) -> &PageUser {
        &self.user
    }

    /// Returns the epochs.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// Returns the number of pages in use.
    pub fn pages(&self) -> u64 {
        self.user.used().into()
    }

    /// Loads the word of a granule. The caller holds an epoch, or is the owner. A granule outside
    /// of the map is [`Word::ZERO`].
    #[inline]
    pub fn load(&self, granule: u64) -> Found {
        let Some(entry) = self.entry(self.layout.page_of(granule)) else {
            return Found { word: Word::ZERO, page: None };
        };
        let entry = entry.load(Ordering::Acquire);
        if entry & 7 != PAGE_TAG {
            return Found { word: Word::from_bits(entry), page: None };
        }
        let page = PageId((entry >> 3) as u32);
        let word = self
            .cell(page, granule)
            .map_or(Word::ASK, |cell| Word::from_bits(cell.load(Ordering::Acquire)));
        Found { word, page: Some(page) }
    }

    fn entry(&self, page: u64) -> Option<&AtomicU64> {
        self.entries.get(usize::try_from(page).ok()?)
    }

    #[inline]
    fn cell(&self, page: PageId, granule: u64) -> Option<&AtomicU64> {
        let index = granule & ((1 << self.layout.page_bits) - 1);
        self.user.word(page.0, index as usize)
    }

    /// Replaces a word of a page, if it is still `old`.
    ///
    /// # Errors
    /// The present word.
    pub fn exchange(&self, page: PageId, granule: u64, old: Word, new: Word) -> Result<(), Word> {
        let Some(cell) = self.cell(page, granule) else { return Err(Word::ASK) };
        cell.compare_exchange(old.bits(), new.bits(), Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(Word::from_bits)
    }

    /// Counts a change in `commits`, then adds blocks to the mask of a word, if it is still data in
    /// the same cluster. Returns whether it was.
    pub(crate) fn add_blocks(
        &self,
        commits: &AtomicU64,
        page: PageId,
        granule: u64,
        blocks: Word,
    ) -> bool {
        let Some(cell) = self.cell(page, granule) else { return false };
        order::add_blocks(commits, cell, blocks)
    }

    /// Replaces a word of a page and returns the former one. For the owner.
    pub(crate) fn swap(&self, page: PageId, granule: u64, new: Word) -> Word {
        let cell = self.cell(page, granule);
        cell.map_or(Word::ASK, |cell| Word::from_bits(cell.swap(new.bits(), Ordering::AcqRel)))
    }

    /// Links a page with these words. `None` if the pool has none. For the owner, on an entry
    /// without a page.
    pub(crate) fn link(&self, page: u64, words: &[Word]) -> Option<PageId> {
        let id = PageId(self.user.take()?);
        for (granule, word) in self.layout.granules_of(page).zip(words) {
            self.swap(id, granule, *word);
        }
        self.relink(page, id);
        Some(id)
    }

    /// Links a page again that was unlinked. For the owner.
    pub(crate) fn relink(&self, page: u64, id: PageId) {
        if let Some(entry) = self.entry(page) {
            entry.store(u64::from(id.0) << 3 | PAGE_TAG, Ordering::Release);
        }
    }

    /// Unlinks a page: its granules become [`Word::ASK`]. Readers may still use it. For the owner,
    /// which ends the epoch and gives the page back when its readers have left.
    pub(crate) fn unlink(&self, page: u64) -> Option<PageId> {
        let before = self.entry(page)?.swap(Word::ASK.bits(), Ordering::AcqRel);
        (before & 7 == PAGE_TAG).then_some(PageId((before >> 3) as u32))
    }

    /// Gives an unlinked page back to the pool. For the owner.
    pub(crate) fn put(&self, id: PageId) {
        self.user.put(id.0);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        for page in 0..self.layout.pages() {
            self.unlink(page).into_iter().for_each(|id| self.put(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout =
        Layout { granules: 5, granule_bits: 16, block_bits: 12, unit_bits: 9, page_bits: 1 };

    fn data(units: u64, mask: u16) -> Word {
        Word::data(Place::new(units).unwrap(), mask, Base::Below)
    }

    #[test]
    fn a_range_touches_its_blocks() {
        assert_eq!(LAYOUT.blocks_of(0, 65536), 0xffff);
        assert_eq!(LAYOUT.blocks_of(4096, 8192), 0b110);
        assert_eq!(LAYOUT.blocks_of(4608, 512), 0b10);
        assert_eq!(LAYOUT.blocks_of(61440, 4096), 0x8000);
    }

    #[test]
    fn pages_are_linked_unlinked_and_linked_again() {
        let map = Map::new(LAYOUT, &Arc::new(PagePool::new(1)));
        assert_eq!((LAYOUT.pages(), LAYOUT.granules_of(2)), (3, 4..5));
        assert_eq!(map.load(2).word, Word::ASK);
        let id = map.link(1, &[data(8, 1), Word::ZERO]).unwrap();
        assert_eq!((map.load(2).word, map.load(3).word), (data(8, 1), Word::ZERO));
        assert_eq!((map.load(1).word, map.load(5).word), (Word::ASK, Word::ASK));
        assert_eq!(map.load(6).word, Word::ZERO, "outside");
        assert_eq!(map.unlink(1), Some(id));
        let commits = AtomicU64::new(0);
        assert!(map.add_blocks(&commits, id, 2, data(8, 2)), "a reader may still commit");
        assert_eq!(map.load(2).word, Word::ASK);
        map.relink(1, id);
        assert_eq!(map.load(2).word, data(8, 3));
        assert_eq!(map.unlink(0), None);
    }

    #[test]
    fn blocks_are_added_to_their_cluster_only() {
        let map = Map::new(LAYOUT, &Arc::new(PagePool::new(1)));
        let id = map.link(0, &[data(8, 1), Word::busy(Word::BELOW)]).unwrap();
        let commits = AtomicU64::new(0);
        let add = |granule, blocks| map.add_blocks(&commits, id, granule, blocks);
        assert!(!add(0, data(16, 2)) && !add(1, data(8, 2)));
        assert_eq!(map.exchange(id, 0, data(8, 3), Word::ZERO), Err(data(8, 1)));
        assert!(add(0, data(8, 2)));
        assert_eq!(map.exchange(id, 0, data(8, 3), Word::ZERO), Ok(()));
        assert!(!add(0, data(8, 2)));
        assert_eq!(LAYOUT.full_mask(), 0xffff);
        assert_eq!(Layout { granule_bits: 14, ..LAYOUT }.full_mask(), 0xf);
    }
}

//! Map and slots in one memfd.
//!
//! ```text
//! header | pages that have words (one bit each) | map: a word for each granule | slots
//! ```
//! The memfd is as large as if every granule had been written; the host provides what is touched. A
//! page of the map is read only if its bit is set, because a read would make the host provide it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::memory::{Mapping, MemoryError};

use crate::BYTES;
use crate::word::Word;

/// First number of the header.
const MAGIC: u64 = u64::from_le_bytes(*b"RWOVRLY1");
/// Words of a page of the map.
const PAGE_WORDS: u64 = 512;
/// Numbers in the header: magic, granules, slots, number of the overflow file.
const FIELDS: [usize; 4] = [0, 1, 2, 3];

/// Map and slots of one disk.
#[derive(Debug)]
pub(crate) struct OverlayMemory {
    mapping: Arc<Mapping>,
    granules: u64,
    slots: u32,
    /// Byte of the first word, and of the first slot.
    map: usize,
    data: usize,
}

/// Why preserved memory cannot be used.
#[derive(Debug)]
pub(crate) enum AdoptError {
    Memory(MemoryError),
    /// It is that of another disk, or of another size.
    Other(String),
}

fn layout(granules: u64, slots: u32) -> Option<(usize, usize, u64)> {
    let page = BYTES as u64;
    let bits = granules.div_ceil(PAGE_WORDS).div_ceil(8).next_multiple_of(page);
    let map = page + bits;
    let data = map + granules.checked_mul(8)?.checked_next_multiple_of(page)?;
    let bytes = data.checked_add(u64::from(slots).checked_mul(page)?)?;
    Some((usize::try_from(map).ok()?, usize::try_from(data).ok()?, bytes))
}

impl OverlayMemory {
    /// Allocates an empty map of `granules`, and `slots`.
    pub(crate) fn create(granules: u64, slots: u32) -> Result<Self, MemoryError> {
        let bad = MemoryError::BadRange { start: 0, len: granules };
        let (map, data, bytes) = layout(granules, slots).ok_or(bad)?;
        let mapping = Arc::new(Mapping::sealed("ringway-overlay", bytes)?);
        let memory = Self { mapping, granules, slots, map, data };
        for (field, value) in FIELDS.into_iter().zip([MAGIC, granules, slots.into(), 0]) {
            memory.field(field).store(value, Ordering::Release);
        }
        Ok(memory)
    }

    /// Takes over the memory of a former process.
    pub(crate) fn adopt(fd: &OwnedFd, granules: u64, slots: u32) -> Result<Self, AdoptError> {
        let bad = MemoryError::BadRange { start: 0, len: granules };
        let (map, data, bytes) = layout(granules, slots).ok_or(bad).map_err(AdoptError::Memory)?;
        let found = rustix::fs::fstat(fd).map(|found| u64::try_from(found.st_size).unwrap_or(0));
        if found != Ok(bytes) {
            let found = found.unwrap_or(0);
            return Err(AdoptError::Other(format!("it has {found} bytes, not {bytes}")));
        }
        let mapping = Arc::new(Mapping::keeping(fd.as_fd(), bytes).map_err(AdoptError::Memory)?);
        let memory = Self { mapping, granules, slots, map, data };
        let header = FIELDS.map(|field| memory.field(field).load(Ordering::Acquire));
        if header[..3] != [MAGIC, granules, slots.into()] {
            return Err(AdoptError::Other("its header is that of another disk".into()));
        }
        Ok(memory)
    }

    /// Returns the memory as a whole.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    fn field(&self, at: usize) -> &AtomicU64 {
        self.cell(at)
    }

    /// Number that the overflow file has, 0 if nothing was moved there yet.
    pub(crate) fn overflow_id(&self) -> &AtomicU64 {
        self.field(FIELDS[3])
    }

    fn cell(&self, at: usize) -> &AtomicU64 {
        /// Never used: the layout has all cells that are asked for.
        static OUTSIDE: AtomicU64 = AtomicU64::new(0);
        self.mapping.cells().get(at).unwrap_or(&OUTSIDE)
    }

    fn page_bit(&self, granule: u64) -> (&AtomicU64, u64) {
        let page = granule / PAGE_WORDS;
        (self.cell(BYTES / 8 + (page / 64) as usize), 1 << (page % 64))
    }

    fn word_cell(&self, granule: u64) -> &AtomicU64 {
        self.cell(self.map / 8 + granule as usize)
    }

    /// Returns the word of a granule.
    #[inline]
    pub(crate) fn word(&self, granule: u64) -> Word {
        let (bits, mask) = self.page_bit(granule);
        if bits.load(Ordering::Acquire) & mask == 0 {
            return Word::Base;
        }
        Word::from_bits(self.word_cell(granule).load(Ordering::Acquire))
    }

    fn claim_page(&self, granule: u64) {
        let (bits, mask) = self.page_bit(granule);
        if bits.load(Ordering::Relaxed) & mask == 0 {
            // Before the first word of the page.
            bits.fetch_or(mask, Ordering::SeqCst);
        }
    }

    /// Replaces the word of a granule. Returns the former one, which the caller retires.
    #[inline]
    pub(crate) fn exchange(&self, granule: u64, word: Word) -> Word {
        self.claim_page(granule);
        Word::from_bits(self.word_cell(granule).swap(word.bits(), Ordering::AcqRel))
    }

    /// Replaces the word of a granule if it is `old`. Returns whether it was.
    #[inline]
    pub(crate) fn exchange_if(&self, granule: u64, old: Word, new: Word) -> bool {
        self.claim_page(granule);
        let cell = self.word_cell(granule);
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        cell.compare_exchange(old.bits(), new.bits(), order, failed).is_ok()
    }

    /// Calls `with` for each granule that has a word other than [`Word::Base`], from `first` on, until
    /// it returns false.
    pub(crate) fn each_word(&self, first: u64, mut with: impl FnMut(u64, Word) -> bool) {
        let mut granule = first;
        while granule < self.granules {
            let (bits, mask) = self.page_bit(granule);
            let page_end = (granule / PAGE_WORDS + 1) * PAGE_WORDS;
            let bits = bits.load(Ordering::Acquire);
            if bits == 0 {
                // None of 64 pages.
                let pages = PAGE_WORDS * 64;
                granule = (granule / pages + 1) * pages;
            } else if bits & mask == 0 {
                granule = page_end;
            } else {
                for one in granule..page_end.min(self.granules) {
                    let word = self.word(one);
                    if word != Word::Base && !with(one, word) {
                        return;
                    }
                }
                granule = page_end;
            }
        }
    }

    /// Returns the first byte of a slot in [`Self::mapping`].
    #[inline]
    pub(crate) fn slot_at(&self, slot: u32) -> usize {
        self.data + slot as usize * BYTES
    }
}

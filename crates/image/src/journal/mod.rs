//! Journal of an image: references that are committed and not yet durable.
//!
//! The journal lies in memory that outlives the process: the keeper has it. So `kill -9` loses
//! nothing that was acknowledged, although no flush was asked for. It says nothing after a crash of
//! the host, which ends the keeper, too.
//!
//! ```text
//!   header  | entries of the owner           | ring of channel 0 | ring of channel 1 ...
//!   8 cells | 4 cells each: number, granule, | head, tail, then 2 cells a record:
//!           | word, number of the zero       | cluster and blocks, granule and state
//!           | that this entry replaced       |
//! ```
//! An entry counts once its number is stored, a record once the tail is stored: these are the last
//! stores. Entries of one granule: the one with the highest number holds.

mod ring;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::map::{Kind, Word};
pub use ring::{Record, RingWriter};

/// First cell of every journal: "ringwayj" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"ringway1");
const HEADER_CELLS: usize = 8;
/// Cell with the number of rings that have had a writer.
const USED_RINGS: usize = 4;
/// Cell with the number of entries that have been in use. Memory behind them was never touched.
const USED_ENTRIES: usize = 5;
const ENTRY_CELLS: usize = 4;

/// Memory of a journal: cells that the keeper and every successor share.
pub type Cells = Arc<dyn AsRef<[AtomicU64]> + Send + Sync>;

/// Sizes of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSize {
    /// Entries of the owner.
    pub entries: usize,
    /// Rings, one a channel. Channels beyond them ask the owner.
    pub rings: usize,
    /// Records of a ring.
    pub records: usize,
}

impl JournalSize {
    /// Returns the number of cells of 8 bytes, `None` on overflow.
    pub fn cells(&self) -> Option<usize> {
        let entries = self.entries.checked_mul(ENTRY_CELLS)?;
        let rings = self.rings.checked_mul(ring::cells(self.records)?)?;
        HEADER_CELLS.checked_add(entries)?.checked_add(rings)
    }
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum JournalError {
    /// The memory is smaller than the sizes say.
    #[error("the journal has {found} cells and needs {needed}")]
    Size {
        /// Present cells.
        found: usize,
        /// Needed cells.
        needed: usize,
    },
    /// Another program wrote the journal.
    #[error("the journal was written in another format; go back to the version that wrote it")]
    Format,
    /// The image has been changed without the journal.
    #[error(
        "the journal does not fit the image any more: another program has written to the image \
         since, or it is that of another one"
    )]
    Stale,
    /// The memory cannot be had.
    #[error("{problem}")]
    Memory {
        /// Cause, and the remedy.
        problem: String,
    },
    /// All entries are in use. A flush round frees them.
    #[error("the journal is full")]
    Full,
}

/// Journal of one image. The owner writes entries, each channel its ring.
#[derive(Clone)]
pub struct Journal {
    cells: Cells,
    size: JournalSize,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal({:?})", self.size)
    }
}

/// Location of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(usize);

/// One entry: the newest reference of a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the entry. Later entries have higher numbers.
    pub number: u64,
    /// The granule.
    pub granule: u64,
    /// [`Kind::Busy`]: granted, so that a channel fills the place. [`Kind::Zero`]: zeroes. Data:
    /// committed.
    pub word: Word,
    /// Of a granted entry: number of the entry with zeroes that it replaced and that may not be
    /// durable. 0: the reference in the image holds.
    pub zero_number: u64,
}

impl Entry {
    /// Returns whether a channel fills the place.
    pub fn is_granted(&self) -> bool {
        self.word.kind() == Kind::Busy
    }
}

impl Journal {
    /// Opens a journal in `cells`. Memory that is all zero becomes an empty journal.
    ///
    /// # Errors
    /// [`JournalError::Size`], [`JournalError::Format`].
    pub fn open(cells: Cells, size: JournalSize) -> Result<Self, JournalError> {
        let found = (*cells).as_ref().len();
        let needed = size.cells().unwrap_or(usize::MAX);
        if found < needed {
            return Err(JournalError::Size { found, needed });
        }
        let journal = Self { cells, size };
        let header = [MAGIC, size.entries as u64, size.rings as u64, size.records as u64];
        let read: Vec<_> = (0..4).map(|at| journal.cell(at).load(Ordering::Acquire)).collect();
        // The magic is stored last: without it the header may be half written.
        if read.first() == Some(&0) {
            for (at, value) in header.into_iter().enumerate().rev() {
                journal.cell(at).store(value, Ordering::Release);
            }
        } else if read != header {
            return Err(JournalError::Format);
        }
        Ok(journal)
    }

    fn cell(&self, at: usize) -> &AtomicU64 {
        // Checked against the size when the journal was opened. A wrong index must not panic.
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        (*self.cells).as_ref().get(at).unwrap_or(&NOWHERE)
    }

    fn entry_cell(&self, id: EntryId, part: usize) -> &AtomicU64 {
        self.cell(HEADER_CELLS + id.0 * ENTRY_CELLS + part)
    }

    fn read(&self, id: EntryId) -> Option<Entry> {
        let number = self.entry_cell(id, 0).load(Ordering::Acquire);
        let part = |part| self.entry_cell(id, part).load(Ordering::Acquire);
        let word = Word::from_bits(part(2));
        (number > 0).then(|| Entry { number, granule: part(1), word, zero_number: part(3) })
    }

    /// Returns the number of rings that may have records.
    fn used_rings(&self) -> usize {
        let used = self.cell(USED_RINGS).load(Ordering::Acquire);
        usize::try_from(used).unwrap_or(usize::MAX).min(self.size.rings)
    }

    /// Returns the number of entries that may be in use: the first ones.
    fn used_entries(&self) -> usize {
        let used = self.cell(USED_ENTRIES).load(Ordering::Acquire);
        usize::try_from(used).unwrap_or(usize::MAX).min(self.size.entries)
    }

    /// Makes a granted entry committed, by one store. For the channel that has the grant, after the
    /// data is written.
    pub fn commit(&self, id: EntryId, word: Word) {
        self.entry_cell(id, 2).store(word.bits(), Ordering::Release);
    }
}

/// The owner's side of a journal: an index of its entries.
#[derive(Debug)]
pub struct JournalOwner {
    journal: Journal,
    entries: BTreeMap<u64, EntryId>,
    /// Entries that have been in use and are free.
    free: Vec<EntryId>,
    /// First entry that was never in use.
    unused: usize,
    last_number: u64,
}

impl JournalOwner {
    /// Reads a journal that a former process may have left.
    pub fn new(journal: Journal) -> Self {
        let (mut entries, mut free) = (BTreeMap::<u64, EntryId>::new(), Vec::new());
        let (mut last_number, unused) = (0, journal.used_entries());
        for id in (0..unused).rev().map(EntryId) {
            let Some(entry) = journal.read(id) else {
                free.push(id);
                continue;
            };
            last_number = last_number.max(entry.number);
            // The process died between two stores of `put`: the older entry is superseded.
            let older = match entries.insert(entry.granule, id) {
                Some(other) if journal.read(other).is_some_and(|o| o.number > entry.number) => {
                    entries.insert(entry.granule, other)
                }
                other => other,
            };
            if let Some(older) = older {
                journal.entry_cell(older, 0).store(0, Ordering::Release);
                free.push(older);
            }
        }
        Self { journal, entries, free, unused, last_number }
    }

    /// Returns the journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns the entry of a granule.
    pub fn entry(&self, granule: u64) -> Option<(EntryId, Entry)> {
        let id = *self.entries.get(&granule)?;
        Some((id, self.journal.read(id)?))
    }

    /// Returns all entries by granule.
    pub fn entries(&self) -> impl Iterator<Item = (EntryId, Entry)> + '_ {
        self.entries.values().filter_map(|id| Some((*id, self.journal.read(*id)?)))
    }

    /// Returns whether `count` more granules can have entries. One entry stays free, so that every
    /// granule with an entry can get a new one.
    pub fn has_room(&self, count: usize) -> bool {
        self.free.len() + self.journal.size.entries - self.unused > count
    }

    /// Returns the number of entries that can be in use.
    pub(crate) fn size(&self) -> usize {
        self.journal.size.entries
    }

    fn take_free(&mut self) -> Option<EntryId> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        let id = EntryId(self.unused);
        if id.0 >= self.journal.size.entries {
            return None;
        }
        self.unused += 1;
        // Before the entry: a successor must find it.
        self.journal.cell(USED_ENTRIES).store(self.unused as u64, Ordering::Release);
        Some(id)
    }

    /// Writes a new entry for a granule, which replaces its former one. Returns where it is, and its
    /// number.
    ///
    /// # Errors
    /// [`JournalError::Full`].
    pub fn put(
        &mut self,
        granule: u64,
        word: Word,
        zero_number: u64,
    ) -> Result<(EntryId, u64), JournalError> {
        let id = self.take_free().ok_or(JournalError::Full)?;
        self.last_number += 1;
        let store = |part, value| self.journal.entry_cell(id, part).store(value, Ordering::Release);
        store(1, granule);
        store(2, word.bits());
        store(3, zero_number);
        store(0, self.last_number);
        if let Some(former) = self.entries.insert(granule, id) {
            self.journal.entry_cell(former, 0).store(0, Ordering::Release);
            self.free.push(former);
        }
        Ok((id, self.last_number))
    }

    /// Replaces the word of an entry. Its number stays.
    pub fn set_word(&mut self, id: EntryId, word: Word) {
        self.journal.commit(id, word);
    }

    /// Notes that the zeroes which a granted entry replaced are durable.
    pub fn clear_zero_number(&mut self, id: EntryId) {
        self.journal.entry_cell(id, 3).store(0, Ordering::Release);
    }

    /// Removes the entry of a granule.
    pub fn remove(&mut self, granule: u64) {
        if let Some(id) = self.entries.remove(&granule) {
            self.journal.entry_cell(id, 0).store(0, Ordering::Release);
            self.free.push(id);
        }
    }

    /// Returns the records of all rings that count, oldest first within a ring. With `granule`,
    /// only its records.
    pub fn records(&self, granule: Option<u64>) -> Vec<Record> {
        let rings = 0..self.journal.used_rings();
        let all = rings.flat_map(|ring| ring::records(&self.journal, ring));
        all.filter(|record| granule.is_none_or(|granule| record.granule == granule)).collect()
    }

    /// Returns the position after the last record of each ring.
    pub fn positions(&self) -> Vec<u64> {
        (0..self.journal.used_rings()).map(|ring| ring::tail(&self.journal, ring)).collect()
    }

    /// Drops the records of each ring before its position.
    pub fn drop_records(&mut self, positions: &[u64]) {
        for (ring, position) in positions.iter().enumerate() {
            ring::drop_to(&self.journal, ring, *position);
        }
    }
}

#[cfg(test)]
mod tests;

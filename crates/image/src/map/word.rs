//! One word of a block map: the location of one granule.
//!
//! ```text
//!   63            26 25      10 9     3 2    0
//!  +----------------+----------+-------+------+
//!  |     place      |   mask   | file  | kind |
//!  +----------------+----------+-------+------+
//! ```
//! One word says everything about a granule, so that a reader needs one load and a writer one
//! compare-exchange.

use std::fmt;

const KIND_BITS: u32 = 3;
const FILE_BITS: u32 = 7;
const MASK_BITS: u32 = 16;
const FILE_SHIFT: u32 = KIND_BITS;
const MASK_SHIFT: u32 = FILE_SHIFT + FILE_BITS;
const PLACE_SHIFT: u32 = MASK_SHIFT + MASK_BITS;

/// Number of files of a tree that a word can name.
pub const MAX_FILES: usize = 1 << FILE_BITS;
/// Number of files below the top that a word can name.
pub const LOWER_FILES: usize = MAX_FILES - 2;
/// File of a word whose blocks are zeroes in all layers below.
const NO_FILE: u8 = 127;
/// First place that a word cannot name: with units of 512 bytes, files of 128 TiB.
pub const MAX_PLACE: u64 = 1 << (64 - PLACE_SHIFT);

/// Kind of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Unknown: the owner of the map loads it.
    Ask = 0,
    /// Nothing is stored here: the layer below has the data.
    Below = 1,
    /// Reads as zeroes.
    Zero = 2,
    /// Blocks in the mask are stored at the place, the layer below has the others.
    OverBelow = 3,
    /// Blocks in the mask are stored at the place, the others read as zeroes.
    OverZero = 4,
    /// A channel fills a new cluster. Until it commits, the prior word holds.
    Busy = 5,
    /// Too fine for one word (compressed, or three states in one granule): the owner reads it.
    Mixed = 6,
    /// Stored at the place as a whole, and read-only: another reference uses the cluster, too.
    Shared = 7,
}

impl Kind {
    fn of(bits: u64) -> Self {
        match bits & 7 {
            0 => Self::Ask,
            1 => Self::Below,
            2 => Self::Zero,
            3 => Self::OverBelow,
            4 => Self::OverZero,
            5 => Self::Busy,
            6 => Self::Mixed,
            _ => Self::Shared,
        }
    }
}

/// Source of blocks that are not in the mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The layer below.
    Below,
    /// Zeroes.
    Zero,
}

/// Location in a file, in units of the map ([`crate::map::Layout::unit_bits`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    /// Creates a place. `None` if a word cannot name it.
    pub fn new(units: u64) -> Option<Self> {
        (units < MAX_PLACE).then_some(Self(units))
    }

    /// Returns the place in units.
    pub fn units(self) -> u64 {
        self.0
    }
}

/// Location of one granule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    /// Unknown.
    pub const ASK: Self = Self(Kind::Ask as u64);
    /// Stored below.
    pub const BELOW: Self = Self(Kind::Below as u64);
    /// Zeroes.
    pub const ZERO: Self = Self(Kind::Zero as u64);
    /// Read by the owner.
    pub const MIXED: Self = Self(Kind::Mixed as u64);

    /// Creates the word of blocks in the top file of a tree.
    pub fn data(place: Place, mask: u16, base: Base) -> Self {
        Self::data_in(0, place, mask, base)
    }

    /// Creates the word of blocks in file `file` of a tree, counted from the top. Only the low 7
    /// bits of `file` count: trees have at most [`MAX_FILES`] files.
    pub fn data_in(file: u8, place: Place, mask: u16, base: Base) -> Self {
        let kind = match base {
            Base::Below => Kind::OverBelow,
            Base::Zero => Kind::OverZero,
        };
        Self::pack(kind, u64::from(file), mask, place)
    }

    /// Creates the word of a granule that the top does not have: blocks of the mask lie in file
    /// `file` below, counted from 0. `None` if a word cannot name the file. The word is a note of
    /// the map, which no image stores.
    pub fn lower(file: usize, place: Place, mask: u16, base: Base) -> Option<Self> {
        let number = u8::try_from(file + 1).ok().filter(|_| file < LOWER_FILES)?;
        Some(Self::data_in(number, place, mask, base))
    }

    /// Creates the word of a granule that the top does not have, and that is zero in all layers
    /// below. As [`Self::lower`], it is a note of the map.
    pub fn lower_zero() -> Self {
        Self::data_in(NO_FILE, Place(0), 0, Base::Zero)
    }

    /// Returns the word of the top alone: [`Self::BELOW`] for a note of what the layers below have.
    #[must_use]
    pub fn in_top(self) -> Self {
        if self.is_data() && self.file() != 0 { Self::BELOW } else { self }
    }

    /// Returns the file below the top that has the blocks, counted from 0.
    pub fn lower_file(self) -> Option<usize> {
        let number = usize::from(self.file());
        if self.is_data() { number.checked_sub(1) } else { None }
    }

    /// Creates the word of a whole granule that must not be written in place.
    pub fn shared(place: Place) -> Self {
        Self::pack(Kind::Shared, 0, u16::MAX, place)
    }

    fn pack(kind: Kind, file: u64, mask: u16, place: Place) -> Self {
        let file = file & ((1 << FILE_BITS) - 1);
        let (mask, place) = (u64::from(mask) << MASK_SHIFT, place.0 << PLACE_SHIFT);
        Self(kind as u64 | file << FILE_SHIFT | mask | place)
    }

    /// Creates the word of a granule that a channel fills, while `prior` still holds. The file of
    /// `prior` must be the top's.
    pub fn busy(prior: Self) -> Self {
        let kind = prior.0 & 7;
        Self(prior.0 & !(7 | 127 << FILE_SHIFT) | Kind::Busy as u64 | kind << FILE_SHIFT)
    }

    /// Returns the word as stored.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Decodes a stored word. Every value is a word.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the kind.
    pub fn kind(self) -> Kind {
        Kind::of(self.0)
    }

    /// Returns whether blocks are stored at [`Self::place`], and may be written there if
    /// [`Self::file`] is 0.
    pub fn is_data(self) -> bool {
        matches!(self.kind(), Kind::OverBelow | Kind::OverZero)
    }

    /// Returns whether these blocks are stored at [`Self::place`]: for a write, in the top file, and
    /// not shared.
    #[inline]
    pub fn has_blocks(self, blocks: u16, writes: bool) -> bool {
        const DATA: u64 = 1 << Kind::OverBelow as u64 | 1 << Kind::OverZero as u64;
        const READABLE: u64 = DATA | 1 << Kind::Shared as u64;
        let kinds = if writes { DATA } else { READABLE };
        kinds >> (self.0 & 7) & 1 == 1
            && blocks & !self.mask() == 0
            && (!writes || self.file() == 0)
    }

    /// Returns the file of the place, counted from the top.
    pub fn file(self) -> u8 {
        (self.0 >> FILE_SHIFT) as u8 & 127
    }

    /// Returns the mask of stored blocks, the first block in the lowest bit.
    pub fn mask(self) -> u16 {
        (self.0 >> MASK_SHIFT) as u16
    }

    /// Returns the place of the first block.
    pub fn place(self) -> Place {
        Place(self.0 >> PLACE_SHIFT)
    }

    /// Returns the source of blocks outside of the mask.
    pub fn base(self) -> Base {
        match self.kind() {
            Kind::OverZero | Kind::Zero => Base::Zero,
            _ => Base::Below,
        }
    }

    /// Returns the word that holds for readers: of a busy granule the prior word.
    #[must_use]
    pub fn readable(self) -> Self {
        if self.kind() != Kind::Busy {
            return self;
        }
        let kind = self.0 >> FILE_SHIFT & 7;
        Self(self.0 & !(7 | 127 << FILE_SHIFT) | kind)
    }

    /// Returns the word with more blocks in its mask.
    #[must_use]
    pub fn with_blocks(self, blocks: u16) -> Self {
        Self(self.0 | u64::from(blocks) << MASK_SHIFT)
    }

    /// Returns whether this word and `other` are data at the same place of the same file.
    pub fn is_same_cluster(self, other: Self) -> bool {
        let at = |word: Self| (word.file(), word.place());
        self.is_data() && other.is_data() && at(self) == at(other)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind())?;
        match self.kind() {
            Kind::OverBelow | Kind::OverZero | Kind::Shared => {
                write!(f, "({}:{}, {:#x})", self.file(), self.place().0, self.mask())
            }
            Kind::Busy => write!(f, "({:?})", self.readable()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_parts() {
        let place = Place::new(MAX_PLACE - 1).unwrap();
        assert_eq!(Place::new(MAX_PLACE), None);
        for (base, kind) in [(Base::Below, Kind::OverBelow), (Base::Zero, Kind::OverZero)] {
            let word = Word::data_in(127, place, 0x8001, base);
            assert_eq!((word.kind(), word.file(), word.mask()), (kind, 127, 0x8001));
            assert_eq!((word.place(), word.base()), (place, base));
            assert_eq!(word.with_blocks(0x10).mask(), 0x8011);
            assert!(word.is_same_cluster(word.with_blocks(2)));
        }
    }

    #[test]
    fn blocks_are_where_a_word_says() {
        let place = Place::new(7).unwrap();
        let data = Word::data(place, 6, Base::Zero);
        let lower = Word::lower(0, place, 6, Base::Below).unwrap();
        for (word, blocks, reads, writes) in [
            (data, 6, true, true),
            (data, 7, false, false),
            (lower, 2, true, false),
            (Word::shared(place), u16::MAX, true, false),
            (Word::busy(data), 2, false, false),
            (Word::BELOW, 1, false, false),
            (Word::ASK, 0, false, false),
        ] {
            let found = (word.has_blocks(blocks, false), word.has_blocks(blocks, true));
            assert_eq!(found, (reads, writes), "{word:?} {blocks}");
        }
    }

    #[test]
    fn a_note_of_a_lower_file_is_below_for_the_top() {
        let place = Place::new(7).unwrap();
        let noted = Word::lower(3, place, 5, Base::Zero).unwrap();
        assert_eq!((noted.lower_file(), noted.mask(), noted.in_top()), (Some(3), 5, Word::BELOW));
        assert_eq!(Word::lower(LOWER_FILES, place, 5, Base::Zero), None);
        let zero = Word::lower_zero();
        assert_eq!((zero.mask(), zero.base(), zero.in_top()), (0, Base::Zero, Word::BELOW));
        for word in [Word::data(place, 1, Base::Below), Word::shared(place), Word::ZERO] {
            assert_eq!((word.lower_file(), word.in_top()), (None, word));
        }
    }

    #[test]
    fn a_busy_word_keeps_the_prior_word() {
        let place = Place::new(77).unwrap();
        let data = Word::data(place, 3, Base::Zero);
        for prior in [Word::BELOW, Word::ZERO, Word::MIXED, Word::shared(place), data] {
            let busy = Word::busy(prior);
            assert_eq!((busy.kind(), busy.readable()), (Kind::Busy, prior));
        }
        assert_eq!(data.readable(), data);
    }
}

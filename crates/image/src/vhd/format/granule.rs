//! Bits of a granule as words of the map, and back.

use crate::map::{Base, Place, Word};
use crate::vhd::SECTOR;

/// Shift of a granule: 64 KiB.
pub(super) const GRANULE_BITS: u8 = 16;
pub(super) const GRANULE_BYTES: u64 = 1 << GRANULE_BITS;
/// Shift of a block of the map: 4 KiB, which one byte of the bitmap stands for.
pub(super) const BLOCK_BITS: u8 = 12;
/// Shift of the unit of places: 512 bytes.
pub(super) const UNIT_BITS: u8 = 9;
/// Bytes of a granule's bits.
pub(super) const BITS_BYTES: usize = 16;
const FULL: u16 = u16::MAX;

/// Bits of the sectors of a granule, the first sector in the highest bit of the first byte.
pub(super) type Bits = [u8; BITS_BYTES];

/// Conversion between bits and words.
#[derive(Clone, Copy, Debug)]
pub(super) struct GranuleFormat {
    /// Size of the disk in bytes.
    pub(super) size: u64,
    pub(super) has_below: bool,
    /// Whether blocks of 4 KiB are written one by one. Else the first write to a granule stores it as
    /// a whole.
    pub(super) has_blocks: bool,
}

impl GranuleFormat {
    fn base(&self) -> Base {
        if self.has_below { Base::Below } else { Base::Zero }
    }

    /// Returns the word of a granule whose block is absent.
    pub(super) fn absent(&self) -> Word {
        if self.has_below { Word::BELOW } else { Word::ZERO }
    }

    /// Sets the bits behind the end of the disk if all others are set.
    fn with_end(&self, granule: u64, mut bits: Bits) -> Bits {
        let start = granule << GRANULE_BITS;
        let inside = self.size.saturating_sub(start).div_ceil(SECTOR).min(128);
        // At most 128.
        let behind = u128::MAX.checked_shr(inside as u32).unwrap_or(0);
        let value = u128::from_be_bytes(bits) | behind;
        if value == u128::MAX {
            bits = [0xff; BITS_BYTES];
        }
        bits
    }

    /// Returns the word of a granule with these bits at a place.
    pub(super) fn word(&self, granule: u64, place: Place, bits: Bits) -> Word {
        let bits = self.with_end(granule, bits);
        let mut mask = 0;
        for (block, byte) in bits.into_iter().enumerate() {
            match byte {
                0 => {}
                0xff => mask |= 1 << block,
                _ => return Word::MIXED,
            }
        }
        match mask {
            _ if self.has_blocks || mask == FULL => Word::data(place, mask, self.base()),
            0 => self.absent(),
            _ => Word::MIXED,
        }
    }

    /// Returns the bits of a word. `None` if no bits can say it.
    pub(super) fn bits(&self, word: Word) -> Option<Bits> {
        if word == self.absent() {
            return Some([0; BITS_BYTES]);
        }
        if !word.is_data() || word.file() != 0 || (word.base() == Base::Zero && self.has_below) {
            return None;
        }
        let mut bits = [0; BITS_BYTES];
        for (block, byte) in bits.iter_mut().enumerate() {
            *byte = if word.mask() >> block & 1 == 1 { 0xff } else { 0 };
        }
        Some(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: fn() -> Place = || Place::new(4096).unwrap();

    #[test]
    fn a_byte_of_bits_is_a_block() {
        let format = GranuleFormat { size: 1 << 20, has_below: true, has_blocks: true };
        let mut bits = [0; BITS_BYTES];
        let word = |bits| format.word(0, PLACE(), bits);
        assert_eq!(word(bits), Word::data(PLACE(), 0, Base::Below));
        (bits[0], bits[15]) = (0xff, 0xff);
        assert_eq!(word(bits), Word::data(PLACE(), 0x8001, Base::Below));
        assert_eq!(format.bits(word(bits)), Some(bits));
        bits[7] = 0x80;
        assert_eq!(word(bits), Word::MIXED);
        assert_eq!(format.bits(Word::BELOW), Some([0; BITS_BYTES]));
        assert_eq!(format.bits(Word::ZERO), None, "a bit cannot hide the parent");
    }

    #[test]
    fn a_disk_that_ends_within_a_block_has_whole_granules() {
        let size = (1 << 20) + 1536;
        let format = GranuleFormat { size, has_below: false, has_blocks: false };
        let mut bits = [0; BITS_BYTES];
        assert_eq!(format.word(3, PLACE(), bits), Word::ZERO);
        bits[0] = 0xff;
        assert_eq!(format.word(3, PLACE(), bits), Word::MIXED);
        // The last granule has three sectors.
        let full = Word::data(PLACE(), FULL, Base::Zero);
        bits[0] = 0xe0;
        assert_eq!(format.word(16, PLACE(), bits), full);
        assert_eq!(format.word(15, PLACE(), [0xff; BITS_BYTES]), full);
        bits[0] = 0xc0;
        assert_eq!(format.word(16, PLACE(), bits), Word::MIXED);
    }
}

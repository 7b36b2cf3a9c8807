//! Where a granule is.

/// Place of a granule. A fresh map is full of zeroes, which say [`Word::Base`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// In the base: it was never written.
    Base,
    /// Nowhere: it reads as zeroes.
    Zero,
    /// In a slot.
    Slot(u32),
    /// At a place of the overflow file.
    Place(u64),
}

const BASE: u64 = 0;
const ZERO: u64 = 1;
const SLOT: u64 = 2;
const PLACE: u64 = 3;
const KIND_BITS: u32 = 2;

impl Word {
    /// Returns the number that stands for the word in the map.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Self::Base => BASE,
            Self::Zero => ZERO,
            Self::Slot(slot) => u64::from(slot) << KIND_BITS | SLOT,
            Self::Place(place) => place << KIND_BITS | PLACE,
        }
    }

    /// Returns the word of a number. Its slot or place may not exist.
    pub(crate) fn from_bits(bits: u64) -> Self {
        let number = bits >> KIND_BITS;
        match bits & 3 {
            SLOT => Self::Slot(u32::try_from(number).unwrap_or(u32::MAX)),
            PLACE => Self::Place(number),
            ZERO => Self::Zero,
            _ => Self::Base,
        }
    }

    /// Returns whether the granule takes space of its own.
    pub(crate) fn takes_space(self) -> bool {
        matches!(self, Self::Slot(_) | Self::Place(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_has_one_number() {
        assert_eq!(Word::Base.bits(), 0, "a fresh map");
        for word in
            [Word::Base, Word::Zero, Word::Slot(0), Word::Slot(u32::MAX), Word::Place(1 << 50)]
        {
            assert_eq!(Word::from_bits(word.bits()), word);
        }
    }
}

//! L2 entries as words of the map, and back.

use crate::map::{Base, Kind, Place, Word};
use crate::qcow2::header::Header;
use crate::qcow2::l2::{Cluster, EntryFormat, L2Entry, SUBCLUSTERS};

/// Shift of the unit of places: 512 bytes.
pub(super) const UNIT_BITS: u32 = 9;
/// Smallest block in bytes, if a cluster is not smaller.
const MIN_BLOCK_BITS: u32 = 12;
/// Shift of the most blocks of a cluster.
const MAX_BLOCKS_BITS: u32 = 4;

/// Returns the shift of a block of an image.
pub(crate) fn block_bits(header: &Header) -> u32 {
    let bits = header.cluster_bits;
    (bits - MAX_BLOCKS_BITS).max(MIN_BLOCK_BITS).min(bits)
}

/// Conversion between L2 entries and words.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordFormat {
    entries: EntryFormat,
    has_below: bool,
    block_bits: u32,
}

impl WordFormat {
    pub(super) fn new(header: &Header, has_below: bool) -> Self {
        Self { entries: header.entry_format(), has_below, block_bits: block_bits(header) }
    }

    /// Returns the shift of a block.
    pub(super) fn block_bits(&self) -> u32 {
        self.block_bits
    }

    /// Returns whether a layer below has what the image does not have.
    pub(super) fn has_below(&self) -> bool {
        self.has_below
    }

    /// Returns the number of subclusters of a block.
    fn group(&self) -> u32 {
        SUBCLUSTERS >> (self.entries.cluster_bits - self.block_bits)
    }

    /// Returns the mask of a cluster whose blocks are all stored.
    pub(super) fn full(&self) -> u16 {
        u16::MAX >> (16 - SUBCLUSTERS / self.group())
    }

    /// Returns the word of a granule without an entry.
    pub(super) fn absent(&self) -> Word {
        if self.has_below { Word::BELOW } else { Word::ZERO }
    }

    /// Returns the blocks whose subclusters are all in `bits`. `None` if a block is so in part.
    fn blocks(&self, bits: u32) -> Option<u16> {
        let group = self.group();
        let all = u32::MAX >> (SUBCLUSTERS - group);
        (0..SUBCLUSTERS / group).try_fold(0, |mask, block| match bits >> (block * group) & all {
            0 => Some(mask),
            part if part == all => Some(mask | 1 << block),
            _ => None,
        })
    }

    /// Returns the subclusters of blocks.
    fn subclusters(&self, mask: u16) -> u32 {
        let group = self.group();
        let all = u32::MAX >> (SUBCLUSTERS - group);
        let blocks = (0..SUBCLUSTERS / group).filter(|block| mask >> block & 1 == 1);
        blocks.fold(0, |bits, block| bits | all << (block * group))
    }

    /// Returns the word of an entry. `None` if no word can name its place.
    pub(super) fn word(&self, entry: &L2Entry) -> Option<Word> {
        let L2Entry::Cluster(cluster) = entry else { return Some(Word::MIXED) };
        let Cluster { host, copied, data, zero } = *cluster;
        // Without a layer below, what is not there is zero.
        let zero = if self.has_below { zero } else { !data };
        let (Some(stored), Some(zero)) = (self.blocks(data), self.blocks(zero)) else {
            return Some(Word::MIXED);
        };
        let absent = self.full() & !(stored | zero);
        if zero != 0 && absent != 0 {
            return Some(Word::MIXED);
        }
        let base = if zero != 0 || !self.has_below { Base::Zero } else { Base::Below };
        let is_empty = stored == 0 && !(self.entries.is_extended && copied);
        let Some(host) = host.filter(|_| !is_empty) else {
            return Some(if base == Base::Zero { Word::ZERO } else { Word::BELOW });
        };
        let place = Place::new(host >> UNIT_BITS)?;
        Some(match (copied, stored == self.full()) {
            (true, _) => Word::data(place, stored, base),
            (false, true) => Word::shared(place),
            (false, false) => Word::MIXED,
        })
    }

    /// Returns the state that a word stands for. `None` if an entry cannot say it.
    pub(super) fn cluster(&self, word: Word) -> Option<Cluster> {
        match word.kind() {
            Kind::Below => Some(Cluster::default()),
            Kind::Zero if self.entries.has_zero_flag => {
                Some(Cluster { zero: u32::MAX, ..Cluster::default() })
            }
            Kind::Zero => (!self.has_below).then(Cluster::default),
            Kind::OverBelow | Kind::OverZero if word.file() == 0 => {
                let stored = word.mask() & self.full();
                let host = word.place().units().checked_shl(UNIT_BITS)?;
                let is_cluster = host != 0 && host.is_multiple_of(1 << self.entries.cluster_bits);
                let is_possible = self.entries.is_extended || stored == self.full();
                let data = self.subclusters(stored);
                let zero = if word.base() == Base::Zero { !data } else { 0 };
                let cluster = Cluster { host: Some(host), copied: true, data, zero };
                (is_cluster && is_possible).then_some(cluster)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn format(cluster_bits: u32, is_extended: bool, has_below: bool) -> WordFormat {
        let entries = EntryFormat { cluster_bits, is_extended, has_zero_flag: true };
        let block_bits = (cluster_bits - 4).max(12).min(cluster_bits);
        WordFormat { entries, has_below, block_bits }
    }

    fn cluster(copied: bool, data: u32, zero: u32) -> L2Entry {
        L2Entry::Cluster(Cluster { host: Some(1 << 20), copied, data, zero })
    }

    #[test]
    fn standard_entries_are_whole_words() {
        let place = Place::new(1 << 11).unwrap();
        for (bits, mask) in [(9, 1), (12, 1), (14, 0xf), (16, 0xffff), (21, 0xffff)] {
            let below = format(bits, false, true);
            let data = Word::data(place, mask, Base::Below);
            assert_eq!(below.word(&cluster(true, u32::MAX, 0)), Some(data));
            assert_eq!(below.word(&cluster(false, u32::MAX, 0)), Some(Word::shared(place)));
            assert_eq!(below.word(&cluster(true, 0, u32::MAX)), Some(Word::ZERO));
            assert_eq!(below.word(&L2Entry::Cluster(Cluster::default())), Some(Word::BELOW));
            let alone = format(bits, false, false);
            assert_eq!(alone.word(&L2Entry::Cluster(Cluster::default())), Some(Word::ZERO));
        }
        let partial = Word::data(place, 1, Base::Below);
        assert_eq!(format(16, false, true).cluster(partial), None);
    }

    #[test]
    fn states_that_one_word_cannot_say_are_mixed() {
        let (below, alone) = (format(16, true, true), format(16, true, false));
        let place = Place::new(1 << 11).unwrap();
        for (copied, data, zero) in [(true, 1, 0), (true, 3, 0xc), (true, 3, 4), (false, 3, 0)] {
            assert_eq!(
                below.word(&cluster(copied, data, zero)),
                Some(Word::MIXED),
                "{data} {zero}"
            );
        }
        assert_eq!(below.word(&cluster(true, 3, 0)), Some(Word::data(place, 1, Base::Below)));
        assert_eq!(alone.word(&cluster(true, 3, 4)), Some(Word::data(place, 1, Base::Zero)));
        assert_eq!(below.word(&cluster(true, 0, 0)), Some(Word::data(place, 0, Base::Below)));
        assert_eq!(below.word(&cluster(false, 0, 0)), Some(Word::BELOW));
    }

    proptest! {
        #[test]
        fn every_word_of_the_owner_comes_back(
            bits in 14u32..=21, has_below: bool, mask: u16, is_zero: bool, host in 1u64..1 << 20,
        ) {
            let format = format(bits, true, has_below);
            let base = if is_zero || !has_below { Base::Zero } else { Base::Below };
            let place = Place::new(host << (bits - UNIT_BITS)).unwrap();
            let word = Word::data(place, mask & format.full(), base);
            let cluster = format.cluster(word).unwrap();
            let found = format.word(&L2Entry::Cluster(cluster)).unwrap();
            prop_assert!(found.is_same_cluster(word));
            prop_assert_eq!(found.mask(), word.mask());
            // A full mask has no base.
            prop_assert!(found.base() == base || word.mask() == format.full());
            for word in [Word::ZERO, format.absent()] {
                let cluster = format.cluster(word).unwrap();
                prop_assert_eq!(format.word(&L2Entry::Cluster(cluster)), Some(word));
            }
        }
    }
}

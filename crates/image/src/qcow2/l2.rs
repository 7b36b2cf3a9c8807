//! L1 and L2 entries.

/// Number of subclusters of a cluster with an extended L2 entry.
pub const SUBCLUSTERS: u32 = 32;

/// Bits of an entry that contain an offset in the file.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
/// The cluster has exactly one reference, so it may be written in place.
pub(super) const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zero (standard entries of version 3).
const ZERO: u64 = 1;
/// Unit of the length of compressed data, in bytes.
const SECTOR: u64 = 512;

/// Encoding of the L2 entries of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryFormat {
    /// Shift of the cluster size.
    pub(super) cluster_bits: u32,
    /// Whether entries have a bitmap of subclusters.
    pub(super) is_extended: bool,
    /// Whether entries may say that a cluster reads as zero.
    pub(super) has_zero_flag: bool,
}

/// State of one cluster of the disk in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L2Entry {
    /// Uncompressed or absent.
    Cluster(Cluster),
    /// Compressed.
    Compressed(Compressed),
}

/// State of an uncompressed or absent cluster. Bit n of a mask stands for subcluster n. Without
/// extended L2 entries, the bits of a mask are equal. A subcluster in neither mask is that of the
/// backing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Offset of the cluster in the file in bytes, if one is allocated.
    pub host: Option<u64>,
    /// Whether the allocated cluster has no other reference.
    pub copied: bool,
    /// Subclusters whose bytes are in the allocated cluster.
    pub data: u32,
    /// Subclusters that read as zero.
    pub zero: u32,
}

/// Place of compressed data of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Most bytes that the data may have, up to two clusters and a sector.
    pub bytes: u64,
}

/// Place of the bytes of a range of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// The backing has them; without a backing they are zero.
    Unallocated,
    /// They are zero.
    Zero,
    /// The file has them.
    Data {
        /// Offset of the first byte in the file.
        host_offset: u64,
        /// Whether their cluster may be written in place.
        copied: bool,
    },
    /// The file has their cluster compressed.
    Compressed(Compressed),
}

/// Parsed L1 entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct L1Entry {
    /// Offset of the L2 table in the file.
    pub(super) table: u64,
    /// Whether the L2 table has no other reference.
    pub(super) copied: bool,
}

impl L1Entry {
    /// Parses an entry. `None` stands for an absent table.
    ///
    /// # Errors
    /// The broken rule.
    pub(super) fn parse(word: u64, cluster_bits: u32) -> Result<Option<Self>, String> {
        let table = word & OFFSET_MASK;
        if word & !(OFFSET_MASK | COPIED) != 0 {
            return Err(format!("reserved bits are set in {word:#018x}"));
        }
        if !table.is_multiple_of(1 << cluster_bits) {
            return Err(format!("the L2 table at {table:#x} begins within a cluster"));
        }
        Ok((table != 0).then_some(Self { table, copied: word & COPIED != 0 }))
    }
}

impl EntryFormat {
    /// Returns the size of an entry in bytes.
    pub fn bytes(self) -> u64 {
        if self.is_extended { 16 } else { 8 }
    }

    /// Parses an entry; `bitmap` is the second word of an extended one and 0 otherwise.
    ///
    /// # Errors
    /// The broken rule, as text.
    pub fn parse(self, word: u64, bitmap: u64) -> Result<L2Entry, String> {
        if word & COMPRESSED != 0 {
            return self.parse_compressed(word, bitmap).map(L2Entry::Compressed);
        }
        let has_zero_flag = self.has_zero_flag && !self.is_extended;
        let allowed = OFFSET_MASK | COPIED | if has_zero_flag { ZERO } else { 0 };
        if word & !allowed != 0 {
            return Err(format!("reserved bits are set in {word:#018x}"));
        }
        let offset = word & OFFSET_MASK;
        if !offset.is_multiple_of(1 << self.cluster_bits) {
            return Err(format!("the cluster at {offset:#x} begins within a cluster"));
        }
        let host = (offset != 0).then_some(offset);
        let (data, zero) = match (self.is_extended, word & ZERO != 0, host) {
            // The low half says what is allocated, the high half what reads as zero.
            (true, ..) => (bitmap as u32, (bitmap >> 32) as u32),
            (false, true, _) => (0, u32::MAX),
            (false, false, Some(_)) => (u32::MAX, 0),
            (false, false, None) => (0, 0),
        };
        if data & zero != 0 {
            return Err(format!("subclusters are both allocated and zero in {bitmap:#018x}"));
        }
        if data != 0 && host.is_none() {
            return Err(format!("subclusters of no cluster are allocated in {bitmap:#018x}"));
        }
        let copied = host.is_some() && word & COPIED != 0;
        Ok(L2Entry::Cluster(Cluster { host, copied, data, zero }))
    }

    fn parse_compressed(self, word: u64, bitmap: u64) -> Result<Compressed, String> {
        if bitmap != 0 {
            return Err(format!("a compressed cluster has subclusters {bitmap:#018x}"));
        }
        if word & COPIED != 0 {
            return Err(format!("a compressed cluster is marked as copied in {word:#018x}"));
        }
        let offset_bits = 62 - (self.cluster_bits - 8);
        let offset = word & ((1 << offset_bits) - 1);
        let sectors = (word & (COMPRESSED - 1)) >> offset_bits;
        // Length counts from the first byte to the end of the last sector.
        let bytes = (sectors + 1) * SECTOR - offset % SECTOR;
        if offset == 0 || offset > OFFSET_MASK {
            return Err(format!("compressed data at {offset:#x}"));
        }
        Ok(Compressed { offset, bytes })
    }

    /// Returns the words of an entry; the second one is 0 without subclusters. A mask without
    /// subclusters counts as set if any of its bits is.
    pub fn to_words(self, cluster: &Cluster) -> (u64, u64) {
        let copied = if cluster.copied { COPIED } else { 0 };
        let word = cluster.host.unwrap_or(0) | copied;
        if self.is_extended {
            (word, u64::from(cluster.zero) << 32 | u64::from(cluster.data))
        } else {
            (word | if cluster.zero != 0 { ZERO } else { 0 }, 0)
        }
    }
}

impl Cluster {
    /// Returns the state of subcluster `index`, whose first byte is `within` bytes into the cluster,
    /// and the number of subclusters from there on that have the same state.
    pub(super) fn mapping(&self, index: u32, within: u64) -> (Mapping, u32) {
        let state = |index: u32| (self.data >> index & 1 != 0, self.zero >> index & 1 != 0);
        let first = state(index);
        let same = (index..SUBCLUSTERS).take_while(|&index| state(index) == first).count();
        let mapping = match (first, self.host) {
            ((true, _), Some(host)) => {
                Mapping::Data { host_offset: host + within, copied: self.copied }
            }
            ((_, true), _) => Mapping::Zero,
            _ => Mapping::Unallocated,
        };
        (mapping, u32::try_from(same).unwrap_or(SUBCLUSTERS))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXTENDED: EntryFormat =
        EntryFormat { cluster_bits: 16, is_extended: true, has_zero_flag: true };
    const PLAIN: EntryFormat = EntryFormat { is_extended: false, ..EXTENDED };
    const V2: EntryFormat = EntryFormat { has_zero_flag: false, ..PLAIN };

    fn parse(format: EntryFormat, word: u64, bitmap: u64) -> Cluster {
        match format.parse(word, bitmap) {
            Ok(L2Entry::Cluster(cluster)) => cluster,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn standard_entries_are_one_state_for_the_whole_cluster() {
        let absent = Cluster::default();
        assert_eq!(parse(PLAIN, 0, 0), absent);
        let data = Cluster { host: Some(0x5_0000), copied: true, data: u32::MAX, zero: 0 };
        assert_eq!(parse(PLAIN, COPIED | 0x5_0000, 0), data);
        let zero = Cluster { host: Some(0x5_0000), copied: false, data: 0, zero: u32::MAX };
        assert_eq!(parse(PLAIN, 0x5_0001, 0), zero);
        assert_eq!(
            data.mapping(31, 63488).0,
            Mapping::Data { host_offset: 0x5_f800, copied: true }
        );
    }

    #[test]
    fn broken_entries_are_refused() {
        let compressed = COMPRESSED | 0x5_0000;
        for (format, word, bitmap) in [
            (V2, 0x5_0001, 0),                 // zero flag before version 3
            (EXTENDED, 0x5_0001, 0),           // and with subclusters
            (PLAIN, 0x5_0002, 0),              // reserved
            (PLAIN, 1 << 61 | 0x5_0000, 0),    // reserved
            (PLAIN, 0x5_0200, 0),              // within a cluster
            (EXTENDED, 0x5_0000, 1 << 32 | 1), // allocated and zero
            (EXTENDED, 0, 1),                  // allocated nowhere
            (EXTENDED, compressed, 1),         // compressed with subclusters
            (PLAIN, compressed | COPIED, 0),   // compressed and copied
            (PLAIN, COMPRESSED, 0),            // at the header
        ] {
            assert!(format.parse(word, bitmap).is_err(), "{word:#x} {bitmap:#x}");
        }
        assert!(L1Entry::parse(0x5_0001, 16).is_err());
        assert!(L1Entry::parse(0x5_8000, 16).is_err());
        assert_eq!(L1Entry::parse(0, 16), Ok(None));
    }

    #[test]
    fn runs_of_subclusters_end_where_the_state_changes() {
        let cluster = Cluster { host: Some(1 << 16), copied: true, data: 0b0110, zero: 0b1000 };
        assert_eq!(cluster.mapping(0, 0), (Mapping::Unallocated, 1));
        let data = Mapping::Data { host_offset: (1 << 16) + 2048, copied: true };
        assert_eq!(cluster.mapping(1, 2048), (data, 2));
        assert_eq!(cluster.mapping(3, 6144), (Mapping::Zero, 1));
        assert_eq!(cluster.mapping(4, 8192), (Mapping::Unallocated, 28));
    }

    proptest! {
        #[test]
        fn valid_entries_survive_a_round_trip(
            host in 0u64..1 << 40, copied: bool, data: u32, zero: u32, extended: bool,
        ) {
            let format = if extended { EXTENDED } else { PLAIN };
            let host = (host != 0).then_some(host << 16);
            let (data, zero) = match (extended, host) {
                (true, Some(_)) => (data & !zero, zero),
                (true, None) => (0, zero),
                (false, _) if zero % 2 == 0 => (0, u32::MAX),
                (false, Some(_)) => (u32::MAX, 0),
                (false, None) => (0, 0),
            };
            let cluster = Cluster { host, copied: copied && host.is_some(), data, zero };
            let (word, bitmap) = format.to_words(&cluster);
            prop_assert_eq!(format.parse(word, bitmap), Ok(L2Entry::Cluster(cluster)));
        }

        #[test]
        fn any_words_parse_without_a_panic(word: u64, bitmap: u64, bits in 9u32..=21) {
            for is_extended in [false, true] {
                let format = EntryFormat { cluster_bits: bits, is_extended, has_zero_flag: true };
                if let Ok(L2Entry::Compressed(compressed)) = format.parse(word, bitmap) {
                    prop_assert!(compressed.bytes <= (2 << bits) + SECTOR);
                }
            }
        }
    }
}

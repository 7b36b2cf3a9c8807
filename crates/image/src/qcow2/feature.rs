//! Feature bits of version 3.

/// Feature bits of a header. All are zero in version 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Features without which an image must not be opened.
    pub incompatible: u64,
    /// Features that may be ignored.
    pub compatible: u64,
    /// Features that a writer which does not know them must clear.
    pub autoclear: u64,
}

/// Incompatible features.
pub struct Incompatible;

impl Incompatible {
    /// Refcounts may be wrong, because a writer did not end.
    pub const DIRTY: u64 = 1;
    /// Tables are damaged.
    pub const CORRUPT: u64 = 1 << 1;
    /// Guest data is in another file.
    pub const DATA_FILE: u64 = 1 << 2;
    /// The header names the compression method.
    pub const COMPRESSION: u64 = 1 << 3;
    /// L2 entries have a bitmap of subclusters.
    pub const EXTENDED_L2: u64 = 1 << 4;
    /// All of the above.
    pub const KNOWN: u64 = (1 << 5) - 1;
}

/// Autoclear bit: the bitmaps agree with the data.
pub(super) const AUTOCLEAR_BITMAPS: u64 = 1;

/// Names of the incompatible bits, as QEMU and `info` print them.
const INCOMPATIBLE_NAMES: [&str; 5] =
    ["dirty bit", "corrupt bit", "external data file", "compression type", "extended L2 entries"];
const COMPATIBLE_NAMES: [&str; 1] = ["lazy refcounts"];
const AUTOCLEAR_NAMES: [&str; 2] = ["bitmaps", "raw external data"];

/// Bytes of an entry of the feature name table: type, bit, name.
const NAME_ENTRY_BYTES: usize = 48;

impl Features {
    /// Returns the names of all set bits that are known.
    pub fn names(&self) -> Vec<&'static str> {
        let sets = [
            (self.incompatible, &INCOMPATIBLE_NAMES[..]),
            (self.compatible, &COMPATIBLE_NAMES[..]),
            (self.autoclear, &AUTOCLEAR_NAMES[..]),
        ];
        let named = |(bits, names): (u64, &'static [&'static str])| {
            names.iter().enumerate().filter(move |(bit, _)| bits >> bit & 1 == 1)
        };
        sets.into_iter().flat_map(named).map(|(_, name)| *name).collect()
    }
}

/// Returns the feature name table that names all known features.
pub(super) fn name_table() -> Vec<u8> {
    let sets = [&INCOMPATIBLE_NAMES[..], &COMPATIBLE_NAMES[..], &AUTOCLEAR_NAMES[..]];
    let mut table = Vec::new();
    for (kind, names) in (0u8..).zip(sets) {
        for (bit, name) in (0u8..).zip(names) {
            let mut entry = [0; NAME_ENTRY_BYTES];
            (entry[0], entry[1]) = (kind, bit);
            entry[2..2 + name.len()].copy_from_slice(name.as_bytes());
            table.extend(entry);
        }
    }
    table
}

/// Returns the image's own name of an incompatible bit, if its table has one.
pub(super) fn name_in_table(table: &[u8], bit: u32) -> Option<String> {
    let mut entries = table.chunks_exact(NAME_ENTRY_BYTES);
    let entry = entries.find(|entry| entry[0] == 0 && u32::from(entry[1]) == bit)?;
    let name = entry[2..].split(|&byte| byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(name).escape_debug().to_string()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_table_names_every_known_feature() {
        let table = name_table();
        for (bit, name) in (0..).zip(INCOMPATIBLE_NAMES) {
            assert_eq!(name_in_table(&table, bit).unwrap(), name);
        }
        assert_eq!(name_in_table(&table, 9), None);
    }

    #[test]
    fn set_bits_are_named() {
        let incompatible = Incompatible::EXTENDED_L2 | Incompatible::DIRTY | 1 << 63;
        let features = Features { incompatible, compatible: 1, autoclear: 1 };
        let names = ["dirty bit", "extended L2 entries", "lazy refcounts", "bitmaps"];
        assert_eq!(features.names(), names);
    }
}

//! Second phase of a round: references.

use std::collections::BTreeMap;

use super::Qcow2Format;
use crate::format::Format;
use crate::map::Word;
use crate::planted::{Bug, is_planted};
use crate::qcow2::l2::COPIED;
use crate::tables::SLICE_BYTES;
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

/// Entries of an L2 table: offset in the table and bytes.
pub(super) type NewEntries = Vec<(u64, Vec<u8>)>;

impl<F: ImageFile + Clone> Qcow2Format<F> {
    pub(super) async fn write_references(
        &mut self,
        references: &[(u64, Word)],
    ) -> Result<(), ImageError> {
        let changes = self.changes(references).await?;
        for (table, entries) in self.new_entries(&changes).await? {
            self.patch("L2 table", self.l2_range(table), &entries).await?;
        }
        self.write_l1_entries().await?;
        for (_, word) in references.iter().filter(|(_, word)| word.is_data()) {
            let cluster = self.cluster_at(word.place());
            self.space.taken.remove(&cluster);
        }
        for cluster in std::mem::take(&mut self.prepared).into_values() {
            self.space.taken.remove(&cluster);
        }
        self.replaced.append(&mut self.replacing);
        if is_planted(Bug::ReplacedFreedEarly) {
            for place in self.take_replaced() {
                self.reclaim(u64::MAX, place).await?;
            }
        }
        Ok(())
    }

    /// Returns the entries of changed references, by the offset of their table.
    pub(super) async fn new_entries(
        &mut self,
        changes: &[(u64, Word)],
    ) -> Result<BTreeMap<u64, NewEntries>, ImageError> {
        let (format, per_table) = (self.image.header.entry_format(), self.entries_per_table());
        let mut tables: BTreeMap<u64, NewEntries> = BTreeMap::new();
        for &(granule, word) in changes {
            let index = granule / per_table;
            let refuse = |problem: String| ImageError::Corrupt {
                structure: "reference",
                offset: granule.saturating_mul(self.image.header.cluster_bytes()),
                problem,
            };
            let cluster = self.words.cluster(word);
            let cluster = cluster.ok_or_else(|| refuse(format!("no entry can say {word:?}")))?;
            let (entry, bitmap) = format.to_words(&cluster);
            let mut bytes = entry.to_be_bytes().to_vec();
            if format.is_extended {
                bytes.extend(bitmap.to_be_bytes());
            }
            let table = match self.prepared.get(&index) {
                Some(cluster) => Some(self.offset(*cluster)),
                None => self.l1_entry(index).await?.filter(|one| one.copied).map(|one| one.table),
            };
            let missing = || ImageError::Corrupt {
                structure: "L1 entry",
                offset: index,
                problem: "no L2 table was prepared".into(),
            };
            let table = table.ok_or_else(missing)?;
            self.refuse_table(table >> self.image.header.cluster_bits)?;
            let entries = tables.entry(table).or_default();
            entries.push((granule % per_table * format.bytes(), bytes));
        }
        Ok(tables)
    }

    async fn write_l1_entries(&mut self) -> Result<(), ImageError> {
        let entry = |(index, cluster): (&u64, &u64)| {
            let entry = self.offset(*cluster) | COPIED;
            (index * 8, entry.to_be_bytes().to_vec())
        };
        let entries: NewEntries = self.prepared.iter().map(entry).collect();
        self.patch("L1 table", self.image.header.l1, &entries).await
    }

    /// Replaces entries of a table, which are in order: one write a slice that changes.
    pub(super) async fn patch(
        &mut self,
        structure: &'static str,
        table: TableRange,
        entries: &NewEntries,
    ) -> Result<(), ImageError> {
        for part in entries.chunk_by(|(a, _), (b, _)| a / SLICE_BYTES == b / SLICE_BYTES) {
            let Some((first, _)) = part.first() else { continue };
            let start = first - first % SLICE_BYTES;
            let (slice, _) = self.image.tables.slice(structure, table, start).await?;
            let old = slice.to_vec();
            let mut new = old.clone();
            for (offset, bytes) in part {
                // Within a slice.
                let at = (offset - start) as usize;
                let place = new.get_mut(at..at + bytes.len());
                place.into_iter().for_each(|place| place.copy_from_slice(bytes));
            }
            self.image.tables.write_changes(table.offset + start, &old, &new).await?;
        }
        Ok(())
    }
}

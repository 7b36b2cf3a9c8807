//! Second phase of a round: bits and BAT entries.

use std::collections::BTreeMap;

use super::granule::{BITS_BYTES, GRANULE_BITS};
use super::prepare::corrupt_reference;
use super::{Leaving, VhdFormat};
use crate::map::{Kind, Word};
use crate::tables::SLICE_BYTES;
use crate::vhd::SECTOR;
use crate::vhd::fields::put;
use crate::vhd::image::UNUSED;
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> VhdFormat<F> {
    pub(super) async fn write_references(
        &mut self,
        references: &[(u64, Word)],
    ) -> Result<(), ImageError> {
        let changes = self.changes(references).await?;
        let (mut entries, mut left) = (BTreeMap::new(), Vec::new());
        let mut rest = &changes[..];
        while let Some((granule, _)) = rest.first() {
            let (block, _) = self.split(*granule)?;
            let granules = self.granules_of(block)?;
            let count = rest.iter().take_while(|(one, _)| granules.contains(one)).count();
            let (of_block, next) = rest.split_at(count);
            rest = next;
            if let Some(start) = self.image.block(block).await?
                && self.becomes_empty(block, of_block).await?
            {
                entries.insert(block, UNUSED);
                left.push((block, start));
            } else if let Some(start) = self.write_bits(block, of_block).await? {
                // Places are below 2 TiB.
                entries.insert(block, (start / SECTOR) as u32);
            }
        }
        self.write_entries(&entries).await?;
        self.note_written(references).await?;
        for (block, start) in left {
            self.leaving.insert(start, Leaving { block, is_unused: false });
            self.replaced.push(start);
        }
        Ok(())
    }

    /// Returns whether no granule of a block has data, and none can get some: all were cleared now or
    /// by the last rounds.
    async fn becomes_empty(
        &mut self,
        block: u64,
        changes: &[(u64, Word)],
    ) -> Result<bool, ImageError> {
        if self.granules.has_below {
            return Ok(false);
        }
        let words: BTreeMap<_, _> = changes.iter().copied().collect();
        for granule in self.granules_of(block)? {
            let is_gone = match words.get(&granule) {
                _ if self.placed.contains(&granule) => false,
                Some(word) => word.kind() == Kind::Zero,
                // Without noted blocks, only a grant gives it data, and a grant is placed.
                None => match self.disk_word(granule).await? {
                    word if word.is_data() => word.mask() == 0 && self.limbo.contains(&granule),
                    word => word == Word::ZERO,
                },
            };
            if !is_gone {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the bits of granules of one block. Returns its offset in the file if the BAT does not
    /// have it yet.
    async fn write_bits(
        &mut self,
        block: u64,
        changes: &[(u64, Word)],
    ) -> Result<Option<u64>, ImageError> {
        let on_disk = self.image.block(block).await?;
        let start = match (on_disk, changes.iter().find(|(_, word)| word.is_data())) {
            (Some(start), _) => start,
            (None, Some((granule, word))) => self.new_start(*granule, *word)?,
            // Nothing is there that could be cleared.
            (None, None) => return Ok(None),
        };
        let old = self.image.bitmap(start).await?.to_vec();
        let mut new = old.clone();
        let first = self.granules_of(block)?.start;
        for &(granule, word) in changes {
            if word.is_data() && self.start_of(granule, word)? != start {
                return Err(corrupt_reference(granule, format!("{word:?} is in another block")));
            }
            let refuse = || corrupt_reference(granule, format!("no bits can say {word:?}"));
            let bits = self.granules.bits(word).ok_or_else(refuse)?;
            put(&mut new, (granule - first) as usize * BITS_BYTES, &bits);
        }
        self.image.tables.write_changes(start, &old, &new).await?;
        Ok(on_disk.is_none().then_some(start))
    }

    /// Writes entries of the BAT by block, one write a slice that changes.
    pub(super) async fn write_entries(
        &mut self,
        entries: &BTreeMap<u64, u32>,
    ) -> Result<(), ImageError> {
        let table = self.image.blocks()?.table();
        let entries: Vec<_> = entries.iter().map(|(block, entry)| (block * 4, *entry)).collect();
        for part in entries.chunk_by(|(a, _), (b, _)| a / SLICE_BYTES == b / SLICE_BYTES) {
            let Some((first, _)) = part.first() else { continue };
            let start = first - first % SLICE_BYTES;
            let structure = "block allocation table";
            let old = self.image.tables.slice(structure, table, start).await?.0.to_vec();
            let mut new = old.clone();
            for (at, entry) in part {
                put(&mut new, (at - start) as usize, &entry.to_be_bytes());
            }
            self.image.tables.write_changes(table.offset + start, &old, &new).await?;
        }
        Ok(())
    }

    /// Notes what the disk says now, after all of it is written.
    async fn note_written(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError> {
        for &(granule, word) in references {
            let (block, _) = self.split(granule)?;
            if self.image.block(block).await?.is_some() {
                self.new_blocks.remove(&block);
            }
            if word.is_data() {
                self.placed.remove(&granule);
            }
        }
        Ok(())
    }

    /// Frees a block that has left the BAT, if no request uses it.
    pub(super) async fn free_block(&mut self, start: u64) -> Result<(), ImageError> {
        let Some(leaving) = self.leaving.get(&start).filter(|one| one.is_unused) else {
            return Ok(());
        };
        let granules = self.granules_of(leaving.block)?;
        if self.limbo.range(granules).next().is_some() {
            return Ok(());
        }
        self.zero(start, self.total_bytes()?).await?;
        self.leaving.remove(&start);
        self.space.free.push(start);
        Ok(())
    }
}

const _: () = assert!(1 << GRANULE_BITS == BITS_BYTES * 8 * SECTOR as usize);

//! First phase of a round: what its references need and nothing references yet.

use std::collections::BTreeSet;

use super::VhdFormat;
use super::granule::GRANULE_BYTES;
use crate::map::{Place, Word};
use crate::planted::{Bug, is_planted};
use crate::vhd::SECTOR;
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> VhdFormat<F> {
    pub(super) async fn prepare_round(
        &mut self,
        references: &[(u64, Word)],
    ) -> Result<(), ImageError> {
        let (mut zeroed, mut cleared) = (BTreeSet::new(), Vec::new());
        for (granule, word) in self.changes(references).await? {
            if self.granules.bits(word).is_none() {
                return Err(corrupt_reference(granule, format!("no bits can say {word:?}")));
            }
            let on_disk = self.disk_bits(granule).await?;
            match on_disk {
                None if word.is_data() => {
                    zeroed.insert(self.new_start(granule, word)?);
                }
                Some((start, bits)) if !word.is_data() && bits != [0; 16] => {
                    cleared.push(start + self.split(granule)?.1);
                }
                _ => {}
            }
        }
        for start in zeroed.into_iter().filter(|_| !is_planted(Bug::NoRefcount)) {
            // A bitmap has at most 64 KiB.
            let zeroes = vec![0; self.block_sizes()?.1 as usize];
            self.image.tables.write(start, &zeroes).await?;
        }
        if !cleared.is_empty() {
            self.image.clear_batmap().await?;
        }
        // What is discarded together lies together.
        for run in cleared.chunk_by(|one, next| one + GRANULE_BYTES == *next) {
            let Some(first) = run.first() else { continue };
            self.zero(*first, run.len() as u64 * GRANULE_BYTES).await?;
        }
        Ok(())
    }

    /// Returns the references that differ from those on disk.
    pub(super) async fn changes(
        &mut self,
        references: &[(u64, Word)],
    ) -> Result<Vec<(u64, Word)>, ImageError> {
        let mut changes = Vec::new();
        for &(granule, word) in references {
            if self.disk_word(granule).await? != word {
                changes.push((granule, word));
            }
        }
        Ok(changes)
    }

    /// Returns the begin of the block of a granule that the BAT does not have yet.
    pub(super) fn new_start(&self, granule: u64, word: Word) -> Result<u64, ImageError> {
        let (block, _) = self.split(granule)?;
        let start = self.start_of(granule, word)?;
        if self.new_blocks.get(&block) != Some(&start) {
            return Err(corrupt_reference(granule, format!("no block was chosen for {word:?}")));
        }
        Ok(start)
    }

    /// Returns the begin of the block of a granule, as its word has it.
    pub(super) fn start_of(&self, granule: u64, word: Word) -> Result<u64, ImageError> {
        let offset = Place::units(word.place()) * SECTOR;
        let start = offset.checked_sub(self.split(granule)?.1);
        start.ok_or_else(|| corrupt_reference(granule, format!("{word:?} is before its block")))
    }
}

pub(super) fn corrupt_reference(granule: u64, problem: String) -> ImageError {
    let offset = granule.saturating_mul(GRANULE_BYTES);
    ImageError::Corrupt { structure: "reference", offset, problem }
}

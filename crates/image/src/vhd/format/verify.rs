//! Check of a journal that a former process left: does it still fit the image?

use std::collections::BTreeMap;

use super::VhdFormat;
use crate::format::Format;
use crate::journal::{JournalError, JournalOwner};
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> VhdFormat<F> {
    /// Checks that no other program has given the places of a journal to anything else. Reads the
    /// whole table, unless the journal has no places.
    ///
    /// # Errors
    /// [`JournalError::Stale`], or storage fails.
    pub async fn verify_journal(&mut self, journal: &JournalOwner) -> Result<(), ImageError> {
        let stale = || ImageError::from(JournalError::Stale);
        let granules = self.layout().granules;
        let dirty = journal.entries().map(|(_, entry)| entry.granule);
        let mut dirty = dirty.chain(journal.records(None).into_iter().map(|one| one.granule));
        if !dirty.all(|granule| granule < granules) {
            return Err(stale());
        }
        let mut starts = BTreeMap::new();
        for (_, entry) in journal.entries().filter(|(_, entry)| entry.word.is_data()) {
            let start = self.start_of(entry.granule, entry.word).map_err(|_| stale())?;
            let (block, _) = self.split(entry.granule)?;
            let is_other = *starts.entry(block).or_insert(start) != start;
            if is_other || entry.word.file() != 0 || self.image.misplaced(start).await?.is_some() {
                return Err(stale());
            }
        }
        for (block, start) in starts {
            match self.image.block(block).await? {
                None => drop(self.new_blocks.insert(block, start)),
                Some(on_disk) if on_disk == start => {}
                Some(_) => return Err(stale()),
            }
        }
        if self.new_blocks.is_empty() {
            return Ok(());
        }
        // Overlaps are found with all blocks of the image.
        self.scan_space().await.map_err(|error| match error {
            ImageError::Corrupt { .. } => stale(),
            other => other,
        })
    }
}

//! Check of a journal that a former process left: does it still fit the image?

use std::collections::{BTreeMap, BTreeSet};

use super::Qcow2Format;
use crate::format::Format;
use crate::journal::{JournalError, JournalOwner};
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> Qcow2Format<F> {
    /// Checks that no other program has given the clusters of a journal to anything else. Reads all
    /// tables, unless the journal has no clusters.
    ///
    /// # Errors
    /// [`JournalError::Stale`], or storage fails.
    pub async fn verify_journal(&mut self, journal: &JournalOwner) -> Result<(), ImageError> {
        let (granules, end) = (self.layout().granules, self.image.tables.len());
        let dirty = journal.entries().map(|(_, entry)| entry.granule);
        let mut dirty = dirty.chain(journal.records(None).into_iter().map(|one| one.granule));
        let mut users = BTreeMap::new();
        let mut is_sound = dirty.all(|granule| granule < granules);
        for (_, entry) in journal.entries().filter(|(_, entry)| entry.word.is_data()) {
            let cluster = self.cluster_at(entry.word.place());
            is_sound &= self.offset(cluster) < end && entry.word.file() == 0;
            is_sound &= users.insert(cluster, entry.granule).is_none();
        }
        if !is_sound {
            return Err(JournalError::Stale.into());
        }
        if users.is_empty() {
            return Ok(());
        }
        let clusters: BTreeSet<_> = users.keys().copied().collect();
        let uses = self.image.count_uses(&clusters).await?;
        for (cluster, granule) in users {
            let on_disk = self.load_word(granule).await?;
            // A round that has died may have stored the reference.
            let is_stored = on_disk.is_data() && self.cluster_at(on_disk.place()) == cluster;
            if uses.get(&cluster).copied().unwrap_or(0) != u16::from(is_stored) {
                return Err(JournalError::Stale.into());
            }
        }
        Ok(())
    }
}

//! Takeover: an owner begins with the journal that a dead process left.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::reclaim::Freed;
use super::{Obstacle, Owner, OwnerCounts};
use crate::ImageError;
use crate::ImageFile;
use crate::format::Format;
use crate::journal::JournalOwner;
use crate::map::{Kind, Word};
use crate::planted::{Bug, is_planted};
use crate::shared::Shared;

impl<F: Format> Owner<F> {
    /// Takes over an image and its journal. All I/O of the former process has ended (fence). With
    /// an empty journal this is the first opening.
    ///
    /// # Errors
    /// Storage fails, or the image is damaged.
    pub async fn take_over(shared: Arc<Shared>, format: F) -> Result<Self, ImageError> {
        if !format.is_read_only() && !is_planted(Bug::NoSyncAtTakeover) {
            // A reference that the former process cleared may not be durable: what it named would
            // look free.
            format.file().sync().await.map_err(ImageError::io("sync", 0))?;
        }
        let journal = JournalOwner::new(shared.journal.clone());
        let mut owner = Self {
            shared,
            format,
            journal,
            freed: Vec::new(),
            pages: Default::default(),
            busy: Vec::new(),
            no_room: Vec::new(),
            later: Vec::new(),
            flushes: Vec::new(),
            streams: Default::default(),
            is_in_round: false,
            is_stalled: false,
            answers: Vec::new(),
            counts: OwnerCounts::default(),
        };
        owner.drop_grants();
        let granules: BTreeSet<u64> = owner.dirty_granules();
        // Before anything is written: the format must know what the journal uses.
        owner.sort_clusters(&granules).await?;
        if !is_planted(Bug::JournalNotFolded) {
            owner.fold_all(&granules).await?;
        }
        Ok(owner)
    }

    fn dirty_granules(&self) -> BTreeSet<u64> {
        let entries = self.journal.entries().map(|(_, entry)| entry.granule);
        entries.chain(self.journal.records(None).into_iter().map(|one| one.granule)).collect()
    }

    /// Nothing was committed to a granted cluster.
    fn drop_grants(&mut self) {
        let entries: Vec<_> = self.journal.entries().collect();
        for (id, entry) in entries {
            let is_committed = matches!(entry.word.kind(), Kind::OverBelow | Kind::OverZero);
            if is_committed && is_planted(Bug::CommitsForgotten) {
                self.journal.remove(entry.granule);
            } else if entry.is_granted() && entry.zero_number > 0 {
                self.journal.set_word(id, Word::ZERO);
            } else if entry.is_granted() {
                self.journal.remove(entry.granule);
            }
        }
    }

    /// Moves all records into entries, so that no record of a former life is left: its cluster may
    /// come back to the same granule. Entries that say what the disk says go. Without room for the
    /// entries, a round makes everything durable.
    async fn fold_all(&mut self, granules: &BTreeSet<u64>) -> Result<(), ImageError> {
        match self.fold().await {
            Ok(()) => {}
            Err(Obstacle::Failed(error)) => return Err(error),
            Err(_) => return self.write_all().await,
        }
        for &granule in granules {
            let on_disk = self.format.load_word(granule).await?;
            if self.journal.entry(granule).is_some_and(|(_, entry)| entry.word == on_disk) {
                self.journal.remove(granule);
            }
        }
        Ok(())
    }

    async fn write_all(&mut self) -> Result<(), ImageError> {
        self.run_round().await;
        if self.shared.is_lost() {
            let problem = "the journal of a former process could not be written";
            return Err(ImageError::io("write", 0)(std::io::Error::other(problem)));
        }
        if self.is_stalled { Err(ImageError::Full) } else { Ok(()) }
    }

    /// Tells the format which clusters are used, and finds those that only the disk names.
    async fn sort_clusters(&mut self, granules: &BTreeSet<u64>) -> Result<(), ImageError> {
        let mut used = Vec::new();
        for &granule in granules {
            let on_disk = self.format.load_word(granule).await?;
            let newest = self.newest(granule, on_disk);
            if newest != on_disk {
                used.push((granule, newest));
            }
            // The round that replaces a shared or mixed word notes its clusters.
            let is_lost = on_disk.is_data() && newest.place() != on_disk.place();
            if is_lost && on_disk.file() == 0 {
                let number = self.journal.entry(granule).map_or(0, |(_, entry)| entry.number);
                let place = on_disk.place();
                self.format.enter_limbo(granule);
                self.freed.push(Freed { granule, place, epoch: 0, number, is_durable: false });
            }
        }
        self.format.take_over(&used).await
    }
}

//! Freed clusters, until they may be used again.
//!
//! A cluster is free again when the cleared reference is durable, no request uses it, and it is
//! punched.

use std::collections::BTreeMap;

use super::Owner;
use crate::ImageError;
use crate::format::Format;
use crate::map::{Place, Word};
use crate::planted::{Bug, is_planted};

/// Cluster that the map does not name any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freed {
    pub(super) granule: u64,
    pub(super) place: Place,
    /// Epoch that ended when the map lost the cluster.
    pub(super) epoch: u64,
    /// Number of the entry that replaced the reference.
    pub(super) number: u64,
    /// True once no reference on disk names the cluster.
    pub(super) is_durable: bool,
}

impl Freed {
    /// Returns whether only requests keep the cluster: a channel shows epoch `oldest`.
    pub(super) fn is_held(&self, oldest: u64) -> bool {
        self.is_durable && oldest <= self.epoch
    }
}

impl<F: Format> Owner<F> {
    /// Notes that entry `number` has replaced the word `old` of a granule.
    pub(super) fn free_later(&mut self, granule: u64, old: Word, number: u64) {
        let epoch = self.shared.map.epochs().advance();
        if old.is_data() && old.file() == 0 {
            let is_durable = is_planted(Bug::FreedBeforeDurable);
            let place = old.place();
            self.format.enter_limbo(granule);
            self.freed.push(Freed { granule, place, epoch, number, is_durable });
        }
    }

    /// Notes the clusters of shared and mixed words that a round has replaced for good.
    pub(super) fn free_replaced(&mut self) {
        let replaced = self.format.take_replaced();
        if replaced.is_empty() {
            return;
        }
        // Requests that began while the map named them may still read them.
        let epoch = self.shared.map.epochs().advance();
        let freed = |place| Freed { granule: u64::MAX, place, epoch, number: 0, is_durable: true };
        self.freed.extend(replaced.into_iter().map(freed));
    }

    /// Notes that the references of granules up to these numbers of entries are durable.
    pub(super) fn mark_durable(&mut self, numbers: &BTreeMap<u64, u64>) {
        for freed in &mut self.freed {
            // Numbers decide, not times: a round that began before a discard ends after it.
            let number = numbers.get(&freed.granule);
            freed.is_durable |= number.is_some_and(|number| freed.number <= *number);
        }
    }

    /// Frees one cluster that has no user and no reference any more. Returns whether there was one.
    ///
    /// # Errors
    /// Storage fails. The cluster is not used again.
    pub async fn reclaim(&mut self) -> Result<bool, ImageError> {
        let oldest = self.shared.map.epochs().oldest();
        let is_unused = |epoch| oldest > epoch || is_planted(Bug::EpochIgnored);
        let ready = |freed: &Freed| freed.is_durable && is_unused(freed.epoch);
        let Some(at) = self.freed.iter().position(ready) else { return Ok(false) };
        let freed = self.freed.swap_remove(at);
        self.format.reclaim(freed.granule, freed.place).await?;
        self.counts.reclaimed += 1;
        self.retry_room();
        Ok(true)
    }
}

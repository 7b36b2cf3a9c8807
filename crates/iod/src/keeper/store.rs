//! Entries that a keeper preserves for its workers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::keeper_link::{PreservedEntry, PreservedEntryData};

/// Most entries: far above the number of disks that open files allow.
const MAX_HELD: usize = 1 << 16;

/// Preserved entries by key.
#[derive(Debug, Default)]
pub(super) struct Store {
    by_key: BTreeMap<String, PreservedEntry>,
}

impl Store {
    /// Stores an entry and replaces the former entry of its key.
    ///
    /// # Errors
    /// The reason why it is not stored.
    pub(super) fn hold(
        &mut self,
        what: PreservedEntryData,
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let (key, preserved_entry) =
            PreservedEntry::read(what, fds).map_err(|error| error.to_string())?;
        if self.by_key.len() >= MAX_HELD && !self.by_key.contains_key(&key) {
            return Err(format!("{MAX_HELD} records are preserved, which is the limit"));
        }
        self.by_key.insert(key, preserved_entry);
        Ok(())
    }

    /// Stores an entry of the keeper itself.
    pub(super) fn insert(&mut self, key: &str, preserved_entry: PreservedEntry) {
        self.by_key.insert(key.into(), preserved_entry);
    }

    /// Closes the keeper's descriptors of an entry. The worker has removed its files.
    pub(super) fn forget(&mut self, key: &str) {
        self.by_key.remove(key);
    }

    pub(super) fn get(&self, key: &str) -> Option<&PreservedEntry> {
        self.by_key.get(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.by_key.keys()
    }

    /// Returns the longest stop deadline of all entries.
    pub(super) fn longest_stop(&self) -> Duration {
        let longest = self.by_key.values().map(|preserved_entry| preserved_entry.stop_ms).max();
        Duration::from_millis(longest.unwrap_or(0))
    }

    /// Removes the files that no worker has removed, after everything has ended.
    pub(super) fn clear(&mut self) {
        std::mem::take(&mut self.by_key).into_values().for_each(PreservedEntry::remove);
    }
}

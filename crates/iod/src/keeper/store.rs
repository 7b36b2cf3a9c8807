//! What a keeper holds for its workers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::keeper_link::{PreservedEntry, PreservedEntryData};

/// Most things held: far above the disks that open files allow.
const MAX_HELD: usize = 1 << 16;

/// Holdings by key.
#[derive(Debug, Default)]
pub(super) struct Store {
    by_key: BTreeMap<String, PreservedEntry>,
}

impl Store {
    /// Holds something, in place of what its key stood for.
    ///
    /// # Errors
    /// Why it is not held.
    pub(super) fn hold(
        &mut self,
        what: PreservedEntryData,
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let (key, preserved_entry) =
            PreservedEntry::read(what, fds).map_err(|error| error.to_string())?;
        if self.by_key.len() >= MAX_HELD && !self.by_key.contains_key(&key) {
            return Err(format!("{MAX_HELD} disks are held, and no more can be"));
        }
        self.by_key.insert(key, preserved_entry);
        Ok(())
    }

    /// Holds something of the keeper's own.
    pub(super) fn insert(&mut self, key: &str, preserved_entry: PreservedEntry) {
        self.by_key.insert(key.into(), preserved_entry);
    }

    /// Closes our side; the worker has removed what is to be removed.
    pub(super) fn forget(&mut self, key: &str) {
        self.by_key.remove(key);
    }

    pub(super) fn get(&self, key: &str) -> Option<&PreservedEntry> {
        self.by_key.get(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.by_key.keys()
    }

    /// How long the end of all that is held may take.
    pub(super) fn longest_stop(&self) -> Duration {
        let longest = self.by_key.values().map(|preserved_entry| preserved_entry.stop_ms).max();
        Duration::from_millis(longest.unwrap_or(0))
    }

    /// All has ended: removes the files that no worker has removed.
    pub(super) fn clear(&mut self) {
        std::mem::take(&mut self.by_key).into_values().for_each(PreservedEntry::remove);
    }
}

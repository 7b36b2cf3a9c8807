//! Entries of a table, and the order in which they were last seen.
//!
//! Entries lie in memory that is allocated once. Entries in use are linked from the one seen
//! longest ago to the one seen last. Unused entries form another list with the same links.

use super::Key;
use super::index::NONE;
use crate::port::PortId;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Key of the entry; `None` if it is unused.
    pub(super) key: Option<Key>,
    pub(super) port: PortId,
    pub(super) seen_ns: u64,
    /// Time from which the station may move again.
    pub(super) free_ns: u64,
    pub(super) older: u32,
    /// Next newer entry; for an unused entry, the next unused one.
    pub(super) newer: u32,
}

pub(super) const UNUSED: Entry =
    Entry { key: None, port: PortId(0), seen_ns: 0, free_ns: 0, older: NONE, newer: NONE };

#[derive(Debug)]
pub(super) struct Slab {
    entries: Box<[Entry]>,
    used: u32,
    unused: u32,
    oldest: u32,
    newest: u32,
}

impl Slab {
    /// Creates a slab for `most` entries.
    pub(super) fn new(most: u32) -> Self {
        let next = |nth| if nth + 1 < most { nth + 1 } else { NONE };
        let entries = (0..most).map(|nth| Entry { newer: next(nth), ..UNUSED }).collect();
        Self { entries, used: 0, unused: 0, oldest: NONE, newest: NONE }
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    pub(super) fn is_full(&self) -> bool {
        self.unused == NONE
    }

    /// Returns the entry that was silent longest.
    pub(super) fn oldest(&self) -> Option<(u32, &Entry)> {
        self.get(self.oldest).map(|entry| (self.oldest, entry))
    }

    /// Returns the entries in use, beginning with the one that was silent longest.
    pub(super) fn by_age(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let next = |(_, entry): &(u32, &Entry)| Some((entry.newer, self.get(entry.newer)?));
        std::iter::successors(self.oldest(), next)
    }

    pub(super) fn get(&self, at: u32) -> Option<&Entry> {
        self.entries.get(at as usize)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(at as usize)
    }

    /// Adds an entry as the one seen last. Returns `None` if the slab is full.
    pub(super) fn take(&mut self, entry: Entry) -> Option<u32> {
        let at = self.unused;
        self.unused = self.get(at)?.newer;
        *self.get_mut(at)? = Entry { older: NONE, newer: NONE, ..entry };
        self.used += 1;
        self.append(at);
        Some(at)
    }

    /// Removes an entry in use.
    pub(super) fn release(&mut self, at: u32) {
        if self.get(at).is_none_or(|entry| entry.key.is_none()) {
            return;
        }
        self.unlink(at);
        let newer = self.unused;
        if let Some(entry) = self.get_mut(at) {
            *entry = Entry { newer, ..UNUSED };
        }
        self.unused = at;
        self.used -= 1;
    }

    /// Marks an entry as seen at `now_ns`: it is the last one to age.
    pub(super) fn touch(&mut self, at: u32, now_ns: u64) {
        self.unlink(at);
        if let Some(entry) = self.get_mut(at) {
            // A clock that goes back makes no entry older.
            entry.seen_ns = entry.seen_ns.max(now_ns);
        }
        self.append(at);
    }

    fn append(&mut self, at: u32) {
        let last = self.newest;
        if let Some(entry) = self.get_mut(at) {
            (entry.older, entry.newer) = (last, NONE);
        }
        match self.get_mut(last) {
            Some(before) => before.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Some(Entry { older, newer, .. }) = self.get(at).copied() else { return };
        match self.get_mut(older) {
            Some(before) => before.newer = newer,
            None => self.oldest = newer,
        }
        match self.get_mut(newer) {
            Some(behind) => behind.older = older,
            None => self.newest = older,
        }
    }
}

//! Disks with held requests, and the search for the one that goes first.
//!
//! A search does not look at all disks. A key only grows until something lowers it, which
//! [`Header::Lowerings`](crate::state::Header::Lowerings) counts. So a key that was true once is a
//! bound. A heap has the disks by their bounds: the first disk whose key is still its bound goes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::share::DiskId;

/// Disk, as a search finds it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Look {
    /// It holds nothing.
    Empty,
    /// None of its requests may go now.
    Waits,
    /// Its key, which only grows.
    Key(u64),
    /// Its key, which follows the time: that of a floor or of a turn. What makes it follow the time
    /// counts as a lowering.
    TimedKey(u64),
}

/// Disk in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// Key that was true once, or 0.
    bound: u64,
    disk: DiskId,
    /// Number of the search that found the bound. A disk has one entry, so this orders none.
    search: u64,
}

impl Entry {
    fn new(disk: DiskId) -> Reverse<Self> {
        Reverse(Self { bound: 0, disk, search: 0 })
    }
}

/// Disks with held requests. A disk that runs empty keeps its entry until a search finds it.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Number of disks with held requests.
    len: usize,
    heap: BinaryHeap<Reverse<Entry>>,
    /// Whether each disk has an entry.
    has_entry: Vec<bool>,
    /// Entries that a search has taken out, empty between searches.
    passed: Vec<Reverse<Entry>>,
    searches: u64,
    /// Counters of the events that lower keys, as of the last search.
    lowerings: (u64, u64),
    /// Number of looks at disks.
    #[cfg(test)]
    pub(super) looks: u64,
}

impl Backlog {
    /// Returns the number of disks with held requests.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a disk whose first request is held now.
    pub(super) fn add(&mut self, disk: DiskId) {
        self.len += 1;
        if self.has_entry.len() <= disk.slot() {
            self.has_entry.resize(disk.slot() + 1, false);
        }
        if self.has_entry.get_mut(disk.slot()).is_some_and(|has| !std::mem::replace(has, true)) {
            self.heap.push(Entry::new(disk));
        }
    }

    /// Counts a disk that has run empty.
    pub(super) fn count_empty(&mut self) {
        self.len -= 1;
    }

    /// Returns the lowest key, and its disk. A search looks at each disk once at most. `lowerings`
    /// differs from that of the last search if a key may have become lower.
    pub(super) fn lowest(
        &mut self,
        lowerings: (u64, u64),
        look: impl Fn(DiskId) -> Look,
    ) -> Option<(u64, DiskId)> {
        if std::mem::replace(&mut self.lowerings, lowerings) != lowerings {
            let entries = std::mem::take(&mut self.heap).into_iter();
            self.heap = entries.map(|entry| Entry::new(entry.0.disk)).collect();
        }
        self.searches += 1;
        let (mut lowest, mut timed) = (None, None::<(u64, DiskId)>);
        while let Some(mut first) = self.heap.peek_mut() {
            let Entry { bound, disk, search } = first.0;
            if search == self.searches {
                lowest = Some((bound, disk));
                break;
            }
            #[cfg(test)]
            {
                self.looks += 1;
            }
            match look(disk) {
                Look::Key(key) => first.0 = Entry { bound: key, disk, search: self.searches },
                Look::TimedKey(key) => {
                    timed = timed.into_iter().chain([(key, disk)]).min();
                    PeekMut::pop(first);
                    self.passed.push(Entry::new(disk));
                }
                Look::Waits => self.passed.push(PeekMut::pop(first)),
                Look::Empty => {
                    PeekMut::pop(first);
                    self.has_entry.get_mut(disk.slot()).into_iter().for_each(|has| *has = false);
                }
            }
        }
        self.heap.extend(self.passed.drain(..));
        lowest.into_iter().chain(timed).min()
    }
}

#[cfg(test)]
mod tests;

//! Table of the blocks that requests change.
//!
//! A merge excludes every other request for its blocks. Requests that replace whole blocks exclude
//! merges only. A request waits for all earlier requests that it conflicts with, whether they run or
//! wait themselves. So requests for the same blocks run in the order in which they came, and because
//! each takes its whole range at once, none waits for a later one.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::notifier::ChannelNotifier;

/// Ranges of one disk, over all channels.
#[derive(Debug, Default)]
pub(super) struct BlockRanges(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Number of the last ticket.
    last: u64,
    /// In the order of their numbers.
    entries: Vec<Entry>,
    /// Entries of merges, and entries that wait.
    merges: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// Bytes of whole blocks.
    range: Range<u64>,
    merges: bool,
    /// Number of earlier entries that this one waits for.
    blockers: usize,
    waiter: Option<(Arc<ChannelNotifier>, u32)>,
}

impl Entry {
    fn conflicts(&self, range: &Range<u64>, merges: bool) -> bool {
        (merges || self.merges) && self.range.start < range.end && range.start < self.range.end
    }
}

/// Place of a request in the table. Drop gives its blocks to the requests that wait for them.
#[derive(Debug)]
pub(super) struct RangeTicket {
    ranges: Arc<BlockRanges>,
    number: u64,
}

impl RangeTicket {
    /// Returns the number of the ticket, which no other ticket of the disk has.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for RangeTicket {
    fn drop(&mut self) {
        self.ranges.leave(self.number);
    }
}

impl BlockRanges {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // The table changes in complete steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a range, or queues for it. Returns the ticket, and whether the range is taken. If it is
    /// not, `notifier` receives `slot` and the number of the ticket later.
    pub(super) fn enter(
        self: &Arc<Self>,
        range: Range<u64>,
        merges: bool,
        notifier: &Arc<ChannelNotifier>,
        slot: u32,
    ) -> (RangeTicket, bool) {
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        let blockers = if merges || table.merges > 0 {
            table.entries.iter().filter(|entry| entry.conflicts(&range, merges)).count()
        } else {
            0
        };
        let waiter = (blockers > 0).then(|| (Arc::clone(notifier), slot));
        table.merges += usize::from(merges);
        table.waiting += usize::from(blockers > 0);
        table.entries.push(Entry { number, range, merges, blockers, waiter });
        drop(table);
        (RangeTicket { ranges: Arc::clone(self), number }, blockers == 0)
    }

    fn leave(&self, number: u64) {
        let mut table = self.lock();
        let Ok(at) = table.entries.binary_search_by_key(&number, |entry| entry.number) else {
            return;
        };
        let Entry { range, merges, blockers, .. } = table.entries.remove(at);
        table.merges -= usize::from(merges);
        table.waiting -= usize::from(blockers > 0);
        let mut wakes = Vec::new();
        if table.waiting > 0 {
            let later = table.entries.get_mut(at..).unwrap_or_default();
            let mut granted = 0;
            for entry in later.iter_mut().filter(|entry| entry.conflicts(&range, merges)) {
                entry.blockers -= 1;
                if entry.blockers == 0
                    && let Some((notifier, slot)) = entry.waiter.take()
                {
                    granted += 1;
                    if notifier.put(Some((slot, entry.number))) {
                        wakes.push(notifier);
                    }
                }
            }
            table.waiting -= granted;
        }
        drop(table);
        wakes.iter().for_each(|notifier| notifier.wake());
    }

    /// Wakes all channels with waiting requests, because the requests that they wait for may now
    /// wait for space on the storage.
    pub(super) fn notify_waiting(&self) {
        let table = self.lock();
        if table.waiting == 0 {
            return;
        }
        let waiters = table.entries.iter().filter_map(|entry| entry.waiter.as_ref());
        let wakes = waiters.filter(|(notifier, _)| notifier.put(None));
        let wakes: Vec<_> = wakes.map(|(notifier, _)| Arc::clone(notifier)).collect();
        drop(table);
        wakes.iter().for_each(|notifier| notifier.wake());
    }
}

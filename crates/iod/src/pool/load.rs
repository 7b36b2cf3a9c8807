//! Load of each reactor and the decisions that follow. It does no I/O and gets the time as an
//! argument.

use std::collections::BTreeMap;

use reactor::OwnerId;

/// Shortest interval between two readings of a counter. Shorter intervals are not meaningful.
const WINDOW_MIN_NS: u64 = 100_000_000;
/// Smallest significant load difference, in thousandths of a CPU: an eighth. Loads that differ by
/// less are equal, and a queue with less load is not busy.
const STEP: u64 = 125;
/// Most moves of one decision. The next decision follows the next event.
const MOVES_MAX: usize = 64;

/// Source of load that can be placed on a reactor.
pub(super) trait LoadSource {
    /// Returns the busy time in nanoseconds, if it is counted.
    fn busy_ns(&self) -> Option<u64>;

    /// Returns the owner; 0 means none.
    fn label(&self) -> OwnerId;

    /// Returns whether it can be moved.
    fn can_move(&self) -> bool;
}

#[derive(Debug)]
struct Entry<L> {
    reactor: usize,
    lodger: L,
    /// Time and value of the last reading of its counter.
    read: (u64, u64),
    /// Load between the last two readings. `None` if it was placed since.
    load: Option<u64>,
    /// True while it is being moved. Its placement and removal are not events then.
    moving: bool,
}

/// Load sources on each reactor, by number.
#[derive(Debug)]
pub(super) struct ReactorLoads<L> {
    reactors: usize,
    entries: BTreeMap<u64, Entry<L>>,
    next: u64,
    read_at: u64,
}

/// Totals of one reactor.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    load: u64,
    busy: usize,
    queues: usize,
    /// Number of queues of one owner.
    same: usize,
}

impl<L> Default for ReactorLoads<L> {
    fn default() -> Self {
        Self::new(0)
    }
}

impl<L: LoadSource> Entry<L> {
    /// Returns the assumed load. An unknown load counts as one [`STEP`]; otherwise all new queues
    /// would go to the same reactor. A queue whose load is not counted has none, because it would
    /// never get one.
    fn weight(&self) -> u64 {
        self.load.unwrap_or(if self.lodger.busy_ns().is_some() { STEP } else { 0 })
    }
}

impl<L> Entry<L> {
    fn is_busy(&self) -> bool {
        self.load.is_some_and(|load| load >= STEP)
    }
}

impl<L> ReactorLoads<L> {
    pub(super) fn new(reactors: usize) -> Self {
        Self { reactors, entries: BTreeMap::new(), next: 0, read_at: 0 }
    }

    pub(super) fn get(&self, id: u64) -> Option<&L> {
        self.entries.get(&id).map(|entry| &entry.lodger)
    }

    /// Removes an entry. Returns its load source, and whether the removal is an event.
    pub(super) fn remove(&mut self, id: u64) -> Option<(L, bool)> {
        self.entries.remove(&id).map(|entry| (entry.lodger, !entry.moving))
    }

    /// Ends a move, whichever of its two entries was removed.
    pub(super) fn moved(&mut self, ids: [u64; 2]) {
        for id in ids {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.moving = false;
            }
        }
    }

    /// Returns the entries on a reactor.
    #[cfg(test)]
    pub(super) fn on(&self, reactor: usize) -> Vec<u64> {
        let there = self.entries.iter().filter(|(_, entry)| entry.reactor == reactor);
        there.map(|(id, _)| *id).collect()
    }

    /// Returns the number of entries on each reactor.
    pub(super) fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.reactors];
        for entry in self.entries.values() {
            if let Some(count) = counts.get_mut(entry.reactor) {
                *count += 1;
            }
        }
        counts
    }

    fn insert(&mut self, entry: Entry<L>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.entries.insert(id, entry);
        id
    }
}

impl<L: LoadSource> ReactorLoads<L> {
    /// Adds a load source.
    pub(super) fn add(&mut self, reactor: usize, lodger: L, now_ns: u64) -> u64 {
        let read = (now_ns, lodger.busy_ns().unwrap_or(0));
        self.insert(Entry { reactor, lodger, read, load: None, moving: false })
    }

    /// Adds a second entry for a load source that is about to move, with the same load.
    pub(super) fn add_move_target(&mut self, id: u64, reactor: usize) -> Option<u64>
    where
        L: Clone,
    {
        let entry = self.entries.get_mut(&id)?;
        entry.moving = true;
        let Entry { lodger, read, load, .. } = entry;
        let lodger = lodger.clone();
        let twin = Entry { reactor, lodger, read: *read, load: *load, moving: true };
        Some(self.insert(twin))
    }

    /// Reads the counters, unless the last reading is too recent.
    pub(super) fn read(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.read_at) < WINDOW_MIN_NS {
            return;
        }
        self.read_at = now_ns;
        for entry in self.entries.values_mut() {
            let Some(busy) = entry.lodger.busy_ns() else { continue };
            let (then, before) = entry.read;
            let window = now_ns.saturating_sub(then);
            if window >= WINDOW_MIN_NS {
                // A counter that decreased has restarted.
                let spent = busy.saturating_sub(before);
                entry.load = Some((spent / (window / 1000)).min(1000));
                entry.read = (now_ns, busy);
            }
        }
    }

    /// Returns whether a load source was added after the last reading. The next reading will
    /// measure it.
    pub(super) fn unmeasured(&self) -> bool {
        let mut entries = self.entries.values();
        entries.any(|entry| entry.load.is_none() && entry.lodger.busy_ns().is_some())
    }

    fn sums(&self, label: OwnerId) -> Vec<Sum> {
        let mut sums = vec![Sum::default(); self.reactors];
        for entry in self.entries.values() {
            let Some(sum) = sums.get_mut(entry.reactor) else { continue };
            sum.load += entry.weight();
            sum.busy += usize::from(entry.is_busy());
            sum.queues += 1;
            sum.same += usize::from(label != 0 && entry.lodger.label() == label);
        }
        sums
    }

    /// Chooses a reactor for the next queue of `label` among the `first` reactors. The order is:
    /// least load, then fewest queues of its owner, so that one disk can use every reactor, then
    /// fewest queues.
    pub(super) fn least(&self, first: usize, label: OwnerId) -> usize {
        let sums = self.sums(label);
        let key = |(at, sum): &(usize, &Sum)| (sum.load / STEP, sum.same, sum.queues, *at);
        sums.iter().take(first).enumerate().min_by_key(key).map_or(0, |(at, _)| at)
    }

    /// Returns the moves that reduce imbalance, and their targets. They continue while one reactor
    /// has at least two busy queues more than another, and a move reduces the load of the busier
    /// one.
    pub(super) fn find_imbalance(&self) -> Vec<(u64, usize)> {
        let mut sums = self.sums(0);
        let mut at: BTreeMap<u64, usize> = BTreeMap::new();
        let mut moves = Vec::new();
        while moves.len() < MOVES_MAX {
            let by_busy = |(_, sum): &(usize, &Sum)| (sum.busy, sum.load);
            let ranked = || sums.iter().enumerate();
            let (Some((from, full)), Some((to, free))) =
                (ranked().max_by_key(by_busy), ranked().min_by_key(by_busy))
            else {
                break;
            };
            if full.busy < free.busy + 2 {
                break;
            }
            // Choose the queue whose move leaves the lower maximum load.
            let after = |load: u64| (full.load - load).max(free.load + load);
            let here = self.entries.iter().filter(|(id, entry)| {
                at.get(id).copied().unwrap_or(entry.reactor) == from
                    && entry.is_busy()
                    && entry.lodger.can_move()
            });
            let best = here.map(|(id, entry)| (after(entry.weight()), *id, entry.weight())).min();
            let Some((most, id, load)) = best.filter(|(most, ..)| most + STEP <= full.load) else {
                break;
            };
            debug_assert!(most <= full.load);
            at.insert(id, to);
            moves.push((id, to));
            for (reactor, joins) in [(from, false), (to, true)] {
                if let Some(sum) = sums.get_mut(reactor) {
                    sum.load = if joins { sum.load + load } else { sum.load - load };
                    sum.busy = if joins { sum.busy + 1 } else { sum.busy - 1 };
                }
            }
        }
        moves.retain(|(id, to)| at.get(id) == Some(to));
        moves
    }
}

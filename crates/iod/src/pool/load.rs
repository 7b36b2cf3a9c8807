//! Who is busy on which reactor, and what follows from it. Pure: it is told the time.

use std::collections::BTreeMap;

use reactor::OwnerId;

/// Two readings of a counter that lie closer together say little.
const WINDOW_MIN_NS: u64 = 100_000_000;
/// Loads are in thousandths of a CPU. Those that differ by less than this are equal, and a queue
/// below it is not busy: an eighth.
const STEP: u64 = 125;
/// Most moves of one decision: the next one follows when something comes or goes.
const MOVES_MAX: usize = 64;

/// What can be placed.
pub(super) trait LoadSource {
    /// Nanoseconds that it has been busy for, if somebody counts them.
    fn busy_ns(&self) -> Option<u64>;

    /// Whose it is; 0 for nobody's.
    fn label(&self) -> OwnerId;

    /// It need not stay where it is.
    fn can_move(&self) -> bool;
}

#[derive(Debug)]
struct Entry<L> {
    reactor: usize,
    lodger: L,
    /// When its counter was read last, and what it said.
    read: (u64, u64),
    /// How busy it was between the last two readings; not known of what has just come.
    load: Option<u64>,
    /// It is being moved: that it comes and goes is no event.
    moving: bool,
}

/// What is placed on each reactor, by number.
#[derive(Debug)]
pub(super) struct ReactorLoads<L> {
    reactors: usize,
    entries: BTreeMap<u64, Entry<L>>,
    next: u64,
    read_at: u64,
}

/// What a reactor has to do.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    load: u64,
    busy: usize,
    queues: usize,
    /// Of one owner.
    same: usize,
}

impl<L> Default for ReactorLoads<L> {
    fn default() -> Self {
        Self::new(0)
    }
}

impl<L: LoadSource> Entry<L> {
    /// What is not known yet is expected to be of some weight: otherwise all that comes at once
    /// would go to the same reactor. What nobody counts has none: it would never have another.
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

    /// Gives a place back: who lived there, and whether that is an event.
    pub(super) fn remove(&mut self, id: u64) -> Option<(L, bool)> {
        self.entries.remove(&id).map(|entry| (entry.lodger, !entry.moving))
    }

    /// A move has ended, whichever of its two places was given back.
    pub(super) fn moved(&mut self, ids: [u64; 2]) {
        for id in ids {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.moving = false;
            }
        }
    }

    /// What is on a reactor.
    #[cfg(test)]
    pub(super) fn on(&self, reactor: usize) -> Vec<u64> {
        let there = self.entries.iter().filter(|(_, entry)| entry.reactor == reactor);
        there.map(|(id, _)| *id).collect()
    }

    /// How many are on each reactor.
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
    /// Something has come.
    pub(super) fn add(&mut self, reactor: usize, lodger: L, now_ns: u64) -> u64 {
        let read = (now_ns, lodger.busy_ns().unwrap_or(0));
        self.insert(Entry { reactor, lodger, read, load: None, moving: false })
    }

    /// A second place for a lodger who is about to move there, as busy as before.
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

    /// Reads the counters, if that was not done just now.
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
                // A counter that went back has begun anew.
                let spent = busy.saturating_sub(before);
                entry.load = Some((spent / (window / 1000)).min(1000));
                entry.read = (now_ns, busy);
            }
        }
    }

    /// Something came so late that no reading says yet how busy it is; the next one will.
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

    /// Where the next lodger of `label` goes, of the `first` reactors: to the least load, then to the
    /// fewest of its own, so that one disk can use every reactor, then to the fewest.
    pub(super) fn least(&self, first: usize, label: OwnerId) -> usize {
        let sums = self.sums(label);
        let key = |(at, sum): &(usize, &Sum)| (sum.load / STEP, sum.same, sum.queues, *at);
        sums.iter().take(first).enumerate().min_by_key(key).map_or(0, |(at, _)| at)
    }

    /// What should move, and where to: while one reactor has two busy ones more than another, and
    /// the busier of the two gets rid of some load by it.
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
            // The one after which the busier of the two is least busy.
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

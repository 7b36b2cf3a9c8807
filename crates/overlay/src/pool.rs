//! Free slots and places of a disk, and those that readers may still use.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::places::Places;
use crate::slot_order::SlotOrder;
use crate::waker::ChannelWaker;
use crate::word::Word;

/// Most slots that a channel takes at a time.
pub(crate) const BATCH: u32 = 64;

/// Free slots that the cleaner keeps ready for the next writes.
const STOCK: usize = 4 * BATCH as usize;

/// Slots and places. A lock protects it, which all threads hold for microseconds only.
#[derive(Debug)]
pub(crate) struct Pool {
    slots: u32,
    /// Free slots whose memory the host has provided.
    pub(crate) free: Vec<u32>,
    /// Free slots whose memory went back to the host.
    released: Vec<u32>,
    /// First of the slots that nothing has touched; all behind it are such, too.
    pub(crate) untouched: u32,
    pub(crate) order: SlotOrder,
    /// What has left the map, by the epoch in which it did.
    limbo: VecDeque<(u64, Word)>,
    pub(crate) places: Places,
    /// Channels whose writes wait for slots.
    waiting: Vec<Arc<ChannelWaker>>,
    /// Number of the cleaner that works. All others end.
    pub(crate) cleaner: u64,
}

impl Pool {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            slots,
            free: Vec::new(),
            released: Vec::new(),
            untouched: 0,
            order: SlotOrder::new(slots),
            limbo: VecDeque::new(),
            places: Places::default(),
            waiting: Vec::new(),
            cleaner: 0,
        }
    }

    /// Returns the number of free slots.
    pub(crate) fn free_slots(&self) -> u32 {
        (self.free.len() + self.released.len()) as u32 + (self.slots - self.untouched)
    }

    /// Returns how many slots a channel takes at a time: few of a small memory, so that stocks do not
    /// keep all of it.
    pub(crate) fn batch(&self) -> u32 {
        (self.slots / 256).clamp(1, BATCH)
    }

    /// The cleaner begins to free slots when fewer are free than this.
    pub(crate) fn low(&self) -> u32 {
        (self.slots / 8).max(1)
    }

    /// The cleaner ends when this many are free.
    pub(crate) fn high(&self) -> u32 {
        (self.slots / 4).max(2)
    }

    /// Returns whether the cleaner should prepare memory.
    pub(crate) fn wants_touch(&self) -> bool {
        let is_left = self.untouched < self.slots || !self.released.is_empty();
        is_left && self.free.len() < STOCK
    }

    /// Returns how many free slots keep their memory: those of the next writes, and all that the
    /// cleaner frees for an overflow file at a time.
    fn kept(&self, cleans: bool) -> usize {
        4 * STOCK + if cleans { self.high() as usize } else { 0 }
    }

    /// Returns whether the cleaner should give memory back. `cleans`: there is an overflow file.
    pub(crate) fn wants_release(&self, cleans: bool) -> bool {
        self.free.len() > 2 * self.kept(cleans)
    }

    /// Takes up to `most` slots whose memory goes back to the host. The caller ends with
    /// [`Self::released`].
    pub(crate) fn take_excess(&mut self, cleans: bool, most: usize) -> Vec<u32> {
        let excess = self.free.len().saturating_sub(self.kept(cleans)).min(most);
        let mut slots: Vec<_> = self.free.drain(..excess).collect();
        slots.sort_unstable();
        slots
    }

    /// Notes slots whose memory is with the host.
    pub(crate) fn released(&mut self, slots: Vec<u32>) {
        self.released.extend(slots);
    }

    /// Takes up to `most` free slots that have no memory yet. They are nowhere until the caller puts
    /// them into [`Self::free`].
    pub(crate) fn take_untouched(&mut self, most: u32) -> Vec<u32> {
        let count = self.released.len().saturating_sub(most as usize);
        let mut slots = self.released.split_off(count);
        slots.sort_unstable();
        let end = self.slots.min(self.untouched + (most - slots.len() as u32));
        slots.extend(self.untouched..end);
        self.untouched = end;
        slots
    }

    /// Takes up to a batch of slots for a channel.
    pub(crate) fn hand_out(&mut self, stock: &mut Vec<u32>) {
        for _ in 0..self.batch() {
            let slot = match self.free.pop().or_else(|| self.released.pop()) {
                Some(slot) => slot,
                None if self.untouched < self.slots => {
                    self.untouched += 1;
                    self.untouched - 1
                }
                None => return,
            };
            self.order.push(slot);
            stock.push(slot);
        }
    }

    /// Notes what has left the map before `epoch` ended.
    pub(crate) fn retire(&mut self, epoch: u64, words: impl IntoIterator<Item = Word>) {
        let words = words.into_iter().filter(|word| word.takes_space());
        self.limbo.extend(words.map(|word| (epoch, word)));
    }

    /// Frees what left the map before `oldest`. Returns whether a slot is free.
    pub(crate) fn reclaim(&mut self, oldest: u64) -> bool {
        while let Some((_, word)) = self.limbo.front().filter(|(epoch, _)| *epoch < oldest) {
            match *word {
                Word::Slot(slot) => self.give_back(slot),
                Word::Place(place) => self.places.free(place),
                Word::Base | Word::Zero => {}
            }
            self.limbo.pop_front();
        }
        self.free_slots() > 0
    }

    /// Returns whether something waits for readers to end.
    pub(crate) fn has_limbo(&self) -> bool {
        !self.limbo.is_empty()
    }

    /// Frees a slot that was never published.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.order.remove(slot);
        self.free.push(slot);
    }

    /// Notes that a channel waits for slots.
    pub(crate) fn wait(&mut self, waker: &Arc<ChannelWaker>) {
        if !self.waiting.iter().any(|one| Arc::ptr_eq(one, waker)) {
            self.waiting.push(Arc::clone(waker));
        }
    }

    /// Returns whether channels wait for slots.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Lets all channels that wait look for slots.
    pub(crate) fn wake_all(&mut self) {
        self.waiting.drain(..).for_each(|waker| waker.wake());
    }

    /// Marks a slot of a former process as used, in the order of its granule. Returns false if the
    /// slot does not exist or is used twice.
    pub(crate) fn restore_slot(&mut self, slot: u32, used: &mut [bool]) -> bool {
        match used.get_mut(slot as usize) {
            Some(used) if !*used => *used = true,
            _ => return false,
        }
        self.order.push(slot);
        true
    }

    /// Sets the free slots of a disk that a former process had: all that it did not use.
    pub(crate) fn set_free(&mut self, used: &[bool]) {
        let last = used.iter().rposition(|used| *used).map_or(0, |last| last + 1);
        self.untouched = last as u32;
        let free = used.iter().enumerate().take(last).filter(|(_, used)| !**used);
        self.free = free.map(|(slot, _)| slot as u32).collect();
    }
}

//! State that the channels and the cleaner of a disk share.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ::disk::RoomWaits;
use ::memory::{Mapping, MemoryError};
use image::map::Epochs;

use crate::counters::Counters;
use crate::memory::OverlayMemory;
use crate::overflow::Overflow;
use crate::pool::Pool;
use crate::waker::ChannelWaker;
use crate::word::Word;

/// Shared state of one disk.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: OverlayMemory,
    /// Granule of each slot, plus one. It says where to look; the map says whether it is so.
    granule_of: Mapping,
    pool: Mutex<Pool>,
    /// Notified when the cleaner has work, or must end.
    pub(crate) work: Condvar,
    /// Held by the cleaner that works.
    pub(crate) cleaning: Mutex<()>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) overflow: Option<Overflow>,
    pub(crate) room_waits: Arc<RoomWaits>,
    pub(crate) counters: Counters,
    /// Slots that are being filled from the base.
    pub(crate) base_fills: AtomicU32,
    /// True while channels wait for slots.
    has_waiting: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        memory: OverlayMemory,
        overflow: Option<Overflow>,
    ) -> Result<Self, MemoryError> {
        let slots = memory.slots();
        let room_waits = match &overflow {
            Some(overflow) => Arc::clone(overflow.disk.room_waits()),
            None => Arc::default(),
        };
        Ok(Self {
            granule_of: Mapping::private(slots as usize * 8)?,
            memory,
            pool: Mutex::new(Pool::new(slots)),
            work: Condvar::new(),
            cleaning: Mutex::default(),
            epochs: Arc::default(),
            overflow,
            room_waits,
            counters: Counters::default(),
            base_fills: AtomicU32::new(0),
            has_waiting: AtomicBool::new(false),
        })
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many slots may wait for the base. Its source may be gone, and writes of whole granules
    /// need slots that the cleaner can free.
    pub(crate) fn base_fills_max(&self) -> u32 {
        self.memory.slots() / 8
    }

    /// Notes for which granule a slot is about to be published.
    #[inline]
    pub(crate) fn set_granule(&self, slot: u32, granule: u64) {
        if let Some(cell) = self.granule_of.cells().get(slot as usize) {
            cell.store(granule + 1, Ordering::Release);
        }
    }

    /// Returns the granule of a slot, if it is published.
    pub(crate) fn published(&self, slot: u32) -> Option<u64> {
        let granule = self.granule_of.cells().get(slot as usize)?.load(Ordering::Acquire);
        let granule = granule.checked_sub(1)?;
        (self.memory.word(granule) == Word::Slot(slot)).then_some(granule)
    }

    /// Fills a channel's stock, and retires what its writes have replaced. If there is no slot, the
    /// channel is woken when there may be one.
    pub(crate) fn refill(
        &self,
        stock: &mut Vec<u32>,
        retired: &mut Vec<Word>,
        waker: &Arc<ChannelWaker>,
    ) {
        let mut pool = self.pool();
        self.retire_locked(&mut pool, retired);
        pool.hand_out(stock);
        if stock.is_empty() {
            pool.wait(waker);
            // Before the last look: whoever frees something later sees it.
            self.has_waiting.store(true, Ordering::SeqCst);
            pool.reclaim(self.epochs.oldest());
            pool.hand_out(stock);
            if self.overflow.is_none() && stock.is_empty() && !pool.has_limbo() {
                self.set_full(true);
            }
        }
        if self.is_short(&pool)
            || pool.wants_touch()
            || stock.is_empty()
            || self.wants_release(&pool)
        {
            self.work.notify_one();
        }
    }

    fn retire_locked(&self, pool: &mut Pool, retired: &mut Vec<Word>) {
        if !retired.is_empty() {
            pool.retire(self.epochs.advance(), retired.drain(..));
        }
        pool.reclaim(self.epochs.oldest());
    }

    /// Retires words, and wakes channels that wait for slots.
    pub(crate) fn retire(&self, retired: &mut Vec<Word>) {
        let mut pool = self.pool();
        self.retire_locked(&mut pool, retired);
        self.wake_waiting(&mut pool);
        if self.wants_release(&pool) {
            self.work.notify_one();
        }
    }

    /// Returns whether slots should be moved to the overflow file.
    pub(crate) fn is_short(&self, pool: &Pool) -> bool {
        self.overflow.is_some() && pool.free_slots() < pool.low()
    }

    /// Returns whether memory or space of the overflow file should go back.
    pub(crate) fn wants_release(&self, pool: &Pool) -> bool {
        let can_punch = self.overflow.as_ref().is_some_and(Overflow::can_punch);
        pool.wants_release(self.overflow.is_some()) || can_punch && pool.places.wants_punch()
    }

    /// Wakes the channels that wait if there is a free slot.
    pub(crate) fn wake_waiting(&self, pool: &mut Pool) {
        if pool.has_waiting() && pool.free_slots() > 0 {
            self.set_full(false);
            self.has_waiting.store(false, Ordering::SeqCst);
            pool.wake_all();
        }
        // Full storage may have got room for the cleaner.
        if pool.has_waiting() {
            self.work.notify_one();
        }
    }

    /// Returns whether channels wait for slots.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::Relaxed)
    }

    /// Returns whether the overflow file has contents of this disk.
    fn has_begun(&self) -> bool {
        self.memory.overflow_id().load(Ordering::Acquire) != 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.counters.is_full.load(Ordering::Relaxed)
    }

    /// Notes whether neither memory nor overflow file has space.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.counters.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Gives the slots of a channel back that ends.
    pub(crate) fn return_stock(&self, stock: &mut Vec<u32>, retired: &mut Vec<Word>) {
        let mut pool = self.pool();
        stock.drain(..).for_each(|slot| pool.give_back(slot));
        self.retire_locked(&mut pool, retired);
        self.wake_waiting(&mut pool);
    }

    /// Finds in a map of a former process which slots and places are in use.
    ///
    /// # Errors
    /// The map names a slot twice, or one that does not exist.
    pub(crate) fn restore(&self) -> Result<(), String> {
        let mut pool = Pool::new(self.memory.slots());
        let mut used = vec![false; self.memory.slots() as usize];
        let mut problem = None;
        let limit = self.overflow.as_ref().map_or(0, super::overflow::Overflow::limit);
        self.memory.each_word(0, |granule, word| {
            let is_good = match word {
                Word::Slot(slot) => {
                    self.set_granule(slot, granule);
                    pool.restore_slot(slot, &mut used)
                }
                Word::Place(place) => place < limit && pool.places.take(place),
                Word::Base | Word::Zero => true,
            };
            if !is_good {
                problem = Some(format!("its map is damaged at granule {granule}"));
            }
            is_good
        });
        pool.set_free(&used);
        if let Some(overflow) = self.overflow.as_ref().filter(|_| self.has_begun()) {
            pool.places.back_all(overflow.places());
        }
        let mut present = self.pool();
        pool.cleaner = present.cleaner;
        *present = pool;
        drop(present);
        problem.map_or(Ok(()), Err)
    }
}

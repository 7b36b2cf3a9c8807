//! Thread of a disk that copies slots to the overflow file, and prepares memory.

mod give_back;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ::memory::ThreadMapping;
use image::map::EpochSlot;

use crate::overflow::{AlignedBytes, Overflow};
use crate::places::Run;
use crate::pool::Pool;
use crate::shared::Shared;
use crate::word::Word;
use crate::{BYTES, GRANULE};

/// Most slots of one write.
const RUN: usize = 256;
/// Slots whose memory is prepared at a time.
const TOUCH: u32 = 1024;
/// Time after which an overflow file that is full, or that fails, is tried again. The kernel has no
/// event for it.
const RETRY: Duration = Duration::from_millis(500);

/// Running cleaner.
#[derive(Debug)]
pub(crate) struct Cleaner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Cleaner {
    /// Starts the thread.
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let mut pool = shared.pool();
        pool.cleaner += 1;
        let worker = Worker::new(Arc::clone(shared), pool.cleaner);
        drop(pool);
        let thread = std::thread::Builder::new().name("overlay".into());
        let thread = thread.spawn(move || worker.run())?;
        Ok(Self { shared: Arc::clone(shared), thread: Some(thread) })
    }
}

impl Drop for Cleaner {
    /// Ends the thread, which may wait for the storage.
    fn drop(&mut self) {
        self.shared.pool().cleaner += 1;
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    number: u64,
    epochs: EpochSlot,
    bytes: Option<AlignedBytes>,
    /// Slots of the present run, with their granules.
    victims: Vec<(u64, u32)>,
}

/// Reason for a pause.
#[derive(Debug, PartialEq, Eq)]
enum Pause {
    /// There is nothing to do until the next notification.
    Idle,
    /// The overflow file is full, or fails.
    Retry,
}

impl Worker {
    fn new(shared: Arc<Shared>, number: u64) -> Self {
        let epochs = shared.epochs.open_slot();
        Self { shared, number, epochs, bytes: None, victims: Vec::new() }
    }

    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        // A former one may still wait for the storage.
        let only_one = shared.cleaning.lock().unwrap_or_else(PoisonError::into_inner);
        if self.must_end(&shared.pool()) {
            return;
        }
        if let Some(overflow) = &shared.overflow
            && shared.memory.overflow_id().load(Ordering::Acquire) == 0
        {
            // Nothing knows what a former disk has left there.
            self.begin(overflow);
        }
        self.measure_room();
        let mut pause = Pause::Idle;
        loop {
            let pool = shared.pool();
            if self.must_end(&pool) {
                break;
            }
            if !self.has_work(&pool) || pause == Pause::Retry {
                drop(wait(&shared, pool, &pause));
            } else {
                drop(pool);
            }
            pause = self.turn();
        }
        drop(only_one);
    }

    fn must_end(&self, pool: &Pool) -> bool {
        pool.cleaner != self.number
    }

    fn has_work(&self, pool: &Pool) -> bool {
        pool.wants_touch() || self.shared.is_short(pool) || self.shared.wants_release(pool)
    }

    /// Does all there is to do.
    fn turn(&mut self) -> Pause {
        let shared = Arc::clone(&self.shared);
        let mut pool = shared.pool();
        pool.reclaim(shared.epochs.oldest());
        shared.wake_waiting(&mut pool);
        let wants_touch = pool.wants_touch();
        let is_short = shared.is_short(&pool);
        let wants_release = shared.wants_release(&pool);
        drop(pool);
        if wants_touch {
            self.touch();
        }
        if wants_release && !is_short {
            self.release();
            self.punch();
        }
        if is_short {
            let pause = self.clean();
            self.measure_room();
            return pause;
        }
        Pause::Idle
    }

    /// Notes for how much the overflow file has room.
    fn measure_room(&self) {
        if let Some(overflow) = &self.shared.overflow {
            let limit = overflow.limit_bytes();
            self.shared.counters.overflow_limit.store(limit, Ordering::Relaxed);
        }
    }

    /// Prepares memory, so that no write waits for the host to provide it.
    fn touch(&self) {
        let slots = self.shared.pool().take_untouched(TOUCH);
        for run in slots.chunk_by(|one, next| one + 1 == *next) {
            let at = self.shared.memory.slot_at(run.first().copied().unwrap_or_default());
            // Without memory now, a write will find out.
            let _ = self.shared.memory.mapping().populate(at, run.len() * BYTES);
        }
        let mut pool = self.shared.pool();
        pool.free.extend(slots.iter().rev());
        self.shared.wake_waiting(&mut pool);
    }

    /// Moves slots to the overflow file until enough are free.
    fn clean(&mut self) -> Pause {
        let shared = Arc::clone(&self.shared);
        let Some(overflow) = &shared.overflow else { return Pause::Idle };
        if shared.memory.overflow_id().load(Ordering::Acquire) == 0 && !self.begin(overflow) {
            return Pause::Retry;
        }
        loop {
            let pool = shared.pool();
            if self.must_end(&pool) || pool.free_slots() >= pool.high() {
                return Pause::Idle;
            }
            drop(pool);
            match self.move_run(overflow) {
                Ok(true) => {}
                // All else is in stocks, or readers keep it: whoever ends notifies.
                Ok(false) => return Pause::Retry,
                Err(error) => {
                    self.report(&error);
                    return Pause::Retry;
                }
            }
        }
    }

    /// Gives the overflow file its header. Returns whether that succeeded.
    fn begin(&self, overflow: &Overflow) -> bool {
        let mut id = [0; 8];
        let random = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
        let id = u64::from_le_bytes(id).max(1);
        match random.map_err(io::Error::from).and_then(|_| overflow.begin(id)) {
            Ok(()) => {
                self.shared.memory.overflow_id().store(id, Ordering::Release);
                true
            }
            Err(error) => {
                self.report(&error);
                false
            }
        }
    }

    /// Notes that the overflow file takes nothing more for now.
    fn report(&self, error: &io::Error) {
        let errno = rustix::io::Errno::from_io_error(error);
        let is_full = matches!(
            errno,
            Some(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT | rustix::io::Errno::FBIG)
        );
        if !is_full {
            let before = self.shared.counters.errors.fetch_add(1, Ordering::Relaxed);
            if before == 0 {
                tracing::warn!(
                    "the overflow file cannot be written: {error}; written blocks stay in memory"
                );
            }
        }
        let mut pool = self.shared.pool();
        if pool.has_waiting() && !self.shared.is_full() {
            self.shared.set_full(true);
            // They count as waiting for space from now on, and those that drain give up.
            pool.wake_all();
        }
    }

    /// Moves the slots that were written longest ago. Returns whether there was one.
    fn move_run(&mut self, overflow: &Overflow) -> io::Result<bool> {
        // Before the words are loaded: a victim's slot is not reused before this ends.
        let hold = self.epochs.enter();
        let moved = self.copy_run(overflow);
        self.epochs.leave(hold);
        let mut freed: Vec<Word> = Vec::new();
        let moved = moved.map(|(run, written)| {
            let places = run.first..run.first + run.len;
            for (place, &(granule, slot)) in places.zip(&self.victims) {
                let (old, new) = (Word::Slot(slot), Word::Place(place));
                let is_same = written && self.shared.memory.exchange_if(granule, old, new);
                // A place that was not published has no reader.
                freed.push(if is_same { old } else { new });
            }
            run.len
        });
        self.shared.retire(&mut freed);
        moved.map(|moved| moved > 0)
    }

    fn copy_run(&mut self, overflow: &Overflow) -> io::Result<(Run, bool)> {
        let shared = Arc::clone(&self.shared);
        self.victims.clear();
        let pool = shared.pool();
        let live = pool.order.iter().filter_map(|slot| Some((shared.published(slot)?, slot)));
        self.victims.extend(live.take(RUN));
        drop(pool);
        // Neighbours are read together later.
        self.victims.sort_unstable();
        let len = self.victims.len() as u64;
        if len == 0 {
            return Ok((Run { first: 0, len: 0 }, false));
        }
        let run = shared.pool().places.take_run(len, overflow.limit_of_new());
        let Some(run) = run else { return Err(rustix::io::Errno::NOSPC.into()) };
        self.victims.truncate(run.len as usize);
        let source = ThreadMapping::over(Arc::clone(shared.memory.mapping()));
        let bytes = self.bytes.get_or_insert_with(|| AlignedBytes::new(RUN));
        for (index, (_, slot)) in self.victims.iter().enumerate() {
            // Slots are inside of the memory.
            let _ = source.read(shared.memory.slot_at(*slot), bytes.granule(index));
        }
        let written = overflow.write(run.first, bytes, run.len as usize);
        let done = *written.as_ref().unwrap_or(&0) as u64;
        let (run, rest) = (
            Run { first: run.first, len: done },
            Run { first: run.first + done, len: run.len - done },
        );
        if rest.len > 0 {
            let mut pool = shared.pool();
            let error = written.as_ref().err().and_then(rustix::io::Errno::from_io_error);
            if error == Some(rustix::io::Errno::IO) {
                (rest.first..rest.first + rest.len).for_each(|place| pool.places.set_bad(place));
            }
            pool.places.give_up(rest);
        }
        written?;
        shared.counters.moved.fetch_add(run.len * GRANULE, Ordering::Relaxed);
        Ok((run, true))
    }
}

/// Waits for a notification, or for the next try.
fn wait<'a>(shared: &'a Shared, pool: MutexGuard<'a, Pool>, pause: &Pause) -> MutexGuard<'a, Pool> {
    if *pause == Pause::Retry && pool.has_waiting() {
        let waited = shared.work.wait_timeout(pool, RETRY);
        return waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    shared.work.wait(pool).unwrap_or_else(PoisonError::into_inner)
}

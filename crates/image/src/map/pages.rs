//! Pages of words, shared by all maps of a process.
//!
//! A pool has a limit. A map that needs a page beyond it unlinks one of its own. Each map may have
//! [`RESERVE`] pages in any case, so none waits for others. A map with less than its share makes the
//! largest one give pages back.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Words of a page.
pub const PAGE_WORDS: usize = 512;
/// Pages that are allocated together.
const CHUNK: usize = 64;
/// Pages that each map may have, even if the pool is at its limit.
const RESERVE: u32 = 4;
/// Maps that get their reserve.
const RESERVES: usize = 16 << 10;
/// Most pages that a map is asked to give back at a time.
const GIVE_MAX: u32 = 256;

type Chunk = Box<[[AtomicU64; PAGE_WORDS]; CHUNK]>;
type NotifyFn = dyn Fn() + Send + Sync;

/// Bounded pool of pages. A page that was handed out stays readable for ever, so that a reader
/// never meets freed memory. Epochs say when a page has no reader any more.
#[derive(Debug)]
pub struct PagePool {
    chunks: Box<[OnceLock<Chunk>]>,
    limit: u32,
    reserve: u32,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    free: Vec<u32>,
    /// First page that was never handed out.
    next: u32,
    users: Vec<Weak<PageUser>>,
}

/// One map as a user of a pool.
pub struct PageUser {
    pool: Arc<PagePool>,
    used: AtomicU32,
    /// Pages to give back.
    excess: AtomicU32,
    notify: OnceLock<Box<NotifyFn>>,
}

impl fmt::Debug for PageUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageUser({})", self.used())
    }
}

impl PagePool {
    /// Creates a pool of at most `pages` pages of 4 KiB, and 4 more for each map that needs them.
    pub fn new(pages: u32) -> Self {
        Self::with_reserve(pages, RESERVE)
    }

    pub(crate) fn with_reserve(limit: u32, reserve: u32) -> Self {
        let chunks = (limit as usize + RESERVES * reserve as usize).div_ceil(CHUNK);
        let chunks = (0..chunks).map(|_| OnceLock::new()).collect();
        Self { chunks, limit, reserve, state: Mutex::default() }
    }

    /// Adds a map.
    pub fn join(self: &Arc<Self>) -> Arc<PageUser> {
        let (used, excess, notify) = Default::default();
        let user = Arc::new(PageUser { pool: Arc::clone(self), used, excess, notify });
        let users = &mut self.state().users;
        users.retain(|one| one.strong_count() > 0);
        users.push(Arc::downgrade(&user));
        user
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of pages in use.
    pub fn used(&self) -> usize {
        let state = self.state();
        state.next as usize - state.free.len()
    }

    /// Returns a word of a page that was taken. `None` for one that was not. Only the low bits of
    /// `index` count: a page has [`PAGE_WORDS`].
    #[inline]
    pub(crate) fn word(&self, page: u32, index: usize) -> Option<&AtomicU64> {
        let chunk = self.chunks.get(page as usize / CHUNK)?.get()?;
        // Both are below the lengths, so that no check is compiled.
        chunk.get(page as usize % CHUNK)?.get(index % PAGE_WORDS)
    }

    fn take_free(&self, state: &mut PoolState) -> Option<u32> {
        if let Some(page) = state.free.pop() {
            return Some(page);
        }
        let page = state.next;
        let chunk = self.chunks.get(page as usize / CHUNK)?;
        if chunk.get().is_none() {
            let pages = (0..CHUNK).map(|_| [const { AtomicU64::new(0) }; PAGE_WORDS]);
            let pages: Box<[_]> = pages.collect();
            // Nothing else sets it: the caller has the lock.
            let _ = chunk.set(pages.try_into().ok()?);
        }
        state.next += 1;
        Some(page)
    }
}

impl PageUser {
    /// Takes a page, whose words are arbitrary. `None` if the pool is at its limit. Then the map
    /// with the most pages is asked for some, if this one has less than its share.
    pub fn take(&self) -> Option<u32> {
        let pool = &self.pool;
        let mut state = pool.state();
        let is_free = state.next as usize - state.free.len() < pool.limit as usize;
        if is_free || self.used() < pool.reserve {
            let page = pool.take_free(&mut state)?;
            self.used.fetch_add(1, Ordering::Relaxed);
            return Some(page);
        }
        let users: Vec<_> = state.users.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        let share = pool.limit / u32::try_from(users.len()).unwrap_or(u32::MAX).max(1);
        let has_more = |one: &&Arc<Self>| one.used() > share && one.excess() == 0;
        let largest = users.iter().filter(has_more).max_by_key(|one| one.used());
        if let Some(largest) = largest.filter(|_| self.used() < share) {
            largest.excess.store((largest.used() - share).min(GIVE_MAX), Ordering::Relaxed);
            largest.notify.get().into_iter().for_each(|notify| notify());
        }
        None
    }

    /// Gives a page back that no reader uses any more.
    pub fn put(&self, page: u32) {
        self.used.fetch_sub(1, Ordering::Relaxed);
        self.pool.state().free.push(page);
    }

    /// Returns the number of pages of this map.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Sets what makes the owner of the map give pages back. Only the first call has an effect.
    pub fn set_notify(&self, notify: Box<NotifyFn>) {
        let _ = self.notify.set(notify);
    }

    /// Returns the number of pages to give back.
    pub fn excess(&self) -> u32 {
        self.excess.load(Ordering::Relaxed)
    }

    pub(crate) fn clear_excess(&self) {
        self.excess.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn word(&self, page: u32, index: usize) -> Option<&AtomicU64> {
        self.pool.word(page, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_bounded_and_takes_pages_back() {
        let pool = Arc::new(PagePool::with_reserve(64, 0));
        let user = pool.join();
        assert!(pool.word(0, 0).is_none());
        let pages: Vec<_> = std::iter::from_fn(|| user.take()).collect();
        assert_eq!((pages.len(), pool.used(), user.used()), (64, 64, 64));
        assert!(pool.word(63, PAGE_WORDS - 1).is_some() && pool.word(64, 0).is_none());
        user.put(pages[5]);
        assert_eq!(user.take(), Some(pages[5]));
    }

    #[test]
    fn a_map_without_pages_gets_its_reserve_and_the_largest_one_gives_some_back() {
        let pool = Arc::new(PagePool::new(100));
        let (large, small) = (pool.join(), pool.join());
        let notified = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&notified);
        large.set_notify(Box::new(move || _ = counter.fetch_add(1, Ordering::Relaxed)));
        while large.take().is_some() {}
        assert_eq!((large.used(), large.excess()), (100, 0), "nobody else wants them");
        let taken = std::iter::from_fn(|| small.take()).count();
        assert_eq!((taken, large.excess()), (RESERVE as usize, 50));
        assert!(small.take().is_none());
        assert_eq!(notified.load(Ordering::Relaxed), 1, "it is asked once");
        // Until the pool is below its limit, the pages count for the reserve.
        (0..=RESERVE).for_each(|page| large.put(page));
        assert!(small.take().is_some() && small.take().is_none());
    }
}

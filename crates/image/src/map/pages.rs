//! Pages of words, shared by all maps of a process.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Words of a page.
pub const PAGE_WORDS: usize = 512;
/// Pages that are allocated together.
const CHUNK: usize = 64;

type Chunk = Box<[[AtomicU64; PAGE_WORDS]]>;

/// Bounded pool of pages. A page that was handed out stays readable for ever, so that a reader
/// never meets freed memory. Epochs say when a page has no reader any more.
#[derive(Debug)]
pub struct PagePool {
    chunks: Box<[OnceLock<Chunk>]>,
    free: Mutex<FreePages>,
}

#[derive(Debug, Default)]
struct FreePages {
    list: Vec<u32>,
    /// First page that was never handed out.
    next: u32,
}

impl PagePool {
    /// Creates a pool of at most `pages` pages of 4 KiB, rounded up to whole chunks of 64.
    pub fn new(pages: u32) -> Self {
        let chunks = (pages as usize).div_ceil(CHUNK);
        let chunks = (0..chunks).map(|_| OnceLock::new()).collect();
        Self { chunks, free: Mutex::default() }
    }

    /// Takes a page, whose words are arbitrary. `None` if all are in use.
    pub fn take(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = free.list.pop() {
            return Some(page);
        }
        let page = free.next;
        let chunk = self.chunks.get(page as usize / CHUNK)?;
        chunk.get_or_init(|| {
            (0..CHUNK).map(|_| [const { AtomicU64::new(0) }; PAGE_WORDS]).collect()
        });
        free.next += 1;
        Some(page)
    }

    /// Gives a page back that no reader uses any more.
    pub fn put(&self, page: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).list.push(page);
    }

    /// Returns the number of pages in use.
    pub fn used(&self) -> usize {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.next as usize - free.list.len()
    }

    /// Returns a word of a page that was taken. `None` for one that was not.
    pub(crate) fn word(&self, page: u32, index: usize) -> Option<&AtomicU64> {
        let chunk = self.chunks.get(page as usize / CHUNK)?.get()?;
        chunk.get(page as usize % CHUNK)?.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_bounded_and_takes_pages_back() {
        let pool = PagePool::new(CHUNK as u32);
        assert!(pool.word(0, 0).is_none());
        let pages: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((pages.len(), pool.used()), (CHUNK, CHUNK));
        assert!(pool.word(63, PAGE_WORDS - 1).is_some() && pool.word(64, 0).is_none());
        pool.put(pages[5]);
        assert_eq!(pool.take(), Some(pages[5]));
    }
}

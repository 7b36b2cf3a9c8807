//! One image of the process: blocks in memory, and flights.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ::disk::{CacheState, IoError};
use model::spec::{DIGEST_PREFIX, GoldenSource};

use crate::BLOCK_BYTES;
use crate::cache_file::{CacheFile, blocks_of};
use crate::loader;
use crate::mailbox::Block;
use crate::state::{Lane, State, Waiter};

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) loaded: AtomicU64,
    pub(crate) fetched: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

/// Reader of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A machine, whose reads are the boot set.
    Machine,
    /// A copy of the image.
    Copy,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Image with its cache.
#[derive(Debug)]
pub(crate) struct CachedImage {
    pub(crate) source: GoldenSource,
    pub(crate) identity: String,
    pub(crate) size: u64,
    /// Most bytes a second from the source.
    pub(crate) rate: Option<u64>,
    /// Path of the cache file.
    pub(crate) file_path: PathBuf,
    /// File of the boot set.
    pub(crate) boot_path: PathBuf,
    /// `None` if the cache file cannot be used.
    pub(crate) file: Option<CacheFile>,
    pub(crate) counters: Counters,
    /// Connections of the loaders to the source.
    pub(crate) connections: AtomicUsize,
    pub(crate) state: Mutex<State>,
    /// Notified when a queue of a lane gets a block.
    pub(crate) bell: Condvar,
}

impl CachedImage {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of blocks.
    pub(crate) fn blocks(&self) -> u32 {
        blocks_of(self.size)
    }

    /// Returns the SHA-256 of the image that its identity gives, in hexadecimal digits.
    pub(crate) fn digest(&self) -> Option<&str> {
        self.identity.strip_prefix(DIGEST_PREFIX)
    }

    /// Returns the number of bytes of a block: fewer for the last one.
    pub(crate) fn bytes_of(&self, block: u32) -> usize {
        let left = self.size.saturating_sub(u64::from(block) * BLOCK_BYTES);
        left.min(BLOCK_BYTES) as usize
    }

    /// Returns a block that is in memory. Never waits.
    pub(crate) fn find(&self, block: u32) -> Option<Block> {
        let mut state = self.state();
        let found = state.ram.get(&block).cloned()?;
        state.order.touch(block);
        drop(state);
        count(&self.counters.hits);
        Some(found)
    }

    /// Returns a block that is in memory, or lets a piece of a request wait for it. Never waits.
    pub(crate) fn find_or_load(
        self: &Arc<Self>,
        block: u32,
        reader: Reader,
        waiter: impl FnOnce() -> Waiter,
    ) -> Option<Block> {
        let mut state = self.state();
        if let Some(found) = state.ram.get(&block).cloned() {
            state.order.touch(block);
            count(&self.counters.hits);
            return Some(found);
        }
        count(&self.counters.misses);
        if let Some(flight) = state.flights.get_mut(&block) {
            flight.push(waiter());
            return None;
        }
        state.flights.insert(block, vec![waiter()]);
        if let (Reader::Machine, Some(recorder)) = (reader, &mut state.recorder) {
            recorder.note(block);
        }
        let is_stored = self.file.as_ref().is_some_and(|file| file.may_have(block));
        let lane = if is_stored { Lane::CacheFile } else { Lane::Source };
        loader::enqueue(self, state, lane, block);
        None
    }

    /// Ends a flight with its block.
    pub(crate) fn publish(&self, block: u32, data: &Block) {
        let mut state = self.state();
        while state.order.is_full() {
            let Some(evicted) = state.order.evict() else { break };
            state.ram.remove(&evicted);
            count(&self.counters.evicted);
        }
        if state.ram.insert(block, Arc::clone(data)).is_none() {
            state.order.insert(block);
        }
        for waiter in state.flights.remove(&block).unwrap_or_default() {
            waiter.mailbox.deliver(waiter.piece, Ok(Arc::clone(data)));
        }
    }

    /// Ends a flight with an error.
    pub(crate) fn fail(&self, block: u32, error: IoError) {
        for waiter in self.state().flights.remove(&block).unwrap_or_default() {
            waiter.mailbox.deliver(waiter.piece, Err(error));
        }
    }

    /// Returns the reason why requests wait for the source, if they do.
    pub(crate) fn problem(&self) -> Option<String> {
        self.state().problem.clone()
    }

    pub(crate) fn cache_state(&self) -> CacheState {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { hits, misses, loaded, fetched, fetched_bytes, evicted } = &self.counters;
        let state = self.state();
        CacheState {
            identity: self.identity.clone(),
            size: self.size,
            file: self.file_path.clone(),
            stored: self.file.as_ref().map_or(0, CacheFile::stored),
            file_problem: state.file_problem.clone(),
            hits: load(hits),
            misses: load(misses),
            loaded: load(loaded),
            fetched: load(fetched),
            fetched_bytes: load(fetched_bytes),
            evicted: load(evicted),
            problem: state.problem.clone(),
            warm: state.background.warm_state(),
            other_digest: state.found_digest.clone().filter(|it| Some(&**it) != self.digest()),
            is_verified: self.digest().is_some() && state.found_digest.as_deref() == self.digest(),
        }
    }
}

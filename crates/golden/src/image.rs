//! One image of the process: blocks in memory, and flights.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ::disk::{CacheState, IoError};
use model::spec::GoldenSource;
use rustix::io::Errno;

use crate::BLOCK_BYTES;
use crate::boot_set::Recorder;
use crate::cache_file::CacheFile;
use crate::loader;
use crate::mailbox::{Block, Mailbox};
use crate::s3fifo::S3Fifo;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) loaded: AtomicU64,
    pub(crate) fetched: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Piece of a request that waits for a block.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) piece: u32,
}

/// Where a flight looks for its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    CacheFile,
    Source,
}

/// Image with its cache.
#[derive(Debug)]
pub(crate) struct CachedImage {
    pub(crate) source: GoldenSource,
    pub(crate) identity: String,
    pub(crate) size: u64,
    /// Most bytes a second from the source.
    pub(crate) rate: Option<u64>,
    /// Most blocks of the cache file.
    pub(crate) file_blocks: u64,
    /// File of the boot set.
    pub(crate) boot_path: PathBuf,
    /// `None` if the cache file cannot be used.
    pub(crate) file: Option<CacheFile>,
    pub(crate) counters: Counters,
    pub(crate) state: Mutex<State>,
    /// Notified when a queue of a lane gets a block.
    pub(crate) bell: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    ram: HashMap<u32, Block>,
    order: S3Fifo,
    flights: HashMap<u32, Vec<Waiter>>,
    /// Blocks to load from the cache file, and from the source.
    pub(crate) queues: [VecDeque<u32>; 2],
    pub(crate) threads: [usize; 2],
    /// Blocks whose source is gone, and when it is tried again.
    pub(crate) parked: Vec<u32>,
    pub(crate) retry_at: Option<Instant>,
    pub(crate) pauses: u32,
    /// Reason why blocks wait.
    pub(crate) problem: Option<String>,
    /// Blocks in the cache file.
    pub(crate) stored: u64,
    /// Blocks to fetch ahead.
    pub(crate) ahead: VecDeque<u32>,
    /// Recorder of the boot set, if there is none yet.
    pub(crate) recorder: Option<Recorder>,
    /// Time until which the source must not send, because of the rate.
    pub(crate) busy_until: Option<Instant>,
}

impl State {
    pub(crate) fn new(ram_blocks: usize, stored: u64) -> Self {
        Self {
            ram: HashMap::new(),
            order: S3Fifo::new(ram_blocks),
            flights: HashMap::new(),
            queues: Default::default(),
            threads: [0; 2],
            parked: Vec::new(),
            retry_at: None,
            pauses: 0,
            problem: None,
            stored,
            ahead: VecDeque::new(),
            recorder: None,
            busy_until: None,
        }
    }

    /// Returns whether a channel still waits for a block. Forgets its flight otherwise.
    pub(crate) fn is_wanted(&mut self, block: u32) -> bool {
        let wanted = self
            .flights
            .get(&block)
            .is_some_and(|waiters| waiters.iter().any(|waiter| !waiter.mailbox.is_closed()));
        if !wanted {
            self.flights.remove(&block);
        }
        wanted
    }

    /// Begins a flight of the next block to fetch ahead that is neither in memory nor in flight.
    pub(crate) fn begin_ahead(&mut self, is_stored: impl Fn(u32) -> bool) -> Option<u32> {
        while let Some(block) = self.ahead.pop_front() {
            let is_there = self.ram.contains_key(&block) || self.flights.contains_key(&block);
            if !is_there && !is_stored(block) {
                self.flights.insert(block, Vec::new());
                return Some(block);
            }
        }
        None
    }

    /// Wakes the channels that wait for a block, without an outcome.
    pub(crate) fn wake_waiters(&self, block: u32) {
        let waiters = self.flights.get(&block).into_iter().flatten();
        waiters.for_each(|waiter| waiter.mailbox.wake());
    }
}

impl CachedImage {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        if let Some(recorder) = &mut state.recorder {
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

    /// Ends a flight whose source cannot read the block.
    pub(crate) fn fail(&self, block: u32) {
        for waiter in self.state().flights.remove(&block).unwrap_or_default() {
            waiter.mailbox.deliver(waiter.piece, Err(IoError::Storage(Errno::IO)));
        }
    }

    /// Returns the reason why requests wait for the source, if they do.
    pub(crate) fn problem(&self) -> Option<String> {
        self.state().problem.clone()
    }

    pub(crate) fn cache_state(&self) -> CacheState {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { hits, misses, loaded, fetched, fetched_bytes, evicted } = &self.counters;
        CacheState {
            identity: self.identity.clone(),
            hits: load(hits),
            misses: load(misses),
            loaded: load(loaded),
            fetched: load(fetched),
            fetched_bytes: load(fetched_bytes),
            evicted: load(evicted),
            problem: self.problem(),
        }
    }
}

//! State of an image: its blocks in memory, and the flights of blocks to it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::background::{Background, Purpose};
use crate::boot_set::Recorder;
use crate::mailbox::{Block, Mailbox};
use crate::s3fifo::S3Fifo;

/// First and longest pause before a source that is gone is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

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

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) ram: HashMap<u32, Block>,
    pub(crate) order: S3Fifo,
    pub(crate) flights: HashMap<u32, Vec<Waiter>>,
    /// Blocks to load from the cache file, and from the source.
    pub(crate) queues: [VecDeque<u32>; 2],
    pub(crate) threads: [usize; 2],
    /// Disks of the process on the image. While there is one, each lane has a thread.
    pub(crate) users: usize,
    /// Blocks whose source is gone, and when it is tried again.
    parked: Vec<u32>,
    pub(crate) retry_at: Option<Instant>,
    pauses: u32,
    /// Time until which no more connections are made: the source has refused one beside others.
    pub(crate) enough_until: Option<Instant>,
    /// Threads that connect now.
    pub(crate) connecting: usize,
    /// Reason why blocks wait.
    pub(crate) problem: Option<String>,
    /// Reason why the last block is not in the cache file.
    pub(crate) file_problem: Option<String>,
    pub(crate) background: Background,
    /// Recorder of the boot set, if there is none yet.
    pub(crate) recorder: Option<Recorder>,
    /// Time until which the source must not send, because of the rate.
    pub(crate) busy_until: Option<Instant>,
    /// SHA-256 of the whole image, once it was calculated.
    pub(crate) found_digest: Option<String>,
    /// Version that the source of an image with a digest had first.
    pub(crate) version: Option<String>,
}

impl State {
    pub(crate) fn new(ram_blocks: usize) -> Self {
        Self {
            ram: HashMap::new(),
            order: S3Fifo::new(ram_blocks),
            flights: HashMap::new(),
            queues: Default::default(),
            threads: [0; 2],
            users: 0,
            parked: Vec::new(),
            retry_at: None,
            pauses: 0,
            enough_until: None,
            connecting: 0,
            problem: None,
            file_problem: None,
            background: Background::default(),
            recorder: None,
            busy_until: None,
            found_digest: None,
            version: None,
        }
    }

    /// Lets a block wait until the source is back, which is tried after a pause.
    pub(crate) fn park(&mut self, block: u32, purpose: Purpose) {
        let waiters = self.flights.get(&block).into_iter().flatten();
        waiters.for_each(|waiter| waiter.mailbox.wake());
        self.background.end(block, purpose, false);
        self.parked.push(block);
    }

    /// Notes that the source is gone, and why. The threads that find out at the same time make one pause.
    pub(crate) fn pause(&mut self, problem: String) {
        self.problem = Some(problem);
        if self.retry_at.is_some() {
            return;
        }
        let pause = PAUSES.0.saturating_mul(1 << self.pauses.min(10)).min(PAUSES.1);
        self.pauses += 1;
        self.retry_at = Some(Instant::now() + pause);
    }

    /// Notes that the source has answered. An old connection may do so while new ones fail.
    pub(crate) fn resume(&mut self) {
        self.pauses = 0;
        if self.parked.is_empty() {
            self.problem = None;
        }
    }

    /// Queues the parked blocks if it is time. Returns whether there are any.
    pub(crate) fn retry(&mut self, now: Instant) -> bool {
        if self.retry_at.is_none_or(|retry_at| retry_at > now) {
            return false;
        }
        self.retry_at = None;
        for block in std::mem::take(&mut self.parked) {
            let mut waiters = self.flights.get(&block).into_iter().flatten();
            match waiters.any(|waiter| !waiter.mailbox.is_closed()) {
                true => self.queues[Lane::Source as usize].push_back(block),
                // A block of the background comes again by itself.
                false => _ = self.flights.remove(&block),
            }
        }
        let is_wanted = !self.queues[Lane::Source as usize].is_empty();
        if !is_wanted {
            self.problem = None;
        }
        is_wanted
    }
}

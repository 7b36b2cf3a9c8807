//! Load of one cell: a poller that keeps a number of requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use disk::{Channel, Completion, IoError, Request, RequestKind, SubmitOutcome};
use memory::{Buffers, Mapping};
use reactor::{Context, Histogram, PollOutcome, Poller};

use crate::Cell;

/// Result of a load.
#[derive(Debug, Default)]
pub(crate) struct LoadResult {
    /// Bytes of the requests that completed in the time of the load.
    pub(crate) bytes: u64,
    /// Time from the first request to the last of these completions, in nanoseconds.
    pub(crate) ns: u64,
    /// Bytes of all requests, with those that completed later.
    pub(crate) all_bytes: u64,
    /// Number of all requests.
    pub(crate) requests: u64,
    /// Times of the requests.
    pub(crate) times: Histogram,
    /// First failure.
    pub(crate) error: Option<IoError>,
}

/// Poller that keeps the requests of a cell in flight for a time.
pub(crate) struct Load {
    channel: Box<dyn Channel>,
    cell: Cell,
    /// Number of places at which a request may begin.
    places: u64,
    random: Random,
    split: bool,
    /// Memory of all requests, one after the other.
    memory: Arc<Mapping>,
    /// Time of submission of each request, by its tag.
    submitted: Vec<u64>,
    began: u64,
    ends: u64,
    in_flight: u32,
    /// Requests that the channel returned.
    held: Vec<Request>,
    done: Vec<Completion>,
    result: LoadResult,
    stop: Arc<AtomicBool>,
    report: SyncSender<LoadResult>,
}

/// Options of a load beside its cell.
pub(crate) struct LoadOptions {
    /// Bytes of the scratch.
    pub(crate) size: u64,
    /// Time of the load in nanoseconds.
    pub(crate) ns: u64,
    /// Seed of the places.
    pub(crate) seed: u64,
    /// True if the requests are pieces of one: they lie side by side, and all end before the next ones
    /// begin.
    pub(crate) split: bool,
    /// Ends the load early.
    pub(crate) stop: Arc<AtomicBool>,
    /// Receives the result.
    pub(crate) report: SyncSender<LoadResult>,
}

impl Load {
    /// Starts the requests. `memory` has the bytes of all of them.
    pub(crate) fn start(
        context: &mut Context<'_>,
        channel: Box<dyn Channel>,
        cell: Cell,
        memory: Arc<Mapping>,
        options: LoadOptions,
    ) -> Self {
        let began = context.now_again_ns();
        let span = if options.split { cell.total() } else { cell.bytes };
        let mut load = Self {
            channel,
            cell,
            places: (options.size / u64::from(span)).max(1),
            random: Random(options.seed),
            split: options.split,
            memory,
            submitted: vec![0; cell.depth as usize],
            began,
            ends: began + options.ns,
            in_flight: 0,
            held: Vec::new(),
            done: Vec::new(),
            result: LoadResult::default(),
            stop: options.stop,
            report: options.report,
        };
        load.submit_all(context);
        load
    }

    /// Starts all requests of the cell.
    fn submit_all(&mut self, context: &mut Context<'_>) {
        let first = self.random.below(self.places) * u64::from(self.cell.total());
        for tag in 0..self.cell.depth {
            if self.split {
                let piece = u64::from(tag) * u64::from(self.cell.bytes);
                self.submit_at(context, tag, first + piece);
            } else {
                self.submit_next(context, tag);
            }
        }
    }

    /// Starts a request to the next place.
    fn submit_next(&mut self, context: &mut Context<'_>, tag: u32) {
        let offset = self.random.below(self.places) * u64::from(self.cell.bytes);
        self.submit_at(context, tag, offset);
    }

    fn submit_at(&mut self, context: &mut Context<'_>, tag: u32, offset: u64) {
        let Cell { write, bytes, .. } = self.cell;
        let buffers =
            Buffers::from_mapping(&self.memory, tag as usize * bytes as usize, bytes as usize);
        let kind = if write { RequestKind::Write { durable: false } } else { RequestKind::Read };
        let buffers = buffers.unwrap_or_default();
        if let Some(submitted) = self.submitted.get_mut(tag as usize) {
            *submitted = context.now_ns();
        }
        self.in_flight += 1;
        self.submit(context, Request { kind, offset, len: bytes.into(), buffers, tag });
    }

    fn submit(&mut self, context: &mut Context<'_>, request: Request) {
        match self.channel.submit(context, request) {
            SubmitOutcome::Done(completion) => self.done.push(completion),
            SubmitOutcome::Pending => {}
            SubmitOutcome::Full(request) => self.held.push(request),
        }
    }

    fn count(&mut self, now: u64, completion: &Completion) {
        self.in_flight -= 1;
        let bytes = u64::from(self.cell.bytes);
        let submitted = self.submitted.get(completion.tag as usize).copied().unwrap_or(now);
        self.result.times.record(now.saturating_sub(submitted), 1);
        self.result.requests += 1;
        self.result.all_bytes += bytes;
        if now <= self.ends {
            self.result.bytes += bytes;
            self.result.ns = now.saturating_sub(self.began);
        }
        if let Err(error) = completion.outcome {
            self.result.error.get_or_insert(error);
        }
    }
}

impl Poller for Load {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        let mut done = std::mem::take(&mut self.done);
        self.channel.reap(context, &mut done);
        if done.is_empty() {
            return PollOutcome::Idle;
        }
        let now = context.now_again_ns();
        for request in std::mem::take(&mut self.held) {
            self.submit(context, request);
        }
        let goes_on =
            now < self.ends && self.result.error.is_none() && !self.stop.load(Ordering::Relaxed);
        for completion in done.drain(..) {
            self.count(now, &completion);
            if goes_on && !self.split {
                self.submit_next(context, completion.tag);
            }
        }
        if goes_on && self.split && self.in_flight == 0 {
            self.submit_all(context);
        }
        if self.done.is_empty() {
            self.done = done;
        }
        if self.in_flight > 0 {
            return PollOutcome::Busy;
        }
        // The caller may have stopped waiting.
        let _ = self.report.try_send(std::mem::take(&mut self.result));
        PollOutcome::Gone
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        !self.done.is_empty()
    }
}

/// Sequence of random numbers (SplitMix64, Steele et al. 2014).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    fn below(&mut self, limit: u64) -> u64 {
        // The product's upper half is below the limit.
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

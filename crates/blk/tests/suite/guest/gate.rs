//! A test disk that takes requests, records them, and ends them on command.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disk::{
    Channel, Completion, Disk, DiskError, Extent, Geometry, IoError, Request, RequestKind,
    SubmitOutcome,
};
use reactor::{CompletionPort, Context, IoOp, OpCompletion, Reactor};

use super::SOON;

/// Interval at which the gate is checked, and duration of a request while it is open.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A disk that ends requests only while it is open. Clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<State>);

#[derive(Debug)]
struct State {
    open: AtomicBool,
    fails: AtomicBool,
    /// Sector of requests that never end; `u64::MAX` for none.
    hangs: AtomicU64,
    /// Sector at which submission blocks the reactor's thread; `u64::MAX` for none.
    blocks: AtomicU64,
    /// Number of requests that it takes at once; further ones wait.
    room: usize,
    /// Time for which each request blocks the reactor's thread.
    keeps: Duration,
    taken: Mutex<Vec<(RequestKind, u64)>>,
    abandoned: AtomicBool,
}

impl Gate {
    /// Creates a disk that takes all requests and ends none.
    pub(crate) fn closed() -> Self {
        Self::new(false, usize::MAX, Duration::ZERO)
    }

    /// Creates a disk that ends all requests after a moment.
    pub(crate) fn opened() -> Self {
        Self::new(true, usize::MAX, Duration::ZERO)
    }

    /// Creates a disk that takes one request at a time and ends it after a moment.
    pub(crate) fn narrow() -> Self {
        Self::new(true, 1, Duration::ZERO)
    }

    /// Creates a disk that blocks the reactor's thread for `keeps` with each request.
    pub(crate) fn slow(keeps: Duration) -> Self {
        Self::new(true, usize::MAX, keeps)
    }

    /// Creates a disk that fails all requests at once.
    pub(crate) fn failing() -> Self {
        let gate = Self::closed();
        gate.0.fails.store(true, Ordering::Relaxed);
        gate
    }

    /// Creates a disk that fails all requests at once, and blocks the reactor's thread at this sector
    /// until it is opened.
    pub(crate) fn blocking_at(sector: u64) -> Self {
        let gate = Self::failing();
        gate.block_at(sector);
        gate
    }

    /// Creates a disk that takes `room` requests at a time and ends them after a moment, and blocks
    /// the reactor's thread at this sector.
    pub(crate) fn with_room_blocking_at(room: usize, sector: u64) -> Self {
        let gate = Self::new(true, room, Duration::ZERO);
        gate.block_at(sector);
        gate
    }

    /// Blocks the reactor's thread at this sector, and no longer at the former one.
    pub(crate) fn block_at(&self, sector: u64) {
        self.0.blocks.store(sector, Ordering::Relaxed);
    }

    /// Creates a disk that ends all requests after a moment, except those at this sector.
    pub(crate) fn hanging_at(sector: u64) -> Self {
        let gate = Self::opened();
        gate.0.hangs.store(sector, Ordering::Relaxed);
        gate
    }

    fn new(open: bool, room: usize, keeps: Duration) -> Self {
        let (open, taken, abandoned) =
            (AtomicBool::new(open), Mutex::default(), Default::default());
        let fails = AtomicBool::new(false);
        let [hangs, blocks] = std::array::from_fn(|_| AtomicU64::new(u64::MAX));
        Self(Arc::new(State { open, fails, hangs, blocks, room, keeps, taken, abandoned }))
    }

    /// Lets all present and later requests end, and submission go on.
    pub(crate) fn open(&self) {
        self.block_at(u64::MAX);
        self.0.open.store(true, Ordering::Relaxed);
    }

    /// Returns the sectors of the requests that it has taken, in order.
    pub(crate) fn sectors(&self) -> Vec<u64> {
        self.0.taken.lock().unwrap().iter().map(|(_, sector)| *sector).collect()
    }

    /// Returns the kinds of the requests that it has taken, in order.
    pub(crate) fn kinds(&self) -> Vec<RequestKind> {
        self.0.taken.lock().unwrap().iter().map(|(kind, _)| *kind).collect()
    }

    /// Waits until it has taken `count` requests from a queue whose reactor it blocks.
    pub(crate) fn wait_taken(&self, count: usize) {
        let until = Instant::now() + SOON;
        while self.sectors().len() < count {
            assert!(Instant::now() < until, "the disk is not asked");
            std::thread::yield_now();
        }
    }

    /// Waits until it has taken `count` requests from a queue of `reactor`.
    pub(crate) fn wait_for(&self, reactor: &Reactor, count: usize) {
        let until = Instant::now() + SOON;
        while self.sectors().len() < count {
            assert!(Instant::now() < until, "the disk is not asked");
            // A round trip lets the reactor run another turn.
            reactor.handle().call(|_| ()).unwrap();
        }
    }

    /// Returns whether a queue has abandoned the requests on this disk.
    pub(crate) fn abandoned(&self) -> bool {
        self.0.abandoned.load(Ordering::Relaxed)
    }
}

impl Disk for Gate {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size: 8 << 20,
            block_size: 512,
            read_only: false,
            discard: true,
            discard_granularity: 512,
        }
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        let (gate, port) = (self.0.clone(), context.open_port());
        Box::new(GateChannel { gate, port, pending: Vec::new(), op_completion: Vec::new() })
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn activate(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn resize(&self, _: Option<u64>) -> Result<Geometry, DiskError> {
        Ok(self.geometry())
    }

    fn stalled(&self) -> u64 {
        0
    }

    fn extents(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>, IoError> {
        Err(IoError::Unsupported)
    }

    fn zeroes_fast(&self, _: bool) -> bool {
        false
    }
}

struct GateChannel {
    gate: Arc<State>,
    port: CompletionPort,
    pending: Vec<Request>,
    op_completion: Vec<OpCompletion>,
}

impl GateChannel {
    fn poll_later(&self, context: &mut Context<'_>) {
        context.submit(&self.port, IoOp::Timer { after: POLL_INTERVAL }, 0);
    }
}

impl Channel for GateChannel {
    fn submit(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome {
        if self.pending.len() >= self.gate.room {
            return SubmitOutcome::Full(request);
        }
        self.gate.taken.lock().unwrap().push((request.kind, request.offset / 512));
        std::thread::sleep(self.gate.keeps);
        while self.gate.blocks.load(Ordering::Relaxed) == request.offset / 512 {
            std::thread::yield_now();
        }
        if self.gate.fails.load(Ordering::Relaxed) {
            return SubmitOutcome::Done(request.complete(Err(IoError::Unsupported)));
        }
        if self.pending.is_empty() {
            self.poll_later(context);
        }
        self.pending.push(request);
        SubmitOutcome::Pending
    }

    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        context.reap(&self.port, &mut self.op_completion);
        if self.op_completion.drain(..).count() == 0 {
            return;
        }
        if self.gate.open.load(Ordering::Relaxed) {
            let hangs = self.gate.hangs.load(Ordering::Relaxed);
            let ended = self.pending.extract_if(.., |request| request.offset / 512 != hangs);
            out.extend(ended.map(|request| request.complete(Ok(()))));
        }
        if !self.pending.is_empty() {
            self.poll_later(context);
        }
    }

    fn waiting(&self) -> usize {
        0
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {}

    fn abandon(&mut self) {
        self.gate.abandoned.store(true, Ordering::Relaxed);
    }
}

//! One reactor's way to a file.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reactor::{CompletionPort, Context, File, IoOp, OpCompletion};
use rustix::io::Errno;

use super::bounce::{BouncePool, NoBuffer};
use super::request::{FileRequest, IoMethod, StepOutcome};
use super::{FileOptions, ImageInfo, OnFull, Shared};
use crate::{Channel, Completion, IoError, Request, RequestKind, SubmitOutcome};

/// Largest read that first asks the page cache without waiting, in bytes: above, the copy costs
/// more than the trip through the ring saves.
const INLINE_READ: u64 = 32 << 10;
/// Bytes read that way between two reaps, so that other queues get their turn.
const INLINE_BUDGET: u64 = 512 << 10;
/// How often requests that wait for room are tried again: there is no event for room.
const RETRY: Duration = Duration::from_millis(500);
/// Tag of the retry timer; requests have theirs from 0 on.
const TIMER: u64 = u64::MAX;
/// How a request of a channel that was abandoned ends.
const CANCELED: Result<(), IoError> = Err(IoError::Storage(Errno::CANCELED));

/// One reactor's way to a file.
pub(crate) struct FileChannel {
    file: File,
    port: CompletionPort,
    shared: Arc<Shared>,
    inspected: ImageInfo,
    buffered: bool,
    on_full: OnFull,
    giving_up: bool,
    /// Nobody is to see anything of what ends.
    abandoned: bool,
    budget: u64,
    pool: BouncePool,
    /// Requests in the kernel, found by the operation's tag.
    work: Vec<Option<FileRequest>>,
    free: Vec<usize>,
    /// Requests that wait for room.
    stalled: VecDeque<FileRequest>,
    /// Zeroes that wait for a bounce buffer.
    starved: VecDeque<FileRequest>,
    timer_set: bool,
    done: Vec<OpCompletion>,
    /// Ended outside of [`Channel::reap`]; handed out by it.
    ended: Vec<Completion>,
}

impl FileChannel {
    pub(crate) fn new(
        options: &FileOptions,
        inspected: ImageInfo,
        file: Arc<OwnedFd>,
        shared: Arc<Shared>,
        context: &mut Context<'_>,
    ) -> Self {
        Self {
            file: File::new(file),
            port: context.open_port(),
            shared,
            inspected,
            buffered: !options.direct,
            on_full: options.on_full,
            giving_up: false,
            abandoned: false,
            budget: INLINE_BUDGET,
            pool: BouncePool::default(),
            work: Vec::new(),
            free: Vec::new(),
            stalled: VecDeque::new(),
            starved: VecDeque::new(),
            timer_set: false,
            done: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Reads what the page cache has; true when that was all.
    fn read_inline(&mut self, context: &Context<'_>, request: &mut Request) -> bool {
        if !self.buffered || request.len > INLINE_READ || request.len > self.budget {
            return false;
        }
        context.count_syscalls(1);
        let Ok(read) = self.file.read_nowait(&request.buffers, request.offset) else {
            return false;
        };
        self.budget -= request.len;
        if read as u64 == request.len {
            return true;
        }
        request.buffers.advance(read);
        request.offset = request.offset.saturating_add(read as u64);
        request.len -= (read as u64).min(request.len);
        false
    }

    /// How a request of this kind begins.
    fn way(&mut self, request: &mut Request) -> Result<IoMethod, NoBuffer> {
        match request.kind {
            RequestKind::Flush => Ok(IoMethod::Sync),
            RequestKind::Discard => Ok(IoMethod::Punch),
            RequestKind::WriteZeroes { unmap, .. } => {
                let shared = &self.shared;
                if unmap && !shared.no_punch.load(Ordering::Relaxed) {
                    Ok(IoMethod::Punch)
                } else if !shared.no_zero_range.load(Ordering::Relaxed) {
                    Ok(IoMethod::ZeroRange)
                } else {
                    self.fill()
                }
            }
            RequestKind::Read | RequestKind::Write { .. } => {
                let ImageInfo { memory_align, length_align, .. } = self.inspected;
                if request.buffers.is_aligned(memory_align, length_align) {
                    return Ok(IoMethod::Whole);
                }
                let bounce = self.pool.take()?;
                Ok(IoMethod::Bounced { guest: std::mem::take(&mut request.buffers), bounce })
            }
        }
    }

    fn fill(&mut self) -> Result<IoMethod, NoBuffer> {
        let zeroes = self.pool.take()?;
        super::bounce::piece(&zeroes, super::bounce::PIECE).zero();
        Ok(IoMethod::Fill { zeroes })
    }

    fn start(&mut self, context: &mut Context<'_>, mut work: FileRequest) {
        let op = work.op(&self.file, self.buffered);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.work.push(None);
            self.work.len() - 1
        });
        if let Some(place) = self.work.get_mut(slot) {
            *place = Some(work);
        }
        context.submit(&self.port, op, slot as u64);
    }

    fn finish(&mut self, work: FileRequest, outcome: Result<(), IoError>) {
        let buffers = match work.way {
            IoMethod::Bounced { guest, bounce } => {
                self.pool.put(bounce);
                guest
            }
            IoMethod::Fill { zeroes } => {
                self.pool.put(zeroes);
                work.buffers
            }
            _ => work.buffers,
        };
        self.ended.push(Completion { tag: work.tag, outcome, buffers });
    }

    fn advance(&mut self, context: &mut Context<'_>, done: OpCompletion) {
        if done.tag == TIMER {
            self.timer_set = false;
            return self.retry(context);
        }
        let Ok(slot) = usize::try_from(done.tag) else { return };
        let Some(mut work) = self.work.get_mut(slot).and_then(Option::take) else { return };
        self.free.push(slot);
        let syncs = matches!(work.way, IoMethod::Sync);
        // A flush touches no buffers, and its failure is the disk's, whoever asked for it.
        let step =
            if self.abandoned && !syncs { StepOutcome::End(CANCELED) } else { work.step(done) };
        if syncs && matches!(step, StepOutcome::End(Err(_))) {
            self.shared.lost.store(true, Ordering::Relaxed);
            tracing::error!(
                "a flush failed: what was written before may be lost; restart the guest"
            );
        }
        match step {
            _ if self.abandoned => self.finish(work, CANCELED),
            StepOutcome::Again => self.start(context, work),
            StepOutcome::End(outcome) => self.finish(work, outcome),
            StepOutcome::Full => self.stall(context, work),
            StepOutcome::OtherWay => self.other_way(context, work),
        }
    }

    /// The file system refused a fallocate: remember it, and take the next way.
    fn other_way(&mut self, context: &mut Context<'_>, mut work: FileRequest) {
        let zeroes = matches!(work.kind, RequestKind::WriteZeroes { .. });
        if matches!(work.way, IoMethod::Punch) {
            if !zeroes {
                return self.finish(work, Ok(()));
            }
            self.shared.no_punch.store(true, Ordering::Relaxed);
            work.way = IoMethod::ZeroRange;
            return self.start(context, work);
        }
        self.shared.no_zero_range.store(true, Ordering::Relaxed);
        self.begin_fill(context, work);
    }

    /// Writes zeroes plainly, now or when a buffer is free.
    fn begin_fill(&mut self, context: &mut Context<'_>, mut work: FileRequest) {
        match self.fill() {
            Ok(way) => {
                work.way = way;
                self.start(context, work);
            }
            Err(NoBuffer::Busy) => self.starved.push_back(work),
            Err(NoBuffer::NoMemory) => self.finish(work, Err(IoError::Storage(Errno::NOMEM))),
        }
    }

    fn stall(&mut self, context: &mut Context<'_>, work: FileRequest) {
        if self.on_full == OnFull::Error || self.giving_up {
            return self.finish(work, Err(IoError::Full));
        }
        if self.stalled.is_empty() {
            tracing::warn!("storage is full: writes wait until there is room");
        }
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.stalled.push_back(work);
        self.set_timer(context);
    }

    fn set_timer(&mut self, context: &mut Context<'_>) {
        if !self.timer_set {
            self.timer_set = true;
            context.submit(&self.port, IoOp::Timer { after: RETRY }, TIMER);
        }
    }

    /// Starts everything again that waits for room.
    fn retry(&mut self, context: &mut Context<'_>) {
        for work in std::mem::take(&mut self.stalled) {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.start(context, work);
        }
    }
}

impl Channel for FileChannel {
    fn submit(&mut self, context: &mut Context<'_>, mut request: Request) -> SubmitOutcome {
        if self.abandoned {
            return SubmitOutcome::Done(request.complete(CANCELED));
        }
        if request.kind == RequestKind::Read && self.read_inline(context, &mut request) {
            return SubmitOutcome::Done(request.complete(Ok(())));
        }
        if request.kind == RequestKind::Flush && self.shared.lost.load(Ordering::Relaxed) {
            return SubmitOutcome::Done(request.complete(Err(IoError::Storage(Errno::IO))));
        }
        let way = match self.way(&mut request) {
            Ok(way) => way,
            Err(NoBuffer::Busy) => return SubmitOutcome::Full(request),
            Err(NoBuffer::NoMemory) => {
                return SubmitOutcome::Done(request.complete(Err(IoError::Storage(Errno::NOMEM))));
            }
        };
        let Request { kind, offset, len, buffers, tag } = request;
        self.start(context, FileRequest { tag, kind, offset, left: len, buffers, way });
        SubmitOutcome::Pending
    }

    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        self.budget = INLINE_BUDGET;
        let mut done = std::mem::take(&mut self.done);
        context.reap(&self.port, &mut done);
        for one in done.drain(..) {
            self.advance(context, one);
        }
        self.done = done;
        for work in std::mem::take(&mut self.starved) {
            self.begin_fill(context, work);
        }
        out.append(&mut self.ended);
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {
        self.giving_up = true;
        for work in std::mem::take(&mut self.stalled) {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.finish(work, Err(IoError::Full));
        }
    }

    fn abandon(&mut self) {
        self.abandoned = true;
        let stalled = std::mem::take(&mut self.stalled);
        self.shared.waiting.fetch_sub(stalled.len() as u64, Ordering::Relaxed);
        for work in stalled.into_iter().chain(std::mem::take(&mut self.starved)) {
            self.finish(work, CANCELED);
        }
    }
}

impl Drop for FileChannel {
    fn drop(&mut self) {
        let waiting = self.stalled.len() as u64;
        self.shared.waiting.fetch_sub(waiting, Ordering::Relaxed);
    }
}

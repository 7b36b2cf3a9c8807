//! One reactor's channel to a file.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reactor::{CompletionPort, Context, File, IoOp, OpCompletion};
use rustix::io::Errno;

use super::model::{ModelPlace, ModelQueue};
use super::request::{FileRequest, IoMethod, StepOutcome, UNSCHEDULED};
use super::schedule::Schedule;
use super::{FileOptions, ImageInfo, OnFull, Shared};
use crate::bounce::{BouncePool, NoBuffer, PIECE};
use crate::storage::StorageDisk;
use crate::{CANCELED, Channel, Completion, IoError, Request, RequestKind, SubmitOutcome};

/// Largest read that first tries the page cache without waiting, in bytes. Above, the copy costs
/// more than avoiding the io_uring saves.
pub(super) const INLINE_READ: u64 = 32 << 10;
/// Bytes read that way between two reaps, so that other queues get their turn.
const INLINE_BUDGET: u64 = 512 << 10;
/// Interval for retrying requests that wait for space: the kernel reports no event for free space.
const RETRY: Duration = Duration::from_millis(500);
/// Tag of the retry timer; the tags of requests begin at 0.
const TIMER: u64 = u64::MAX;
/// Tag of the timer for the next end on a modelled device.
pub(super) const MODEL_TIMER: u64 = u64::MAX - 2;
/// Tag of the timer for requests that wait for their share of the storage.
pub(super) const SHARE_TIMER: u64 = u64::MAX - 1;

/// Rule of a channel for reads by a system call of its own, without io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InlineRead {
    /// No read: for direct I/O, and where the file system cannot say what is in memory.
    Off,
    /// Reads of what the page cache has.
    PageCache,
    /// All small reads. Memory file systems lack RWF_NOWAIT, and io_uring would send each read to a kernel
    /// thread. There is nothing to wait for, except for pages that the host has swapped out. The
    /// copy to the guest's memory, and all of a [`crate::MemoryDisk`], wait for such pages too.
    Memory,
}

/// One reactor's channel to a file. `IS_MODELLED` is whether its storage is a model: other channels have
/// no instruction for it.
pub(crate) struct FileChannel<const IS_MODELLED: bool> {
    pub(super) file: File,
    pub(super) port: CompletionPort,
    shared: Arc<Shared>,
    /// Access to the scheduler of the storage, if there is one.
    pub(super) schedule: Option<Box<Schedule>>,
    /// Model of the storage, if it is one.
    pub(super) model: Option<Box<ModelQueue>>,
    image_info: ImageInfo,
    pub(super) buffered: bool,
    inline_read: InlineRead,
    pub(super) on_full: OnFull,
    draining: bool,
    /// True once the outcome of requests does not matter any more.
    abandoned: bool,
    budget: u64,
    pool: BouncePool,
    /// Requests in the kernel, indexed by the operation's tag.
    pub(super) file_request: Vec<Option<FileRequest>>,
    free: Vec<usize>,
    /// Requests that wait for space.
    stalled: VecDeque<FileRequest>,
    /// Zeroing requests that wait for a bounce buffer.
    starved: VecDeque<FileRequest>,
    timer_set: bool,
    op_completion: Vec<OpCompletion>,
    /// Requests completed outside of [`Channel::reap`], which returns them.
    pub(super) ended: Vec<Completion>,
}

impl<const IS_MODELLED: bool> FileChannel<IS_MODELLED> {
    pub(crate) fn new(
        options: &FileOptions,
        image_info: ImageInfo,
        file: Arc<OwnedFd>,
        shared: Arc<Shared>,
        (storage_disk, model): (Option<&Arc<StorageDisk>>, Option<&ModelPlace>),
        context: &mut Context<'_>,
    ) -> Self {
        let inline_read = match (image_info.is_in_memory, options.direct) {
            _ if model.is_some() => InlineRead::Off,
            // Memory file systems ignore O_DIRECT.
            (true, _) => InlineRead::Memory,
            (false, true) => InlineRead::Off,
            (false, false) => InlineRead::PageCache,
        };
        Self {
            file: File::new(file),
            port: context.open_port(),
            shared,
            schedule: storage_disk.and_then(|disk| Schedule::open(disk, context)).map(Box::new),
            model: model.map(|place| Box::new(ModelQueue::open(place, context))),
            image_info,
            buffered: !options.direct,
            inline_read,
            on_full: options.on_full,
            draining: false,
            abandoned: false,
            budget: INLINE_BUDGET,
            pool: BouncePool::default(),
            file_request: Vec::new(),
            free: Vec::new(),
            stalled: VecDeque::new(),
            starved: VecDeque::new(),
            timer_set: false,
            op_completion: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Reads the data that is in memory. Returns true if that was all of the request.
    fn read_inline(&mut self, context: &Context<'_>, request: &mut Request) -> bool {
        let is_small = request.len <= INLINE_READ && request.len <= self.budget;
        if self.inline_read == InlineRead::Off || !is_small {
            return false;
        }
        context.count_syscalls(1);
        let (buffers, offset) = (&request.buffers, request.offset);
        let outcome = match self.inline_read {
            InlineRead::Memory => self.file.read_memory(buffers, offset),
            _ => self.file.read_nowait(buffers, offset),
        };
        let read = match outcome {
            Ok(read) => read,
            Err(error) => {
                if error == Errno::OPNOTSUPP {
                    // No later read would succeed.
                    self.inline_read = InlineRead::Off;
                }
                return false;
            }
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

    /// Returns how a request of this kind begins.
    fn way(&mut self, request: &mut Request) -> Result<IoMethod, NoBuffer> {
        match request.kind {
            RequestKind::Flush => Ok(IoMethod::Sync { mark: self.shared.dirty.mark() }),
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
                let ImageInfo { memory_align, length_align, .. } = self.image_info;
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
        zeroes.part(0, PIECE).zero();
        Ok(IoMethod::Fill { zeroes })
    }

    /// Starts the next step of a request when its turn has come.
    #[inline(always)]
    pub(super) fn start(&mut self, context: &mut Context<'_>, file_request: FileRequest) {
        match &self.schedule {
            Some(schedule) if !schedule.passes(&file_request) => {
                self.submit_to_schedule(context, file_request);
            }
            _ => self.issue(context, file_request),
        }
    }

    /// Hands the next step of a request to the kernel, or to a model.
    pub(super) fn issue(&mut self, context: &mut Context<'_>, mut file_request: FileRequest) {
        if IS_MODELLED {
            return self.issue_modelled(context, file_request);
        }
        let op = file_request.op(&self.file, self.buffered);
        let slot = self.keep(file_request);
        context.submit(&self.port, op, slot as u64);
    }

    /// Stores a request whose step begins. Returns its slot.
    #[inline(always)]
    pub(super) fn keep(&mut self, file_request: FileRequest) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.file_request.push(None);
            self.file_request.len() - 1
        });
        if let Some(place) = self.file_request.get_mut(slot) {
            *place = Some(file_request);
        }
        slot
    }

    pub(super) fn finish(&mut self, file_request: FileRequest, outcome: Result<(), IoError>) {
        self.finish_here(file_request, outcome);
    }

    /// As [`Self::finish`], for the one caller that handles every request.
    #[inline(always)]
    fn finish_here(&mut self, file_request: FileRequest, outcome: Result<(), IoError>) {
        self.shared.waits.end(u64::from(file_request.is_waiting));
        let buffers = match file_request.io_method {
            IoMethod::Bounced { guest, .. } => guest,
            _ => file_request.buffers,
        };
        let completion = Completion { tag: file_request.tag, outcome, buffers };
        match file_request.scheduled {
            UNSCHEDULED => self.ended.push(completion),
            scheduled => self.end_scheduled(scheduled, completion),
        }
    }

    fn advance(&mut self, context: &mut Context<'_>, op_completion: OpCompletion) {
        if op_completion.tag == TIMER {
            self.timer_set = false;
            return self.retry(context);
        }
        if op_completion.tag == SHARE_TIMER {
            return self.end_share_timer();
        }
        if !IS_MODELLED {
            return self.step(context, op_completion);
        }
        match op_completion.tag {
            MODEL_TIMER => self.end_model_timer(),
            _ => self.end_modelled(context, op_completion),
        }
    }

    /// Goes on with a request whose operation has ended.
    #[inline(always)]
    pub(super) fn step(&mut self, context: &mut Context<'_>, op_completion: OpCompletion) {
        let Ok(slot) = usize::try_from(op_completion.tag) else { return };
        let Some(mut file_request) = self.file_request.get_mut(slot).and_then(Option::take) else {
            return;
        };
        self.free.push(slot);
        if file_request.scheduled != UNSCHEDULED {
            self.complete_scheduled(context, &mut file_request, op_completion.result < 0);
        }
        let (mark, moved) = match file_request.io_method {
            IoMethod::Sync { mark } => (Some(mark), 0),
            _ => (None, u64::try_from(op_completion.result).unwrap_or(0)),
        };
        let syncs = mark.is_some();
        // A flush touches no buffers, and its failure concerns the disk, whichever request caused
        // it.
        let step = if self.abandoned && !syncs {
            StepOutcome::End(CANCELED)
        } else {
            file_request.step(op_completion)
        };
        if syncs && matches!(step, StepOutcome::End(Err(_))) {
            self.shared.lost.store(true, Ordering::Relaxed);
            tracing::error!(
                "a flush failed: what was written before may be lost; restart the guest"
            );
        }
        if let (Some(mark), StepOutcome::End(Ok(()))) = (mark, &step) {
            self.shared.dirty.set_synced(mark);
        }
        let step = match self.buffered && moved > 0 && file_request.dirties() {
            true => self.bound_dirty(&mut file_request, step, moved),
            false => step,
        };
        match step {
            _ if self.abandoned => self.finish(file_request, CANCELED),
            StepOutcome::Again => self.start(context, file_request),
            StepOutcome::End(outcome) => self.finish_here(file_request, outcome),
            StepOutcome::Full => self.stall(context, file_request),
            StepOutcome::Unsupported => self.next_method(context, file_request),
        }
    }

    /// Counts what a step has put into the page cache. The request ends with a sync if that is too much.
    fn bound_dirty(
        &self,
        file_request: &mut FileRequest,
        step: StepOutcome,
        bytes: u64,
    ) -> StepOutcome {
        let dirty = &self.shared.dirty;
        dirty.add(bytes);
        match step {
            StepOutcome::End(Ok(())) if dirty.must_sync() => {
                file_request.sync_before_end(dirty.mark());
                StepOutcome::Again
            }
            other => other,
        }
    }

    /// Tries the next method after the file system rejected a fallocate, and remembers the
    /// rejection.
    fn next_method(&mut self, context: &mut Context<'_>, mut file_request: FileRequest) {
        let zeroes = matches!(file_request.kind, RequestKind::WriteZeroes { .. });
        if matches!(file_request.io_method, IoMethod::Punch) {
            if !zeroes {
                return self.finish(file_request, Ok(()));
            }
            self.shared.no_punch.store(true, Ordering::Relaxed);
            file_request.io_method = IoMethod::ZeroRange;
            return self.start(context, file_request);
        }
        self.shared.no_zero_range.store(true, Ordering::Relaxed);
        self.begin_fill(context, file_request);
    }

    /// Writes zeroes as data, now or when a buffer is free.
    fn begin_fill(&mut self, context: &mut Context<'_>, mut file_request: FileRequest) {
        match self.fill() {
            Ok(io_method) => {
                file_request.io_method = io_method;
                self.start(context, file_request);
            }
            Err(NoBuffer::Busy) => self.starved.push_back(file_request),
            Err(NoBuffer::NoMemory) => {
                self.finish(file_request, Err(IoError::Storage(Errno::NOMEM)))
            }
        }
    }

    fn stall(&mut self, context: &mut Context<'_>, mut file_request: FileRequest) {
        if self.on_full == OnFull::Error || self.draining {
            return self.finish(file_request, Err(IoError::Full));
        }
        if !file_request.is_waiting {
            file_request.is_waiting = true;
            self.shared.waits.begin(1);
        }
        self.stalled.push_back(file_request);
        self.set_timer(context);
    }

    fn set_timer(&mut self, context: &mut Context<'_>) {
        if !self.timer_set {
            self.timer_set = true;
            context.submit(&self.port, IoOp::Timer { after: RETRY }, TIMER);
        }
    }

    /// Restarts all requests that wait for space.
    fn retry(&mut self, context: &mut Context<'_>) {
        for file_request in std::mem::take(&mut self.stalled) {
            self.start(context, file_request);
        }
    }
}

impl<const IS_MODELLED: bool> Channel for FileChannel<IS_MODELLED> {
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
        let io_method = match self.way(&mut request) {
            Ok(io_method) => io_method,
            Err(NoBuffer::Busy) => return SubmitOutcome::Full(request),
            Err(NoBuffer::NoMemory) => {
                return SubmitOutcome::Done(request.complete(Err(IoError::Storage(Errno::NOMEM))));
            }
        };
        let Request { kind, offset, len, buffers, tag } = request;
        let (left, is_waiting) = (len, false);
        self.start(
            context,
            FileRequest {
                tag,
                kind,
                offset,
                left,
                buffers,
                io_method,
                is_waiting,
                scheduled: UNSCHEDULED,
            },
        );
        SubmitOutcome::Pending
    }

    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        self.budget = INLINE_BUDGET;
        let mut op_completion = std::mem::take(&mut self.op_completion);
        context.reap(&self.port, &mut op_completion);
        for one in op_completion.drain(..) {
            self.advance(context, one);
        }
        self.op_completion = op_completion;
        if IS_MODELLED && self.model.as_ref().is_some_and(|model| model.needs_look()) {
            self.look_at_model(context);
        }
        for file_request in std::mem::take(&mut self.starved) {
            self.begin_fill(context, file_request);
        }
        if self.schedule.as_ref().is_some_and(|schedule| schedule.needs_look()) {
            self.look(context);
        }
        out.append(&mut self.ended);
    }

    fn waiting(&self) -> usize {
        // While requests wait for space, the others may wait for the buffers that these hold.
        if self.stalled.is_empty() { 0 } else { self.stalled.len() + self.starved.len() }
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {
        self.draining = true;
        for file_request in std::mem::take(&mut self.stalled) {
            self.finish(file_request, Err(IoError::Full));
        }
    }

    fn abandon(&mut self) {
        self.abandoned = true;
        let stalled = std::mem::take(&mut self.stalled);
        for file_request in stalled.into_iter().chain(std::mem::take(&mut self.starved)) {
            self.finish(file_request, CANCELED);
        }
        self.cancel_scheduled();
        // The kernel alone decides from here on.
        let model = self.model.take().map(|model| model.into_ended());
        self.op_completion.extend(model.into_iter().flatten());
    }
}

impl<const IS_MODELLED: bool> Drop for FileChannel<IS_MODELLED> {
    fn drop(&mut self) {
        self.complete_permits();
        let in_kernel = self.file_request.iter().flatten();
        let all = in_kernel.chain(&self.stalled).chain(&self.starved);
        self.shared.waits.end(all.filter(|one| one.is_waiting).count() as u64);
    }
}

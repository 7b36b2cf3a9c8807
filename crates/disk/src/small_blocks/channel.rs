//! One reactor's channel to a disk with small blocks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use memory::Buffers;
use reactor::{Context, EndGuards};
use rustix::io::Errno;

use super::Shared;
use super::notifier::ChannelNotifier;
use super::work::{Merge, Part, State, Work, covering, inside, next_part};
use crate::bounce::{BouncePool, NoBuffer};
use crate::{CANCELED, Channel, Completion, IoError, Request, RequestKind, SubmitOutcome};

/// One reactor's channel to a disk with small blocks.
pub(super) struct SmallBlockChannel {
    /// Channel to the storage. The tag of its requests is a slot.
    storage: Box<dyn Channel>,
    shared: Arc<Shared>,
    notifier: Arc<ChannelNotifier>,
    end_guards: EndGuards,
    /// Block size of the storage in bytes.
    block: u64,
    work: Vec<Option<Work>>,
    free: Vec<u32>,
    /// Number of requests that wait for their blocks.
    queued: usize,
    /// Slots of requests that wait for a bounce buffer.
    starved: VecDeque<u32>,
    /// Requests that the full storage channel returned.
    rejected: VecDeque<Request>,
    pool: BouncePool,
    /// Empty list for the next cut.
    spare: Buffers,
    /// Whether requests of this channel wait for space on the storage.
    stalls: bool,
    draining: bool,
    abandoned: bool,
    completed: Vec<Completion>,
    granted: Vec<(u32, u64)>,
    /// Requests that ended outside of [`Channel::reap`], which returns them.
    ended: Vec<Completion>,
}

impl SmallBlockChannel {
    pub(super) fn new(shared: Arc<Shared>, context: &mut Context<'_>) -> Self {
        Self {
            storage: shared.storage.open_channel(context),
            block: shared.storage.geometry().block_size.into(),
            shared,
            notifier: ChannelNotifier::new(context),
            end_guards: context.end_guards(),
            work: Vec::new(),
            free: Vec::new(),
            queued: 0,
            starved: VecDeque::new(),
            rejected: VecDeque::new(),
            pool: BouncePool::default(),
            spare: Buffers::default(),
            stalls: false,
            draining: false,
            abandoned: false,
            completed: Vec::new(),
            granted: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn insert(&mut self, work: Work) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.work.push(None);
            (self.work.len() - 1) as u32
        });
        if let Some(place) = self.work.get_mut(slot as usize) {
            *place = Some(work);
        }
        slot
    }

    fn work(&mut self, slot: u32) -> Option<&mut Work> {
        self.work.get_mut(slot as usize)?.as_mut()
    }

    /// Ends a request. Its blocks go to the requests that wait for them.
    fn finish(&mut self, slot: u32, outcome: Result<(), IoError>) -> Option<Completion> {
        let work = self.work.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(Completion { tag: work.tag, outcome, buffers: work.buffers })
    }

    /// Starts the next part of a request, until the storage has one. Returns the request if it has
    /// ended.
    fn advance(&mut self, context: &mut Context<'_>, slot: u32) -> Option<Completion> {
        loop {
            let request = match self.next_request(slot) {
                Ok(Some(request)) => request,
                Ok(None) => return self.finish(slot, Ok(())),
                Err(NoBuffer::Busy) => {
                    self.starved.push_back(slot);
                    return None;
                }
                Err(NoBuffer::NoMemory) => {
                    return self.finish(slot, Err(IoError::Storage(Errno::NOMEM)));
                }
            };
            match self.storage.submit(context, request) {
                SubmitOutcome::Done(completion) => {
                    if let Err(outcome) = self.end_part(completion) {
                        return self.finish(slot, outcome);
                    }
                }
                SubmitOutcome::Pending => return None,
                SubmitOutcome::Full(request) => {
                    self.rejected.push_back(request);
                    return None;
                }
            }
        }
    }

    /// Returns the next request to the storage, or `None` if nothing is left.
    fn next_request(&mut self, slot: u32) -> Result<Option<Request>, NoBuffer> {
        let block = self.block;
        let Some(work) = self.work.get_mut(slot as usize).and_then(Option::as_mut) else {
            return Ok(None);
        };
        if let State::Merging(merge) = &mut work.state {
            // The blocks were read and changed.
            merge.writes = true;
            let (offset, buffers) = (merge.blocks.start, merge.all());
            let kind = RequestKind::Write { durable: work.durable() };
            let len = buffers.len() as u64;
            return Ok(Some(Request { kind, offset, len, buffers, tag: slot }));
        }
        let is_begun = matches!(work.state, State::Passed(_));
        if work.left.is_empty() && (is_begun || work.kind != RequestKind::Flush) {
            return Ok(None);
        }
        match next_part(work.kind, &work.left, block) {
            Part::Pass(end) => {
                let (kind, offset, len) = (work.kind, work.left.start, end - work.left.start);
                let rest = match usize::try_from(len) {
                    Ok(count) if end < work.left.end => {
                        work.buffers.split_off(count, std::mem::take(&mut self.spare))
                    }
                    _ => Buffers::default(),
                };
                let buffers = std::mem::replace(&mut work.buffers, rest);
                work.state = State::Passed(end);
                Ok(Some(Request { kind, offset, len, buffers, tag: slot }))
            }
            Part::Merge { blocks, end } => {
                work.state = State::Starved;
                let merge = Merge { buffer: self.pool.take()?, blocks, end, writes: false };
                let (offset, buffers) = (merge.blocks.start, merge.all());
                work.state = State::Merging(merge);
                let len = buffers.len() as u64;
                Ok(Some(Request { kind: RequestKind::Read, offset, len, buffers, tag: slot }))
            }
        }
    }

    /// Processes a part that the storage has ended.
    ///
    /// # Errors
    /// The outcome of the whole request, if no further part may begin.
    fn end_part(&mut self, completion: Completion) -> Result<(), Result<(), IoError>> {
        let Completion { tag: slot, outcome, buffers } = completion;
        if self.abandoned {
            return Err(CANCELED);
        }
        let Some(work) = self.work.get_mut(slot as usize).and_then(Option::as_mut) else {
            return Err(CANCELED);
        };
        if outcome.is_err() {
            return Err(outcome);
        }
        match std::mem::replace(&mut work.state, State::Passed(0)) {
            State::Passed(end) => {
                work.left.start = end;
                // The list returns with the request, or serves the next cut.
                let place = if work.left.is_empty() { &mut work.buffers } else { &mut self.spare };
                *place = buffers;
            }
            State::Merging(merge) => {
                // The storage's list must end before the merge returns its buffer.
                drop(buffers);
                if !merge.writes {
                    work.copy(&merge);
                }
                if merge.writes || work.kind == RequestKind::Read {
                    work.left.start = merge.end;
                    self.shared.small_writes.fetch_add(merge.writes.into(), Ordering::Relaxed);
                } else {
                    work.state = State::Merging(merge);
                }
            }
            State::Queued | State::Starved => return Err(CANCELED),
        }
        Ok(())
    }

    /// Continues a request after the storage has ended a part of it.
    fn part_ended(
        &mut self,
        context: &mut Context<'_>,
        completion: Completion,
    ) -> Option<Completion> {
        let slot = completion.tag;
        match self.end_part(completion) {
            Ok(()) => self.advance(context, slot),
            Err(outcome) => self.finish(slot, outcome),
        }
    }

    /// Submits what the full storage channel returned, as far as it goes.
    fn submit_rejected(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        for _ in 0..self.rejected.len() {
            let Some(request) = self.rejected.pop_front() else { return };
            match self.storage.submit(context, request) {
                SubmitOutcome::Done(completion) => {
                    out.extend(self.part_ended(context, completion));
                }
                SubmitOutcome::Pending => {}
                SubmitOutcome::Full(request) => return self.rejected.push_front(request),
            }
        }
    }

    /// Begins a request whose blocks are free now, if it still waits.
    fn begin_granted(
        &mut self,
        context: &mut Context<'_>,
        (slot, number): (u32, u64),
    ) -> Option<Completion> {
        let work = self.work(slot)?;
        let is_that = work.ticket.as_ref().is_some_and(|ticket| ticket.number() == number);
        if !is_that || !matches!(work.state, State::Queued) {
            return None;
        }
        self.queued -= 1;
        self.advance(context, slot)
    }

    /// Ends all requests that satisfy `ends`. The storage must have none of them.
    fn end_all(&mut self, outcome: Result<(), IoError>, ends: impl Fn(&State) -> bool) {
        for slot in 0..self.work.len() as u32 {
            if self.work(slot).is_some_and(|work| ends(&work.state)) {
                let completion = self.finish(slot, outcome);
                self.ended.extend(completion);
            }
        }
    }

    /// Fails the requests that wait for blocks while requests wait for space, perhaps those that
    /// have the blocks.
    fn fail_queued(&mut self) {
        if self.draining && self.queued > 0 && self.shared.storage.stalled() > 0 {
            self.queued = 0;
            self.end_all(Err(IoError::Full), |state| matches!(state, State::Queued));
        }
    }
}

impl Channel for SmallBlockChannel {
    fn submit(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome {
        if self.abandoned {
            return SubmitOutcome::Done(request.complete(CANCELED));
        }
        let Request { kind, offset, len, buffers, tag } = request;
        let mut left = offset..offset.saturating_add(len);
        if kind == RequestKind::Discard {
            left = inside(&left, self.block);
            if left.is_empty() {
                return SubmitOutcome::Done(Completion { tag, outcome: Ok(()), buffers });
            }
        }
        let blocks = covering(&left, self.block);
        let merges = blocks != left;
        let slot =
            self.insert(Work { tag, kind, left, buffers, ticket: None, state: State::Queued });
        if !matches!(kind, RequestKind::Read | RequestKind::Flush) {
            let (ticket, has_blocks) =
                self.shared.ranges.enter(blocks, merges, &self.notifier, slot);
            if let Some(work) = self.work(slot) {
                work.ticket = Some(ticket);
            }
            if !has_blocks {
                self.queued += 1;
                return SubmitOutcome::Pending;
            }
        }
        match self.advance(context, slot) {
            Some(completion) => SubmitOutcome::Done(completion),
            None => SubmitOutcome::Pending,
        }
    }

    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        self.notifier.begin();
        let mut completed = std::mem::take(&mut self.completed);
        self.storage.reap(context, &mut completed);
        for completion in completed.drain(..) {
            out.extend(self.part_ended(context, completion));
        }
        self.completed = completed;
        self.submit_rejected(context, out);
        for slot in std::mem::take(&mut self.starved) {
            out.extend(self.advance(context, slot));
        }
        let mut granted = std::mem::take(&mut self.granted);
        while self.notifier.take(&mut granted) {
            for one in granted.drain(..) {
                out.extend(self.begin_granted(context, one));
            }
        }
        self.granted = granted;
        let stalls = self.storage.waiting() > 0;
        if stalls && !self.stalls {
            self.shared.ranges.notify_waiting();
        }
        self.stalls = stalls;
        self.fail_queued();
        out.append(&mut self.ended);
    }

    fn waiting(&self) -> usize {
        let stalled = self.storage.waiting();
        // While requests wait for space, the others may wait for their blocks, buffers or room.
        if stalled > 0 || (self.queued > 0 && self.shared.storage.stalled() > 0) {
            stalled + self.queued + self.starved.len() + self.rejected.len()
        } else {
            0
        }
    }

    fn fail_stalled(&mut self, context: &mut Context<'_>) {
        self.draining = true;
        self.storage.fail_stalled(context);
        self.fail_queued();
    }

    fn abandon(&mut self) {
        self.abandoned = true;
        self.storage.abandon();
        self.queued = 0;
        self.starved.clear();
        for request in std::mem::take(&mut self.rejected) {
            let completion = self.finish(request.tag, CANCELED);
            self.ended.extend(completion);
        }
        self.end_all(CANCELED, |state| matches!(state, State::Queued | State::Starved));
    }
}

impl Drop for SmallBlockChannel {
    /// Leaves the blocks that operations in the kernel may still change to the end of the reactor,
    /// which waits for these operations. No other event reports their end.
    fn drop(&mut self) {
        let begun = self
            .work
            .iter_mut()
            .flatten()
            .filter(|work| matches!(work.state, State::Passed(_) | State::Merging(_)));
        let tickets: Vec<_> = begun.filter_map(|work| work.ticket.take()).collect();
        if !tickets.is_empty() {
            self.end_guards.keep(tickets);
        }
    }
}

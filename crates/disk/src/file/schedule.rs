//! Requests of a channel that wait for their share of the storage.
//!
//! ```text
//! start --storage not contended--> issue
//!   |
//!   `--> scheduler --Send--> issue
//!           |  `--Full--> refused, until one of the channel's requests was dispatched
//!           `--Held--> held --dispatched, whole or in parts--> issue
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use reactor::{Context, IoOp, Slab};
use share::{Permit, Submitted};

use super::OnFull;
use super::channel::{FileChannel, SHARE_TIMER};
use super::request::{FileRequest, IoMethod};
use crate::storage::{Dispatched, Membership, StorageDisk};
use crate::{CANCELED, Completion, IoError, RequestKind};

/// Access of a channel to the scheduler of its storage.
pub(super) struct Schedule {
    membership: Membership,
    /// Requests that the scheduler holds, by the number that it knows.
    held: Slab<FileRequest>,
    /// Requests that the scheduler refused.
    refused: VecDeque<FileRequest>,
    /// Requests that go to the storage in parts.
    wholes: Slab<Whole>,
    /// True if requests may have their turn.
    has_changed: bool,
    // Kept for its capacity.
    dispatched: Vec<Dispatched>,
}

/// Request that goes to the storage in parts.
struct Whole {
    tag: u32,
    /// Parts that have not ended.
    parts: u32,
    /// True while further parts follow.
    has_more: bool,
    /// First failure.
    outcome: Result<(), IoError>,
}

impl Schedule {
    /// Opens the access for the channel of the poller that is being made or called. `None` if the
    /// storage has too many reactors: the channel is not scheduled then.
    pub(super) fn open(disk: &Arc<StorageDisk>, context: &Context<'_>) -> Option<Self> {
        let membership = Membership::enter(disk, context)?;
        let (held, refused, wholes, dispatched) = Default::default();
        Some(Self { membership, held, refused, wholes, has_changed: false, dispatched })
    }

    /// Returns whether the next step of a request needs no scheduler.
    #[inline]
    pub(super) fn passes(&self, request: &FileRequest) -> bool {
        self.membership.passes(request.left) && request.kind != RequestKind::Discard
    }

    /// Returns whether requests may have their turn.
    #[inline]
    pub(super) fn needs_look(&self) -> bool {
        self.has_changed || self.membership.has_dispatched()
    }
}

impl FileChannel {
    /// Submits the next step of a request to the scheduler.
    #[inline(never)]
    pub(super) fn submit_to_schedule(
        &mut self,
        context: &mut Context<'_>,
        file_request: FileRequest,
    ) {
        let behind = self.schedule.as_ref().is_some_and(|schedule| !schedule.refused.is_empty());
        if behind && !matches!(file_request.io_method, IoMethod::Sync) {
            // Requests of one channel go in order.
            return self.keep_refused(file_request);
        }
        if let Some(refused) = self.try_schedule(context, file_request) {
            self.keep_refused(refused);
        }
        self.look(context);
    }

    /// Submits the next step of a request to the scheduler. Returns a request that it refuses.
    fn try_schedule(
        &mut self,
        context: &mut Context<'_>,
        file_request: FileRequest,
    ) -> Option<FileRequest> {
        let may_split = self.may_split(&file_request);
        let schedule = self.schedule.as_mut()?;
        let op = file_request.scheduled_op(may_split);
        let number = schedule.held.insert(file_request);
        match schedule.membership.submit(context, op, number) {
            Submitted::Send(permit) => {
                let mut file_request = schedule.held.remove(number)?;
                file_request.permit = Some(permit);
                self.issue(context, file_request);
                None
            }
            Submitted::Held => None,
            Submitted::Full => schedule.held.remove(number),
        }
    }

    /// Returns whether a request may go to the storage in parts. A write that fails on a full storage
    /// must tell what it has written, which its parts cannot.
    fn may_split(&self, request: &FileRequest) -> bool {
        let is_direct = matches!(request.io_method, IoMethod::Whole);
        is_direct && (request.kind == RequestKind::Read || self.on_full == OnFull::Wait)
    }

    /// Starts the requests whose turn has come.
    pub(super) fn look(&mut self, context: &mut Context<'_>) {
        loop {
            let Some(schedule) = &mut self.schedule else { return };
            schedule.has_changed = false;
            let mut dispatched = std::mem::take(&mut schedule.dispatched);
            schedule.membership.dispatch(context, &mut dispatched);
            let any = !dispatched.is_empty();
            for part in dispatched.drain(..) {
                self.start_part(context, part);
            }
            if let Some(schedule) = &mut self.schedule {
                schedule.dispatched = dispatched;
            }
            if !any || !self.submit_refused(context) {
                break;
            }
        }
        let Some(schedule) = &self.schedule else { return };
        if let Some(after) = schedule.membership.begin_timer(context) {
            context.submit(&self.port, IoOp::Timer { after }, SHARE_TIMER);
        }
    }

    fn keep_refused(&mut self, refused: FileRequest) {
        if let Some(schedule) = &mut self.schedule {
            schedule.refused.push_back(refused);
        }
    }

    /// Submits refused requests again. Returns whether the scheduler took any.
    fn submit_refused(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Some(refused) = self.schedule.as_mut().and_then(|it| it.refused.pop_front()) {
            if let Some(refused) = self.try_schedule(context, refused) {
                if let Some(schedule) = &mut self.schedule {
                    schedule.refused.push_front(refused);
                }
                return any;
            }
            any = true;
        }
        any
    }

    /// Starts a request, or a part of one.
    fn start_part(&mut self, context: &mut Context<'_>, part: Dispatched) {
        let Dispatched { request: number, permit, bytes, is_last } = part;
        let Some(schedule) = &mut self.schedule else { return };
        let Some(request) = schedule.held.get_mut(number) else {
            // It was canceled.
            return schedule.membership.complete(context, permit);
        };
        let is_part = request.whole.is_some() || !is_last;
        if is_part {
            let tag = request.tag;
            let new = || Whole { tag, parts: 0, has_more: true, outcome: Ok(()) };
            let whole = *request.whole.get_or_insert_with(|| schedule.wholes.insert(new()));
            if let Some(whole) = schedule.wholes.get_mut(whole) {
                whole.parts += 1;
                whole.has_more = !is_last;
            }
        }
        let next = if is_last { schedule.held.remove(number) } else { Some(request.cut(bytes)) };
        if let Some(mut next) = next {
            next.permit = Some(permit);
            self.issue(context, next);
        }
    }

    /// Ends a part of a request. The request ends with its last part.
    pub(super) fn end_part(&mut self, number: u32, completion: Completion) {
        let Some(schedule) = &mut self.schedule else { return };
        let Some(whole) = schedule.wholes.get_mut(number) else { return };
        whole.parts -= 1;
        if whole.outcome.is_ok() {
            whole.outcome = completion.outcome;
        }
        if whole.parts == 0
            && !whole.has_more
            && let Some(Whole { tag, outcome, .. }) = schedule.wholes.remove(number)
        {
            self.ended.push(Completion { tag, outcome, ..completion });
        }
    }

    /// Returns the permit of a step that has ended.
    #[inline(never)]
    pub(super) fn complete_permit(&mut self, context: &mut Context<'_>, permit: Permit) {
        if let Some(schedule) = &mut self.schedule {
            schedule.membership.complete(context, permit);
            schedule.has_changed = true;
        }
    }

    pub(super) fn end_share_timer(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            schedule.membership.end_timer();
            schedule.has_changed = true;
        }
    }

    /// Ends all requests that wait for their share: their outcome does not matter any more.
    pub(super) fn cancel_scheduled(&mut self) {
        let Some(schedule) = &mut self.schedule else { return };
        schedule.membership.cancel();
        let numbers: Vec<_> = schedule.held.iter().map(|(number, _)| number).collect();
        let mut requests = std::mem::take(&mut schedule.refused);
        requests.extend(numbers.into_iter().filter_map(|number| schedule.held.remove(number)));
        for request in requests {
            if let Some(whole) = request.whole.and_then(|it| self.whole(it)) {
                // The rest counts as the last part.
                whole.parts += 1;
                whole.has_more = false;
            }
            self.finish(request, CANCELED);
        }
    }

    /// Returns the permits of operations that nobody waits for any more.
    pub(super) fn complete_permits(&mut self) {
        let Some(schedule) = &self.schedule else { return };
        let permits = self.file_request.iter_mut().flatten().filter_map(|it| it.permit.take());
        permits.for_each(|permit| schedule.membership.release(permit));
    }

    fn whole(&mut self, number: u32) -> Option<&mut Whole> {
        self.schedule.as_mut()?.wholes.get_mut(number)
    }
}

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
use share::{Op, Permit, Submitted};

use super::OnFull;
use super::channel::{FileChannel, SHARE_TIMER};
use super::request::{FileRequest, IoMethod, UNSCHEDULED};
use crate::storage::{Dispatched, Membership, StorageDisk};
use crate::{CANCELED, Completion, IoError, RequestKind};

/// Access of a channel to the scheduler of its storage.
pub(super) struct Schedule {
    /// Largest request in bytes that needs no scheduler while no other disk uses the storage.
    pass_bytes: u64,
    membership: Membership,
    /// Requests that the scheduler holds, by the number that it knows.
    held: Slab<Held>,
    /// Requests that the scheduler refused, with the times since which they wait, in nanoseconds.
    refused: VecDeque<(u64, FileRequest)>,
    /// Permits of the scheduler for requests in the kernel.
    scheduled: Slab<Scheduled>,
    /// Requests that go to the storage in parts.
    wholes: Slab<Whole>,
    // Kept for its capacity.
    dispatched: Vec<Dispatched>,
}

/// Request that the scheduler holds, or its part that is not sent.
struct Held {
    request: FileRequest,
    /// Number of the whole, if a part is in the kernel.
    whole: Option<u32>,
}

/// Step in the kernel that the scheduler counts.
struct Scheduled {
    /// Right to be there.
    permit: Option<Permit>,
    /// Number of the whole, if it is a part of one.
    whole: Option<u32>,
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
        let pass_bytes = membership.pass_bytes();
        let (held, refused, scheduled, wholes, dispatched) = Default::default();
        Some(Self { pass_bytes, membership, held, refused, scheduled, wholes, dispatched })
    }

    /// Returns whether the next step of a request needs no scheduler.
    #[inline]
    pub(super) fn passes(&self, request: &FileRequest) -> bool {
        // A discard passes, too: it can only hold up the disk that sends it.
        request.left <= self.pass_bytes && self.membership.is_sole()
    }

    /// Returns whether requests may have their turn.
    #[inline]
    pub(super) fn needs_look(&self) -> bool {
        self.membership.needs_look()
    }
}

impl<const IS_MODELLED: bool> FileChannel<IS_MODELLED> {
    /// Submits the next step of a request to the scheduler.
    #[inline(never)]
    pub(super) fn submit_to_schedule(
        &mut self,
        context: &mut Context<'_>,
        file_request: FileRequest,
    ) {
        let behind = self.schedule.as_ref().is_some_and(|schedule| !schedule.refused.is_empty());
        if behind && !matches!(file_request.io_method, IoMethod::Sync { .. }) {
            // Requests of one channel go in order.
            return self.keep_refused(context, file_request);
        }
        if let Some(refused) = self.try_schedule(context, file_request) {
            self.keep_refused(context, refused);
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
        let is_discard = |held: &Held| matches!(held.request.io_method, IoMethod::Punch);
        let first = schedule.held.iter().all(|(_, held)| is_discard(held));
        let op = Op { first, ..file_request.scheduled_op(may_split) };
        let number = schedule.held.insert(Held { request: file_request, whole: None });
        match schedule.membership.submit(context, op, number) {
            Submitted::Send(permit) => {
                let Held { request, whole } = schedule.held.remove(number)?;
                self.issue_scheduled(context, request, permit, whole);
                None
            }
            Submitted::Held => None,
            Submitted::Full => schedule.held.remove(number).map(|held| held.request),
        }
    }

    /// Hands a step to the kernel for which the scheduler gave a permit.
    fn issue_scheduled(
        &mut self,
        context: &mut Context<'_>,
        mut request: FileRequest,
        permit: Permit,
        whole: Option<u32>,
    ) {
        let Some(schedule) = &mut self.schedule else { return };
        match schedule.scheduled.get_mut(request.scheduled) {
            // A further step of a part.
            Some(scheduled) => scheduled.permit = Some(permit),
            None => {
                let scheduled = Scheduled { permit: Some(permit), whole };
                request.scheduled = schedule.scheduled.insert(scheduled);
            }
        }
        self.issue(context, request);
    }

    /// Returns whether a request may go to the storage in parts. A part of another is small already,
    /// and a write that fails on a full storage
    /// must tell what it has written, which its parts cannot.
    fn may_split(&self, request: &FileRequest) -> bool {
        let is_direct = matches!(request.io_method, IoMethod::Whole);
        let is_part = request.scheduled != UNSCHEDULED;
        is_direct && !is_part && (request.kind == RequestKind::Read || self.on_full == OnFull::Wait)
    }

    /// Starts the requests whose turn has come.
    pub(super) fn look(&mut self, context: &mut Context<'_>) {
        loop {
            let Some(schedule) = &mut self.schedule else { return };
            schedule.pass_bytes = schedule.membership.pass_bytes();
            let mut dispatched = std::mem::take(&mut schedule.dispatched);
            schedule.membership.dispatch(context, &mut dispatched);
            for part in dispatched.drain(..) {
                self.start_part(context, part);
            }
            if let Some(schedule) = &mut self.schedule {
                schedule.dispatched = dispatched;
            }
            if !self.submit_refused(context) {
                break;
            }
        }
        let Some(schedule) = &self.schedule else { return };
        if let Some(after) = schedule.membership.begin_timer(context) {
            context.submit(&self.port, IoOp::Timer { after }, SHARE_TIMER);
        }
    }

    fn keep_refused(&mut self, context: &mut Context<'_>, refused: FileRequest) {
        if let Some(schedule) = &mut self.schedule {
            schedule.refused.push_back((context.now_ns(), refused));
            schedule.membership.begin_refused();
        }
    }

    /// Submits refused requests again. Returns whether the scheduler took any.
    fn submit_refused(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Some((since, request)) =
            self.schedule.as_mut().and_then(|it| it.refused.pop_front())
        {
            let refused = self.try_schedule(context, request);
            let Some(schedule) = &mut self.schedule else { return any };
            if let Some(refused) = refused {
                schedule.refused.push_front((since, refused));
                return any;
            }
            schedule.membership.end_refused(context.now_ns().saturating_sub(since));
            any = true;
        }
        any
    }

    /// Starts a request, or a part of one.
    fn start_part(&mut self, context: &mut Context<'_>, part: Dispatched) {
        let Dispatched { request: number, permit, bytes, is_last } = part;
        let Some(schedule) = &mut self.schedule else { return };
        let Some(held) = schedule.held.get_mut(number) else {
            // It was canceled.
            return schedule.membership.complete(context, permit, true);
        };
        if held.whole.is_some() || !is_last {
            let tag = held.request.tag;
            let new = || Whole { tag, parts: 0, has_more: true, outcome: Ok(()) };
            let whole = *held.whole.get_or_insert_with(|| schedule.wholes.insert(new()));
            if let Some(whole) = schedule.wholes.get_mut(whole) {
                whole.parts += 1;
                whole.has_more = !is_last;
            }
        }
        let whole = held.whole;
        let next = match is_last {
            true => schedule.held.remove(number).map(|held| held.request),
            false => Some(held.request.cut(bytes)),
        };
        if let Some(next) = next {
            self.issue_scheduled(context, next, permit, whole);
        }
    }

    /// Ends a request that the scheduler knows.
    pub(super) fn end_scheduled(&mut self, number: u32, completion: Completion) {
        let Some(schedule) = &mut self.schedule else { return };
        let Some(scheduled) = schedule.scheduled.remove(number) else { return };
        match scheduled.whole {
            None => self.ended.push(completion),
            Some(whole) => self.end_part(whole, completion),
        }
    }

    /// Ends a part of a request. The request ends with its last part.
    fn end_part(&mut self, number: u32, completion: Completion) {
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

    /// Returns the permit of a step that has ended or failed.
    #[inline(never)]
    pub(super) fn complete_scheduled(
        &mut self,
        context: &mut Context<'_>,
        request: &mut FileRequest,
        failed: bool,
    ) {
        let Some(schedule) = &mut self.schedule else { return };
        let Some(scheduled) = schedule.scheduled.get_mut(request.scheduled) else { return };
        let (permit, is_part) = (scheduled.permit.take(), scheduled.whole.is_some());
        if !is_part {
            schedule.scheduled.remove(request.scheduled);
            request.scheduled = UNSCHEDULED;
        }
        if let Some(permit) = permit {
            schedule.membership.complete(context, permit, failed);
        }
    }

    pub(super) fn end_share_timer(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            schedule.membership.end_timer();
        }
    }

    /// Ends all requests that wait for their share: their outcome does not matter any more.
    pub(super) fn cancel_scheduled(&mut self) {
        let Some(schedule) = &mut self.schedule else { return };
        schedule.membership.cancel();
        let refused = std::mem::take(&mut schedule.refused);
        refused.iter().for_each(|_| schedule.membership.end_refused(0));
        let numbers: Vec<_> = schedule.held.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let held = self.schedule.as_mut().and_then(|it| it.held.remove(number));
            let Some(Held { request, whole }) = held else { continue };
            match whole.and_then(|whole| self.whole(whole)) {
                None => self.finish(request, CANCELED),
                // The rest ends as the last part.
                Some(rest) => {
                    rest.parts += 1;
                    rest.has_more = false;
                    let FileRequest { tag, buffers, .. } = request;
                    let completion = Completion { tag, outcome: CANCELED, buffers };
                    self.end_part(whole.unwrap_or_default(), completion);
                }
            }
        }
        refused.into_iter().for_each(|(_, request)| self.finish(request, CANCELED));
    }

    /// Returns the permits of operations that nobody waits for any more.
    pub(super) fn complete_permits(&mut self) {
        let Some(schedule) = &mut self.schedule else { return };
        let numbers: Vec<_> = schedule.scheduled.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let permit = schedule.scheduled.remove(number).and_then(|it| it.permit);
            permit.into_iter().for_each(|permit| schedule.membership.release(permit));
        }
    }

    fn whole(&mut self, number: u32) -> Option<&mut Whole> {
        self.schedule.as_mut()?.wholes.get_mut(number)
    }
}

//! One reactor's channel to a mapped disk.

mod completions;
mod direct;
mod questions;
mod requests;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

use ::disk::{
    BouncePool, Channel, Child, Completion, FileDisk, IoError, Request, RequestKind, SubmitOutcome,
};
use image::channel::MapChannel;
use image::map::Layout;
use image::shared::{Answer, QuestionKind};
use memory::Buffers;
use reactor::{CompletionPort, Context, OpCompletion, Slab};
use rustix::io::Errno;

use crate::below::Below;
use crate::counters::Counters;
use crate::mailbox::Mailbox;
use crate::piece::{Action, Parent, Phase, Piece};
use crate::service::Service;
use direct::Direct;

/// Outcome of a request whose channel was abandoned.
const CANCELED: Result<(), IoError> = Err(IoError::Storage(Errno::CANCELED));

/// Disk that a piece is submitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The file of the image.
    File,
    /// The layer below.
    Below,
    /// A file of the layers below.
    Lower(usize),
}

/// One reactor's channel to a mapped disk.
pub(crate) struct MappedChannel {
    pub(crate) file: Child,
    pub(crate) below: Option<Below>,
    pub(crate) map: MapChannel,
    pub(crate) layout: Layout,
    granule_bytes: u64,
    /// Whether requests wait for space, or fail.
    waits_for_room: bool,
    /// Whether the image can say that a granule is zero.
    pub(crate) has_zeroes: bool,
    container: Arc<FileDisk>,
    service: Arc<dyn Service>,
    mailbox: Arc<Mailbox>,
    pub(crate) counters: Arc<Counters>,
    number: u32,
    port: CompletionPort,
    parents: Slab<Parent>,
    direct: Slab<Direct>,
    pub(crate) pieces: Slab<Piece>,
    /// Pieces to plan.
    pub(crate) planned: Vec<u32>,
    /// Requests that a child channel handed back.
    refused: Vec<(Target, Request)>,
    is_timer_set: bool,
    is_draining: bool,
    is_abandoned: bool,
    pub(crate) has_asked: bool,
    /// Memory of fills.
    pub(crate) fill_memory: BouncePool,
    /// Fills that wait for memory, the oldest first.
    pub(crate) starved: VecDeque<u32>,
    /// Fills whose next step can begin.
    pub(crate) fills: Vec<u32>,
    ended: Vec<Completion>,
    // Kept for their capacity.
    answers: Vec<Answer>,
    op_completions: Vec<OpCompletion>,
    pub(crate) spares: Vec<Buffers>,
}

impl std::fmt::Debug for MappedChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MappedChannel({})", self.number)
    }
}

impl MappedChannel {
    pub(crate) fn new(
        container: Arc<FileDisk>,
        (file, below): (Box<dyn Channel>, Option<Below>),
        (map, number): (MapChannel, u32),
        (service, mailbox, counters): (Arc<dyn Service>, Arc<Mailbox>, Arc<Counters>),
        (waits_for_room, has_zeroes): (bool, bool),
        context: &mut Context<'_>,
    ) -> Self {
        let layout = *map.shared().map.layout();
        Self {
            file: Child::new(file),
            below,
            layout,
            granule_bytes: 1 << layout.granule_bits,
            map,
            waits_for_room,
            has_zeroes,
            container,
            service,
            mailbox,
            counters,
            number,
            port: context.open_port(),
            parents: Slab::default(),
            direct: Slab::default(),
            pieces: Slab::default(),
            planned: Vec::new(),
            refused: Vec::new(),
            is_timer_set: false,
            is_draining: false,
            is_abandoned: false,
            has_asked: false,
            fill_memory: BouncePool::of_size(1 << layout.granule_bits),
            starved: VecDeque::new(),
            fills: Vec::new(),
            ended: Vec::new(),
            answers: Vec::new(),
            op_completions: Vec::new(),
            spares: Vec::new(),
        }
    }

    /// Submits I/O of a piece.
    pub(crate) fn submit_piece(
        &mut self,
        context: &mut Context<'_>,
        target: Target,
        request: Request,
    ) {
        match self.submit_to(context, target, request) {
            SubmitOutcome::Pending => {}
            SubmitOutcome::Done(completion) => self.on_io(completion),
            SubmitOutcome::Full(request) => self.refused.push((target, request)),
        }
    }

    fn submit_to(
        &mut self,
        context: &mut Context<'_>,
        target: Target,
        request: Request,
    ) -> SubmitOutcome {
        match (target, &mut self.below) {
            (Target::Below, Some(below)) => below.submit(context, None, request),
            (Target::Lower(file), Some(below)) => below.submit(context, Some(file), request),
            _ => self.file.submit(context, request),
        }
    }

    /// Returns the size of the layer below in bytes, 0 if there is none.
    pub(crate) fn below_size(&self) -> u64 {
        self.below.as_ref().map_or(0, |below| below.size)
    }

    /// Plans all pieces that can go on.
    fn plan_all(&mut self, context: &mut Context<'_>) {
        while let Some(index) = self.planned.pop() {
            if self.is_abandoned {
                self.end_piece(index, CANCELED);
                continue;
            }
            match self.pieces.get(index).map(|piece| piece.action) {
                Some(Action::Read) => self.plan_read(context, index),
                Some(Action::Write { durable }) => self.plan_write(context, index, durable),
                Some(Action::Zero) => self.plan_zero(index),
                Some(Action::Flush) => self.plan_flush(context, index),
                None => {}
            }
        }
        if std::mem::take(&mut self.has_asked) {
            Arc::clone(&self.service).notify();
        }
    }

    /// Returns whether the outcome of requests does not matter any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Submits a request whose place is not known, or that has several.
    #[inline(never)]
    fn submit_planned(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome {
        let Request { kind, offset, len, buffers, tag } = request;
        let needs_flush = matches!(kind, RequestKind::WriteZeroes { durable: true, .. });
        let parent = self.parents.insert(Parent::new(tag, needs_flush));
        match kind {
            RequestKind::Read => self.add_piece(parent, Action::Read, (offset, len), buffers),
            RequestKind::Write { durable } => {
                self.add_piece(parent, Action::Write { durable }, (offset, len), buffers);
            }
            RequestKind::Flush => self.add_piece(parent, Action::Flush, (0, 0), buffers),
            RequestKind::Discard => self.add_zeroes(parent, offset, len, false),
            RequestKind::WriteZeroes { .. } => self.add_zeroes(parent, offset, len, true),
        }
        // Until here the request itself has counted as a piece, so that it cannot end too early.
        self.end_part(parent, Ok(()), Buffers::default());
        self.plan_all(context);
        self.set_timer(context);
        self.outcome(tag)
    }

    /// Returns the outcome of a request that was just submitted.
    fn outcome(&mut self, tag: u32) -> SubmitOutcome {
        match self.ended.pop() {
            // What ended earlier comes first.
            Some(completion) if self.ended.is_empty() && completion.tag == tag => {
                SubmitOutcome::Done(completion)
            }
            Some(completion) => {
                self.ended.push(completion);
                SubmitOutcome::Pending
            }
            None => SubmitOutcome::Pending,
        }
    }

    /// Fetches what the children and the owner have to say.
    fn collect(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        let first = out.len();
        self.file.reap(context, out);
        if let Some(below) = &mut self.below {
            below.reap(context, out);
        }
        self.sort(out, first);
        if self.mailbox.has_answers() {
            let mut answers = std::mem::take(&mut self.answers);
            self.mailbox.take(&mut answers);
            for answer in answers.drain(..) {
                self.on_answer(context, answer);
            }
            self.answers = answers;
        }
        if !self.is_timer_set {
            return;
        }
        let mut timers = std::mem::take(&mut self.op_completions);
        context.reap(&self.port, &mut timers);
        if !timers.is_empty() {
            timers.clear();
            self.is_timer_set = false;
            for index in self.indices(Piece::is_stalled) {
                self.resume(context, index);
            }
        }
        self.op_completions = timers;
    }
}

impl Channel for MappedChannel {
    fn submit(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome {
        if self.is_abandoned {
            return SubmitOutcome::Done(request.complete(CANCELED));
        }
        match self.find_direct(&request) {
            Some(found) => self.submit_direct(context, request, found),
            None => self.submit_planned(context, request),
        }
    }

    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        self.collect(context, out);
        // A piece that has just ended may have told the owner something that others wait for.
        if self.pieces.is_empty() && !self.has_asked {
            return out.append(&mut self.ended);
        }
        for (target, request) in std::mem::take(&mut self.refused) {
            self.submit_piece(context, target, request);
        }
        self.continue_fills(context);
        self.plan_all(context);
        // Last: a piece that has just asked must not wait on a queue that drains.
        self.fail_waiting();
        self.set_timer(context);
        out.append(&mut self.ended);
    }

    fn waiting(&self) -> usize {
        self.count_waiting()
    }

    fn fail_stalled(&mut self, context: &mut Context<'_>) {
        self.is_draining = true;
        self.below.iter_mut().for_each(|below| below.fail_stalled(context));
        self.fail_waiting();
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
        self.file.abandon();
        self.below.iter_mut().for_each(|below| below.abandon());
        let waits = |piece: &Piece| piece.is_stalled() || matches!(piece.phase, Phase::Asked);
        for index in self.indices(waits) {
            self.end_waiting(index, CANCELED);
        }
    }
}

impl Drop for MappedChannel {
    fn drop(&mut self) {
        let fills = self.pieces.iter().filter_map(|(_, piece)| match &piece.phase {
            Phase::Describing(fill) | Phase::Reading(fill) | Phase::Filling(fill) => {
                Some(fill.grant)
            }
            Phase::Starved(grant) => Some(*grant),
            _ => None,
        });
        // A late write may land in their clusters.
        let asked = fills.map(|grant| self.map.ask(0, QuestionKind::Failed(grant))).count();
        for claim in self.pieces.iter().filter_map(|(_, piece)| piece.claim.as_ref()) {
            claim.take();
        }
        let counted = self.pieces.iter().filter(|(_, piece)| piece.is_counted).count();
        self.container.room_waits().end(counted as u64);
        Arc::clone(&self.service).close_channel(self.number);
        if asked > 0 {
            // Requests of other channels may wait for the granules of the grants.
            Arc::clone(&self.service).notify();
        }
    }
}

//! One reactor's channel to a mapped disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ::disk::{Channel, Completion, FileDisk, IoError, Request, RequestKind, SubmitOutcome};
use image::channel::MapChannel;
use image::shared::{Answer, AnswerKind, QuestionKind};
use memory::Buffers;
use reactor::{CompletionPort, Context, IoOp, OpCompletion};
use rustix::io::Errno;

use crate::counters::{Counters, ns_since};
use crate::mailbox::Mailbox;
use crate::piece::{Action, Few, Parent, Phase, Piece, Slab};
use crate::service::Service;

/// Interval for retrying writes that the storage had no room for.
const RETRY: Duration = Duration::from_millis(500);
/// Most empty lists of buffers that a channel keeps.
const SPARES: usize = 64;
/// Outcome of a request whose channel was abandoned.
const CANCELED: Result<(), IoError> = Err(IoError::Storage(Errno::CANCELED));

/// Fixed values of a mapped disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Size of the disk below in bytes, 0 if there is none.
    pub(crate) below: u64,
    /// Whether requests wait for space, or fail.
    pub(crate) waits_for_room: bool,
}

/// Disk that a piece is submitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The file of the image.
    File,
    /// The layer below.
    Below,
}

/// One reactor's channel to a mapped disk.
pub(crate) struct MappedChannel {
    pub(crate) file: Box<dyn Channel>,
    pub(crate) below: Option<Box<dyn Channel>>,
    pub(crate) map: MapChannel,
    pub(crate) limits: Limits,
    container: Arc<FileDisk>,
    service: Arc<dyn Service>,
    mailbox: Arc<Mailbox>,
    pub(crate) counters: Arc<Counters>,
    number: u32,
    port: CompletionPort,
    parents: Slab<Parent>,
    pub(crate) pieces: Slab<Piece>,
    /// Pieces to plan.
    pub(crate) planned: Vec<usize>,
    /// Requests that a child channel handed back.
    refused: Vec<(Target, Request)>,
    is_timer_set: bool,
    is_draining: bool,
    is_abandoned: bool,
    pub(crate) has_asked: bool,
    /// Fills whose next step can begin.
    pub(crate) fills: Vec<usize>,
    ended: Vec<Completion>,
    // Kept for their capacity.
    answers: Vec<Answer>,
    completions: Vec<Completion>,
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
        (file, below): (Box<dyn Channel>, Option<Box<dyn Channel>>),
        (map, number): (MapChannel, u32),
        (service, mailbox, counters): (Arc<dyn Service>, Arc<Mailbox>, Arc<Counters>),
        limits: Limits,
        context: &mut Context<'_>,
    ) -> Self {
        Self {
            file,
            below,
            map,
            limits,
            container,
            service,
            mailbox,
            counters,
            number,
            port: context.open_port(),
            parents: Slab::default(),
            pieces: Slab::default(),
            planned: Vec::new(),
            refused: Vec::new(),
            is_timer_set: false,
            is_draining: false,
            is_abandoned: false,
            has_asked: false,
            fills: Vec::new(),
            ended: Vec::new(),
            answers: Vec::new(),
            completions: Vec::new(),
            op_completions: Vec::new(),
            spares: Vec::new(),
        }
    }

    /// Adds a piece of a request and plans it soon.
    pub(crate) fn add_piece(
        &mut self,
        parent: usize,
        action: Action,
        range: (u64, u64),
        buffers: Buffers,
    ) {
        let index = self.insert_piece(parent, action, range, buffers);
        self.planned.push(index);
    }

    fn insert_piece(
        &mut self,
        parent: usize,
        action: Action,
        (offset, len): (u64, u64),
        buffers: Buffers,
    ) -> usize {
        let (holds, added) = (Few::default(), Few::default());
        let phase = Phase::Planned;
        let (file_offset, is_counted, waits_for_map, claim) = (0, false, false, None);
        let piece = Piece {
            parent,
            action,
            offset,
            len,
            buffers,
            phase,
            waits_for_map,
            holds,
            added,
            file_offset,
            is_counted,
            claim,
        };
        let index = self.pieces.insert(piece);
        if let Some(parent) = self.parents.get(parent) {
            parent.left += 1;
        }
        index
    }

    /// Cuts a piece to its first `len` bytes. The rest becomes a piece of its own, which is planned.
    pub(crate) fn cut(&mut self, index: usize, len: u64) {
        let rest = self.cut_unplanned(index, len);
        self.planned.extend(rest);
    }

    /// Cuts a piece to its first `len` bytes. Returns the rest, if there is one.
    pub(crate) fn cut_unplanned(&mut self, index: usize, len: u64) -> Option<usize> {
        let piece = self.pieces.get(index)?;
        if len >= piece.len {
            return None;
        }
        let spare = self.spares.pop().unwrap_or_default();
        let rest = piece.buffers.split_off(usize::try_from(len).unwrap_or(usize::MAX), spare);
        let (parent, action) = (piece.parent, piece.action);
        let range = (piece.offset + len, piece.len - len);
        piece.len = len;
        Some(self.insert_piece(parent, action, range, rest))
    }

    /// Keeps a list for a later cut. It pins no memory, and there are not many.
    fn keep_spare(&mut self, mut buffers: Buffers) {
        if buffers.capacity() > 0 && self.spares.len() < SPARES {
            buffers.clear();
            self.spares.push(buffers);
        }
    }

    /// Asks the owner for a piece.
    pub(crate) fn ask(&mut self, index: usize, question: QuestionKind) {
        let Some(piece) = self.pieces.get(index) else { return };
        piece.phase = Phase::Asked;
        piece.claim = match &question {
            QuestionKind::Discard(_, claim) => Some(claim.clone()),
            _ => None,
        };
        // A flush waits for the storage.
        piece.waits_for_map = question != QuestionKind::Flush;
        let counts = piece.waits_for_map;
        if let Some(parent) = self.parents.get(piece.parent).filter(|_| counts) {
            parent.waits.get_or_insert_with(|| (Instant::now(), 0)).1 += 1;
        }
        self.map.ask(index as u32, question);
        self.has_asked = true;
    }

    /// Notes that a piece has its answer, or waits for none any more. A request waits as long as one
    /// of its pieces does.
    fn end_map_wait(&mut self, index: usize) {
        let Some(piece) = self.pieces.get(index) else { return };
        if !std::mem::take(&mut piece.waits_for_map) {
            return;
        }
        let Some(parent) = self.parents.get(piece.parent) else { return };
        let Some((since, pieces)) = &mut parent.waits else { return };
        *pieces -= 1;
        if *pieces == 0 {
            self.counters.wait_ns.fetch_add(ns_since(*since), Ordering::Relaxed);
            parent.waits = None;
        }
    }

    /// Submits I/O of a piece.
    pub(crate) fn submit_piece(
        &mut self,
        context: &mut Context<'_>,
        target: Target,
        request: Request,
    ) {
        let channel = match (target, &mut self.below) {
            (Target::Below, Some(below)) => below,
            _ => &mut self.file,
        };
        match channel.submit(context, request) {
            SubmitOutcome::Pending => {}
            SubmitOutcome::Done(completion) => self.on_io(completion),
            SubmitOutcome::Full(request) => self.refused.push((target, request)),
        }
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

    fn plan_flush(&mut self, context: &mut Context<'_>, index: usize) {
        let shared = self.map.shared();
        if shared.is_lost() {
            self.end_piece(index, Err(IoError::Storage(Errno::IO)));
        } else if shared.is_durable() {
            let Some(piece) = self.pieces.get(index) else { return };
            piece.phase = Phase::Submitted;
            let (kind, tag) = (RequestKind::Flush, index as u32);
            let request = Request { kind, offset: 0, len: 0, buffers: Buffers::default(), tag };
            self.submit_piece(context, Target::File, request);
        } else {
            self.ask(index, QuestionKind::Flush);
        }
    }

    /// Ends a piece. The request ends with its last piece.
    pub(crate) fn end_piece(&mut self, index: usize, outcome: Result<(), IoError>) {
        let Some(piece) = self.pieces.remove(index) else { return };
        self.container.end_waits(piece.is_counted.into());
        self.end_part(piece.parent, outcome, piece.buffers);
    }

    /// Ends a piece whose answer is still to come.
    fn end_asked(&mut self, index: usize, outcome: Result<(), IoError>) {
        self.end_map_wait(index);
        let Some(piece) = self.pieces.get(index) else { return };
        piece.phase = Phase::Ended;
        self.container.end_waits(std::mem::take(&mut piece.is_counted).into());
        let (parent, buffers) = (piece.parent, std::mem::take(&mut piece.buffers));
        self.end_part(parent, outcome, buffers);
    }

    fn end_part(&mut self, index: usize, outcome: Result<(), IoError>, buffers: Buffers) {
        let Some(parent) = self.parents.get(index) else { return };
        parent.left -= 1;
        if parent.outcome.is_ok() {
            parent.outcome = outcome;
        }
        let former = std::mem::replace(&mut parent.buffers, buffers);
        self.keep_spare(former);
        let Some(parent) = self.parents.get(index) else { return };
        if parent.left > 0 {
            return;
        }
        if std::mem::take(&mut parent.needs_flush) && parent.outcome.is_ok() && !self.is_abandoned {
            let buffers = std::mem::take(&mut parent.buffers);
            return self.add_piece(index, Action::Flush, (0, 0), buffers);
        }
        if let Some(Parent { tag, outcome, buffers, holds, .. }) = self.parents.remove(index) {
            holds.into_iter().for_each(|hold| self.map.leave(hold));
            self.ended.push(Completion { tag, outcome, buffers });
        }
    }

    /// Makes a request fail when its pieces have ended.
    pub(crate) fn fail_request(&mut self, index: usize, error: IoError) {
        if let Some(parent) = self.parents.get(index).filter(|parent| parent.outcome.is_ok()) {
            parent.outcome = Err(error);
        }
    }

    /// Gives the holds of a piece to its request.
    pub(crate) fn hold_until_end(&mut self, index: usize) {
        let Some(piece) = self.pieces.get(index) else { return };
        let holds = std::mem::take(&mut piece.holds);
        if let Some(parent) = self.parents.get(piece.parent) {
            parent.holds.extend(holds);
        }
    }

    /// Notes that a request must end with a flush.
    pub(crate) fn flush_later(&mut self, index: usize) {
        let Some(parent) = self.pieces.get(index).map(|piece| piece.parent) else { return };
        if let Some(parent) = self.parents.get(parent) {
            parent.needs_flush = true;
        }
    }

    /// Returns whether the outcome of requests does not matter any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Returns whether a piece may wait for space.
    pub(crate) fn may_wait(&self) -> bool {
        self.limits.waits_for_room && !self.is_draining
    }

    /// Lets a piece wait for space, or fails it.
    pub(crate) fn stall(&mut self, index: usize) {
        if !self.may_wait() {
            return self.end_piece(index, Err(IoError::Full));
        }
        if let Some(piece) = self.pieces.get(index) {
            piece.phase = Phase::Stalled;
        }
        self.count_wait(index);
    }

    /// Counts a piece that waits for space until it ends.
    pub(crate) fn count_wait(&mut self, index: usize) {
        if let Some(piece) = self.pieces.get(index)
            && !std::mem::replace(&mut piece.is_counted, true)
        {
            self.container.begin_waits(1);
        }
    }

    /// Tries a piece again that waits for space.
    fn resume(&mut self, context: &mut Context<'_>, index: usize) {
        let Some(piece) = self.pieces.get(index) else { return };
        let Phase::StalledMidway(offset) = piece.phase else { return self.planned.push(index) };
        piece.phase = Phase::Submitted;
        let buffers = std::mem::take(&mut piece.buffers);
        let (kind, len, tag) = (RequestKind::Write { durable: false }, buffers.len(), index as u32);
        let request = Request { kind, offset, len: len as u64, buffers, tag };
        self.submit_piece(context, Target::File, request);
    }

    fn on_answer(&mut self, context: &mut Context<'_>, answer: Answer) {
        let index = answer.tag as usize;
        self.end_map_wait(index);
        let Some(piece) = self.pieces.get(index) else { return };
        match (&piece.phase, answer.kind) {
            (Phase::Ended, AnswerKind::Granted(grant)) => {
                self.map.ask(0, QuestionKind::Failed(grant));
                self.has_asked = true;
                self.pieces.remove(index);
            }
            (Phase::Ended, _) => drop(self.pieces.remove(index)),
            (Phase::Asked, AnswerKind::Look) => {
                let holds = std::mem::take(&mut piece.holds);
                holds.into_iter().for_each(|hold| self.map.leave(hold));
                self.planned.push(index);
            }
            (Phase::Asked, AnswerKind::Granted(grant)) => self.begin_fill(index, grant),
            (Phase::Asked, AnswerKind::Pieces(pieces)) => self.read_pieces(context, index, &pieces),
            (Phase::Describing(_), kind) => self.on_description(index, kind),
            (Phase::Asked, AnswerKind::Done(outcome)) => {
                let holds = std::mem::take(&mut piece.holds);
                holds.into_iter().for_each(|hold| self.map.leave(hold));
                self.on_done(index, outcome.map_err(io_error));
            }
            _ => {}
        }
    }

    /// Handles the answer that a question is done: zeroes or a flush.
    fn on_done(&mut self, index: usize, outcome: Result<(), IoError>) {
        let Some(piece) = self.pieces.get(index) else { return };
        // The kernel reports a failed flush once, perhaps to another channel.
        let is_lost = piece.action == Action::Flush && self.container.handover().1;
        let outcome = if is_lost { Err(IoError::Storage(Errno::IO)) } else { outcome };
        let step = 1 << self.map.shared().map.layout().granule_bits;
        if piece.action == Action::Zero && outcome.is_ok() && piece.len > step {
            piece.offset += step;
            piece.len -= step;
            return self.planned.push(index);
        }
        self.end_piece(index, outcome);
    }

    /// Fails the pieces that wait for space, if the queue drains or must not wait.
    fn fail_waiting(&mut self) {
        if self.may_wait() {
            return;
        }
        let asked = self.is_draining && self.service.waiting() > 0;
        let waits = |piece: &Piece| match piece.phase {
            Phase::Stalled | Phase::StalledMidway(_) => true,
            Phase::Asked => asked && piece.action != Action::Read,
            _ => false,
        };
        for index in self.indices(waits) {
            self.end_waiting(index, Err(IoError::Full));
        }
    }

    /// Ends a piece that has nothing in the kernel.
    fn end_waiting(&mut self, index: usize, outcome: Result<(), IoError>) {
        let Some(piece) = self.pieces.get(index) else { return };
        if matches!(piece.phase, Phase::Asked) {
            // The owner must not zero the granule later, when the guest has written to it again.
            if piece.claim.as_ref().is_some_and(|claim| !claim.take()) {
                // It does so now, and its answer ends the piece.
                return;
            }
            let holds = std::mem::take(&mut piece.holds);
            holds.into_iter().for_each(|hold| self.map.leave(hold));
            return self.end_asked(index, outcome);
        }
        let (holds, added) = (std::mem::take(&mut piece.holds), std::mem::take(&mut piece.added));
        holds.into_iter().for_each(|hold| self.map.leave(hold));
        added.into_iter().for_each(|added| self.map.fail_blocks(added));
        self.end_piece(index, outcome);
    }

    fn indices(&self, with: impl Fn(&Piece) -> bool) -> Vec<usize> {
        self.pieces.iter().filter(|(_, piece)| with(piece)).map(|(index, _)| index).collect()
    }

    fn set_timer(&mut self, context: &mut Context<'_>) {
        if !self.is_timer_set && self.pieces.iter().any(|(_, piece)| piece.is_stalled()) {
            self.is_timer_set = true;
            context.submit(&self.port, IoOp::Timer { after: RETRY }, 0);
        }
    }

    /// Fetches what the children and the owner have to say.
    fn collect(&mut self, context: &mut Context<'_>) {
        let mut completions = std::mem::take(&mut self.completions);
        self.file.reap(context, &mut completions);
        if let Some(below) = &mut self.below {
            below.reap(context, &mut completions);
        }
        for completion in completions.drain(..) {
            self.on_io(completion);
        }
        self.completions = completions;
        let mut answers = std::mem::take(&mut self.answers);
        self.mailbox.take(&mut answers);
        for answer in answers.drain(..) {
            self.on_answer(context, answer);
        }
        self.answers = answers;
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

/// Returns the failure of a request whose question failed.
fn io_error(error: Errno) -> IoError {
    if error == Errno::NOSPC { IoError::Full } else { IoError::Storage(error) }
}

impl Channel for MappedChannel {
    fn submit(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome {
        if self.is_abandoned {
            return SubmitOutcome::Done(request.complete(CANCELED));
        }
        let Request { kind, offset, len, buffers, tag } = request;
        let outcome = Ok(());
        let needs_flush = matches!(kind, RequestKind::WriteZeroes { durable: true, .. });
        let (left, none) = (1, Buffers::default());
        let holds = Vec::new();
        let parent = Parent { tag, left, outcome, buffers: none, holds, needs_flush, waits: None };
        let parent = self.parents.insert(parent);
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

    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        self.collect(context);
        for (target, request) in std::mem::take(&mut self.refused) {
            self.submit_piece(context, target, request);
        }
        self.continue_fills(context);
        self.fail_waiting();
        self.plan_all(context);
        self.set_timer(context);
        out.append(&mut self.ended);
    }

    fn waiting(&self) -> usize {
        let asked = self.service.waiting() > 0;
        let waits = |piece: &Piece| match piece.phase {
            Phase::Stalled | Phase::StalledMidway(_) => true,
            Phase::Asked => asked,
            _ => false,
        };
        let mut waiting: BTreeMap<usize, u32> = BTreeMap::new();
        for (_, piece) in self.pieces.iter().filter(|(_, piece)| waits(piece)) {
            *waiting.entry(piece.parent).or_default() += 1;
        }
        // A request with another piece in the kernel does not wait.
        let all_wait = |at: usize, parent: &Parent| waiting.get(&at) == Some(&parent.left);
        self.parents.iter().filter(|(at, parent)| all_wait(*at, parent)).count()
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {
        self.is_draining = true;
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
            _ => None,
        });
        // A late write may land in their clusters.
        let asked = fills.map(|grant| self.map.ask(0, QuestionKind::Failed(grant))).count();
        for claim in self.pieces.iter().filter_map(|(_, piece)| piece.claim.as_ref()) {
            claim.take();
        }
        let counted = self.pieces.iter().filter(|(_, piece)| piece.is_counted).count();
        self.container.end_waits(counted as u64);
        Arc::clone(&self.service).close_channel(self.number);
        if asked > 0 {
            // Requests of other channels may wait for the granules of the grants.
            Arc::clone(&self.service).notify();
        }
    }
}

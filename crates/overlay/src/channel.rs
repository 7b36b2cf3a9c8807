//! One reactor's channel to an overlay.

mod fill;
mod read;
mod waiting;
mod write;
mod zero;

use std::collections::VecDeque;
use std::sync::Arc;

use ::disk::{Channel, Child, Completion, IoError, Request, RequestKind, SubmitOutcome};
use ::memory::{Buffers, ThreadMapping};
use image::map::{EpochSlot, Hold};
use reactor::{CompletionPort, Context, OpCompletion, Slab};
use rustix::io::Errno;

use crate::pool::BATCH;
use crate::shared::Shared;
use crate::waker::ChannelWaker;
use crate::word::Word;

/// Outcome of a request whose channel was abandoned.
const CANCELED: Result<(), IoError> = Err(IoError::Storage(Errno::CANCELED));

/// Disk that a piece is submitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Base,
    Overflow,
}

/// Request of the guest, while parts of it run.
#[derive(Debug)]
struct Parent {
    tag: u32,
    /// Parts that have not ended.
    left: u32,
    /// First failure of a part.
    outcome: Result<(), IoError>,
    /// Buffers that go back with the completion.
    buffers: Buffers,
    /// Epoch that a read holds until its look at the map and its reads of the overflow file have ended.
    hold: Option<Hold>,
    /// Number of these.
    holders: u32,
}

/// Part of a request that another disk has.
#[derive(Debug)]
enum Piece {
    Read { parent: u32, target: Target },
    Fill(Fill),
}

/// Write of a part of a granule whose rest is read first.
#[derive(Debug)]
struct Fill {
    parent: u32,
    /// First byte on the disk, and number of bytes.
    offset: u64,
    len: u64,
    /// Data of the guest. `None` for zeroes.
    data: Option<Buffers>,
    room: Room,
    /// Word that the slot replaces.
    old: Word,
    /// `None` for a read of the base, which does not change and whose source may be gone for long.
    hold: Option<Hold>,
}

/// Memory that a granule is read to, for a write of a part of it.
#[derive(Debug)]
enum Room {
    /// A slot. It counts in [`Shared::base_fills`] if the granule is read from the base.
    Slot(u32),
    /// Memory beside the slots.
    Own(ThreadMapping),
}

/// Write that waits for slots.
#[derive(Debug)]
struct WaitingWrite {
    parent: u32,
    offset: u64,
    len: u64,
    /// `None` for zeroes.
    data: Option<Buffers>,
    /// True if it counts as waiting for space on the storage.
    is_counted: bool,
}

/// One reactor's channel to an overlay.
pub(crate) struct OverlayChannel {
    shared: Arc<Shared>,
    /// Size of the disk in bytes.
    size: u64,
    memory: ThreadMapping,
    base: Child,
    overflow: Option<Child>,
    epochs: EpochSlot,
    waker: Arc<ChannelWaker>,
    port: CompletionPort,
    /// Slots for the next writes.
    stock: Vec<u32>,
    /// What the last writes have replaced.
    retired: Vec<Word>,
    parents: Slab<Parent>,
    pieces: Slab<Piece>,
    /// Requests that a child channel handed back.
    refused: Vec<(Target, Request)>,
    waiting: VecDeque<WaitingWrite>,
    ended: Vec<Completion>,
    is_timer_set: bool,
    /// False if writes that find no space fail.
    waits_for_room: bool,
    is_draining: bool,
    is_abandoned: bool,
    // Kept for their capacity.
    done: Vec<Completion>,
    timers: Vec<OpCompletion>,
}

impl OverlayChannel {
    pub(crate) fn new(
        shared: Arc<Shared>,
        size: u64,
        (base, overflow): (Child, Option<Child>),
        waits_for_room: bool,
        context: &mut Context<'_>,
    ) -> Self {
        Self {
            size,
            memory: ThreadMapping::over(Arc::clone(shared.memory.mapping())),
            base,
            overflow,
            epochs: shared.epochs.open_slot(),
            waker: ChannelWaker::new(context),
            port: context.open_port(),
            stock: Vec::with_capacity(2 * BATCH as usize),
            retired: Vec::with_capacity(4 * BATCH as usize),
            parents: Slab::default(),
            pieces: Slab::default(),
            refused: Vec::new(),
            waiting: VecDeque::new(),
            ended: Vec::new(),
            is_timer_set: false,
            waits_for_room,
            is_draining: false,
            is_abandoned: false,
            done: Vec::new(),
            timers: Vec::new(),
            shared,
        }
    }

    /// Leaves an epoch. Writes of all channels may wait for what it has kept.
    #[inline]
    fn leave(&mut self, hold: Hold) {
        self.epochs.leave(hold);
        if self.shared.has_waiting() {
            self.shared.retire(&mut self.retired);
        }
    }

    fn child(&mut self, target: Target) -> Option<&mut Child> {
        match target {
            Target::Base => Some(&mut self.base),
            Target::Overflow => self.overflow.as_mut(),
        }
    }

    /// Submits I/O of a piece.
    fn submit_piece(&mut self, context: &mut Context<'_>, target: Target, request: Request) {
        let Some(child) = self.child(target) else {
            // A word named a place, and there is no overflow file: the map is damaged.
            let completion = request.complete(Err(IoError::Storage(Errno::IO)));
            return self.on_io(context, completion);
        };
        match child.submit(context, request) {
            SubmitOutcome::Pending => {}
            SubmitOutcome::Done(completion) => self.on_io(context, completion),
            SubmitOutcome::Full(request) => self.refused.push((target, request)),
        }
    }

    fn on_io(&mut self, context: &mut Context<'_>, completion: Completion) {
        let Completion { tag, outcome, buffers } = completion;
        match self.pieces.remove(tag) {
            Some(Piece::Read { parent, target }) => {
                if target == Target::Overflow {
                    self.end_hold(parent);
                }
                self.end_part(parent, outcome, buffers);
            }
            Some(Piece::Fill(fill)) => self.end_fill(context, fill, outcome),
            None => {}
        }
    }

    fn new_parent(&mut self, tag: u32) -> u32 {
        let (outcome, buffers, hold, holders) = (Ok(()), Buffers::default(), None, 0);
        self.parents.insert(Parent { tag, left: 1, outcome, buffers, hold, holders })
    }

    /// Ends what holds the epoch of a read. The last one leaves it.
    fn end_hold(&mut self, parent: u32) {
        let Some(parent) = self.parents.get_mut(parent) else { return };
        parent.holders -= 1;
        if parent.holders == 0
            && let Some(hold) = parent.hold.take()
        {
            self.leave(hold);
        }
    }

    fn add_part(&mut self, parent: u32) {
        if let Some(parent) = self.parents.get_mut(parent) {
            parent.left += 1;
        }
    }

    /// Ends a part. The request ends with its last part.
    fn end_part(&mut self, index: u32, outcome: Result<(), IoError>, buffers: Buffers) {
        let Some(parent) = self.parents.get_mut(index) else { return };
        parent.left -= 1;
        if parent.outcome.is_ok() {
            parent.outcome = outcome;
        }
        if buffers.capacity() > parent.buffers.capacity() {
            parent.buffers = buffers;
        }
        if parent.left > 0 {
            return;
        }
        if let Some(Parent { tag, outcome, buffers, .. }) = self.parents.remove(index) {
            self.ended.push(Completion { tag, outcome, buffers });
        }
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
}

impl Channel for OverlayChannel {
    fn submit(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome {
        if self.is_abandoned {
            return SubmitOutcome::Done(request.complete(CANCELED));
        }
        let end = request.offset.checked_add(request.len);
        if request.kind != RequestKind::Flush && end.is_none_or(|end| end > self.size) {
            return SubmitOutcome::Done(request.complete(Err(IoError::Range)));
        }
        match request.kind {
            RequestKind::Read => self.submit_read(context, request),
            RequestKind::Write { .. } => self.submit_write(context, request),
            // Nothing outlives the host, so nothing can be made durable.
            RequestKind::Flush => SubmitOutcome::Done(request.complete(Ok(()))),
            RequestKind::Discard => self.submit_zeroes(context, request, false),
            RequestKind::WriteZeroes { .. } => self.submit_zeroes(context, request, true),
        }
    }

    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        let mut done = std::mem::take(&mut self.done);
        self.base.reap(context, &mut done);
        if let Some(overflow) = &mut self.overflow {
            overflow.reap(context, &mut done);
        }
        for completion in done.drain(..) {
            self.on_io(context, completion);
        }
        self.done = done;
        if !self.refused.is_empty() {
            for (target, request) in std::mem::take(&mut self.refused) {
                self.submit_piece(context, target, request);
            }
        }
        if !self.waiting.is_empty() {
            self.retry_waiting(context);
        }
        out.append(&mut self.ended);
    }

    fn waiting(&self) -> usize {
        let below = self.base.waiting();
        let left = self.parents.iter().map(|(_, parent)| parent.left as usize).sum::<usize>();
        let here = if self.shared.is_full() { self.waiting.len() } else { 0 };
        match below > 0 && below + here == left {
            // Each part waits: here for space, or below for the source of the base.
            true => self.parents.iter().count(),
            false => self.count_waiting(),
        }
    }

    fn fail_stalled(&mut self, context: &mut Context<'_>) {
        self.is_draining = true;
        self.base.fail_stalled(context);
        self.fail_waiting();
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
        self.base.abandon();
        if let Some(overflow) = &mut self.overflow {
            overflow.abandon();
        }
        self.end_all_waiting(CANCELED);
    }
}

impl Drop for OverlayChannel {
    fn drop(&mut self) {
        while self.next_waiting().is_some() {}
        // Slots that are being filled stay taken: late reads may land in them. Their epoch stays
        // shown, too.
        self.shared.return_stock(&mut self.stock, &mut self.retired);
    }
}

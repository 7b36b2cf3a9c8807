//! Dispatch queue of one reactor for one storage, and the channels that use it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use memory::Mapping;
use reactor::{Context, PollerId, Slab};
use share::{DiskId, Dispatch, DispatchQueue, Op, Permit, ReactorId, Share, Submitted};

use super::{Storage, StorageDisk};

/// Shortest time of a timer, in nanoseconds.
const SHORTEST_NS: u64 = 1000;

thread_local! {
    /// Dispatch queues of this reactor.
    static QUEUES: RefCell<Vec<Weak<ReactorQueue>>> = const { RefCell::new(Vec::new()) };
}

/// Place of a held request: its channel, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    channel: u32,
    request: u32,
}

/// Part of a request that goes to the storage now.
#[derive(Debug)]
pub(crate) struct Dispatched {
    /// Number of the request in its channel.
    pub(crate) request: u32,
    /// Right to send it.
    pub(crate) permit: Permit,
    /// Bytes of the part.
    pub(crate) bytes: u64,
    /// True if no part follows.
    pub(crate) is_last: bool,
}

/// Channel that uses the queue.
#[derive(Debug)]
struct Member {
    poller: Option<PollerId>,
    dispatched: Vec<Dispatched>,
    /// Number of its requests that the queue refused.
    refused: usize,
    needs_look: Rc<Cell<bool>>,
}

impl Member {
    /// Makes the channel look.
    fn wake(&self, context: &mut Context<'_>) {
        self.needs_look.set(true);
        self.poller.into_iter().for_each(|poller| context.wake(poller));
    }
}

#[derive(Debug)]
struct ReactorQueue {
    reactor: ReactorId,
    /// It goes before the storage, because another process may then get this process' slots.
    inner: RefCell<Inner>,
    storage: Arc<Storage>,
}

#[derive(Debug)]
struct Inner {
    queue: DispatchQueue<Mapping, Ticket>,
    members: Slab<Member>,
    /// Channel whose timer makes the reactor look again.
    timer: Option<u32>,
}

impl ReactorQueue {
    /// Returns the queue of this reactor. `None` if the storage has too many reactors.
    fn open(storage: &Arc<Storage>, context: &Context<'_>) -> Option<Rc<Self>> {
        if let Some(present) = Self::find(storage) {
            return Some(present);
        }
        let queue = DispatchQueue::open(&storage.share).ok()?;
        let reactor = queue.reactor();
        storage.reactors().push((reactor, context.handle()));
        let inner = RefCell::new(Inner { queue, members: Slab::default(), timer: None });
        let opened = Rc::new(Self { storage: Arc::clone(storage), reactor, inner });
        QUEUES.with_borrow_mut(|queues| {
            queues.retain(|queue| queue.strong_count() > 0);
            queues.push(Rc::downgrade(&opened));
        });
        Some(opened)
    }

    fn find(storage: &Arc<Storage>) -> Option<Rc<Self>> {
        QUEUES.with_borrow(|queues| {
            let mut present = queues.iter().filter_map(Weak::upgrade);
            present.find(|queue| Arc::ptr_eq(&queue.storage, storage))
        })
    }

    /// Makes all channels look, because the profile has changed.
    fn wake_all(&self, context: &mut Context<'_>) {
        for (_, member) in self.inner.borrow().members.iter() {
            member.wake(context);
        }
    }

    /// Hands requests to their channels whose turn has come, and wakes other reactors. Channels other
    /// than `own` are woken.
    fn dispatch(&self, context: &mut Context<'_>, own: Option<u32>) {
        let now = context.now_ns();
        let inner = &mut *self.inner.borrow_mut();
        while let Some(Dispatch { permit, disk, key, bytes, last, .. }) = inner.queue.next(now) {
            let Some(member) = inner.members.get_mut(key.channel) else {
                // A channel cancels its requests before it goes.
                inner.queue.complete(permit, now);
                continue;
            };
            let part = Dispatched { request: key.request, permit, bytes, is_last: last };
            member.dispatched.push(part);
            member.needs_look.set(true);
            if Some(key.channel) != own {
                member.wake(context);
            }
            // The channel submits its next request first, and goes on here. Otherwise a device that
            // completes several requests at once would go to disks that it is not the turn of.
            if last && member.refused > 0 && !inner.queue.holds(disk) {
                break;
            }
        }
        while let Some(reactor) = inner.queue.take_kick() {
            self.storage.kick(reactor);
        }
        if inner.queue.take_window() {
            self.storage.release_ended();
        }
    }
}

impl Drop for ReactorQueue {
    fn drop(&mut self) {
        let reactor = self.reactor;
        self.storage.reactors().retain(|(id, _)| *id != reactor);
    }
}

/// Makes all channels of this reactor look.
pub(super) fn look_all(storage: &Arc<Storage>, context: &mut Context<'_>) {
    if let Some(queue) = ReactorQueue::find(storage) {
        queue.wake_all(context);
    }
}

/// Looks whether the turn of held requests has come.
pub(super) fn look(storage: &Arc<Storage>, context: &mut Context<'_>) {
    let Some(queue) = ReactorQueue::find(storage) else { return };
    queue.dispatch(context, None);
    let inner = queue.inner.borrow();
    if inner.timer.is_none() && inner.queue.is_holding() {
        // It sets a timer.
        if let Some((_, first)) = inner.members.iter().next() {
            first.wake(context);
        }
    }
}

/// Membership of one channel in the dispatch queue of its reactor.
#[derive(Debug)]
pub(crate) struct Membership {
    share: Arc<Share<Mapping>>,
    /// Mark of the disk while no other disk uses the storage.
    mark: u64,
    disk_id: DiskId,
    /// Whether requests of the channel may have their turn.
    needs_look: Rc<Cell<bool>>,
    channel: u32,
    queue: Rc<ReactorQueue>,
    /// The disk stays on the storage as long as the channel.
    disk: Arc<StorageDisk>,
}

impl Membership {
    /// Enters a channel of the poller that is being made or called. `None` if the storage has too many
    /// reactors: the channel then sends what it likes.
    pub(crate) fn enter(disk: &Arc<StorageDisk>, context: &Context<'_>) -> Option<Self> {
        let queue = ReactorQueue::open(&disk.storage, context)?;
        let needs_look = Rc::new(Cell::new(false));
        let member = Member {
            poller: context.poller(),
            dispatched: Vec::new(),
            refused: 0,
            needs_look: Rc::clone(&needs_look),
        };
        let channel = queue.inner.borrow_mut().members.insert(member);
        let share = Arc::clone(&disk.storage.share);
        let disk = Arc::clone(disk);
        let (mark, disk_id) = (disk.id.mark(), disk.id);
        Some(Self { share, mark, disk_id, needs_look, channel, queue, disk })
    }

    /// Returns whether no other disk uses the storage.
    #[inline]
    pub(crate) fn is_sole(&self) -> bool {
        self.share.sole() == self.mark
    }

    /// Returns the size of the largest request in bytes that needs no scheduler then.
    pub(crate) fn pass_bytes(&self) -> u64 {
        self.queue.inner.borrow_mut().queue.pass_bytes()
    }

    /// Notes that a request waits because the queue refused it. The channel has others there, and looks
    /// when they go.
    pub(crate) fn begin_refused(&self) {
        self.disk.begin_refused();
        self.count_refused(|refused| refused + 1);
    }

    /// Notes the end of such a wait after `ns` nanoseconds.
    pub(crate) fn end_refused(&self, ns: u64) {
        self.disk.end_refused(ns);
        self.count_refused(|refused| refused.saturating_sub(1));
    }

    fn count_refused(&self, change: impl FnOnce(usize) -> usize) {
        if let Some(member) = self.queue.inner.borrow_mut().members.get_mut(self.channel) {
            member.refused = change(member.refused);
        }
    }

    /// Returns whether requests of the channel may have their turn.
    #[inline]
    pub(crate) fn needs_look(&self) -> bool {
        self.needs_look.get()
    }

    /// Submits an operation. `request` is its number in the channel, by which it comes back if it is
    /// held.
    pub(crate) fn submit(&self, context: &mut Context<'_>, op: Op, request: u32) -> Submitted {
        let now = context.now_ns();
        let ticket = Ticket { channel: self.channel, request };
        self.queue.inner.borrow_mut().queue.submit(self.disk_id, op, ticket, now)
    }

    /// Returns a permit after its operation, which may have failed.
    pub(crate) fn complete(&self, context: &mut Context<'_>, permit: Permit, failed: bool) {
        let now = context.now_ns();
        let queue = &mut self.queue.inner.borrow_mut().queue;
        if failed {
            queue.fail(permit, now)
        } else {
            queue.complete(permit, now)
        }
        self.needs_look.set(true);
    }

    /// Returns a permit whose operation nobody waits for any more.
    pub(crate) fn release(&self, permit: Permit) {
        // Without a time of its end: the latency of the storage is not that of a channel that goes.
        self.queue.inner.borrow_mut().queue.complete(permit, 0);
    }

    /// Hands requests to their channels whose turn has come. Moves those of this channel into `out`.
    pub(crate) fn dispatch(&self, context: &mut Context<'_>, out: &mut Vec<Dispatched>) {
        self.queue.dispatch(context, Some(self.channel));
        self.needs_look.set(false);
        if let Some(member) = self.queue.inner.borrow_mut().members.get_mut(self.channel) {
            out.append(&mut member.dispatched);
        }
    }

    /// Returns the time until requests that are held must be looked at, if this channel is to set a
    /// timer for it. [`Self::end_timer`] follows.
    pub(crate) fn begin_timer(&self, context: &mut Context<'_>) -> Option<Duration> {
        let now = context.now_ns();
        let inner = &mut *self.queue.inner.borrow_mut();
        if inner.timer.is_some() || !inner.queue.is_holding() {
            return None;
        }
        let deadline = inner.queue.deadline()?;
        inner.timer = Some(self.channel);
        Some(Duration::from_nanos(deadline.saturating_sub(now).max(SHORTEST_NS)))
    }

    /// Notes that the timer has ended.
    pub(crate) fn end_timer(&self) {
        self.queue.inner.borrow_mut().timer = None;
        self.needs_look.set(true);
    }

    /// Takes back all requests of the channel that are held.
    pub(crate) fn cancel(&self) {
        let channel = self.channel;
        let queue = &mut self.queue.inner.borrow_mut().queue;
        queue.cancel(self.disk_id, |ticket| ticket.channel == channel);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.cancel();
        let storage = Arc::clone(&self.queue.storage);
        let inner = &mut *self.queue.inner.borrow_mut();
        if inner.timer == Some(self.channel) {
            inner.timer = None;
            // Others may wait for it.
            storage.kick(self.queue.reactor);
        }
        let member = inner.members.remove(self.channel);
        // Its operations never began.
        for part in member.into_iter().flat_map(|member| member.dispatched) {
            inner.queue.complete(part.permit, 0);
        }
    }
}

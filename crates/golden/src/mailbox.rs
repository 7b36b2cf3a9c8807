//! Blocks for one channel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::disk::IoError;
use reactor::{Context, Handle, PollerId};

/// Data of a block.
pub(crate) type Block = Arc<Vec<u8>>;

/// Inbox of one channel.
#[derive(Debug)]
pub(crate) struct Mailbox {
    poller: Option<(Handle, PollerId)>,
    inbox: Mutex<Vec<(u32, Result<Block, IoError>)>>,
    /// Whether the channel's poller will run without another wake-up.
    is_notified: AtomicBool,
    is_closed: AtomicBool,
}

impl Mailbox {
    /// Creates the mailbox of a channel of the poller that is being made or called.
    pub(crate) fn new(context: &Context<'_>) -> Arc<Self> {
        let poller = context.poller().map(|poller| (context.handle(), poller));
        let (inbox, is_notified, is_closed) = Default::default();
        Arc::new(Self { poller, inbox, is_notified, is_closed })
    }

    /// Creates a mailbox for the same poller, and notes that this one is not used any more.
    pub(crate) fn replace(&self) -> Arc<Self> {
        self.close();
        let (inbox, is_notified, is_closed) = Default::default();
        Arc::new(Self { poller: self.poller.clone(), inbox, is_notified, is_closed })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u32, Result<Block, IoError>)>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the outcome of a flight to a piece of a request.
    pub(crate) fn deliver(&self, piece: u32, outcome: Result<Block, IoError>) {
        self.lock().push((piece, outcome));
        self.wake();
    }

    /// Makes the channel's poller run. A reactor that has ended needs no wake-up.
    pub(crate) fn wake(&self) {
        if self.is_notified.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some((reactor, poller)) = &self.poller {
            let poller = *poller;
            let _ = reactor.send(move |context| context.wake(poller));
        }
    }

    /// Returns whether [`Self::wake`] was called since the last [`Self::take`].
    pub(crate) fn is_notified(&self) -> bool {
        self.is_notified.load(Ordering::Acquire)
    }

    /// Moves the outcomes into `out`, which is empty.
    pub(crate) fn take(&self, out: &mut Vec<(u32, Result<Block, IoError>)>) {
        let mut inbox = self.lock();
        std::mem::swap(&mut *inbox, out);
        // Under the lock: an outcome that comes later finds it false, and wakes the poller.
        self.is_notified.store(false, Ordering::Release);
    }

    /// Notes that the channel is gone.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Returns whether the channel is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

//! Blocks for one channel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::disk::IoError;
use reactor::{Context, Handle, PollerId};

/// Data of a block.
pub(crate) type Block = Arc<Vec<u8>>;

/// Outcomes by piece.
type Outcomes = Vec<(u32, Result<Block, IoError>)>;

/// Inbox of one channel, or of a thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    poller: Option<(Handle, PollerId)>,
    inbox: Mutex<Outcomes>,
    /// Notified when the inbox gets an outcome.
    arrival: Condvar,
    /// Whether the channel's poller will run without another wake-up.
    is_notified: AtomicBool,
    is_closed: AtomicBool,
}

impl Mailbox {
    fn of(poller: Option<(Handle, PollerId)>) -> Arc<Self> {
        let (inbox, arrival, is_notified, is_closed) = Default::default();
        Arc::new(Self { poller, inbox, arrival, is_notified, is_closed })
    }

    /// Creates the mailbox of a thread, which calls [`Self::wait`].
    pub(crate) fn of_thread() -> Arc<Self> {
        Self::of(None)
    }

    /// Creates the mailbox of a channel of the poller that is being made or called.
    pub(crate) fn new(context: &Context<'_>) -> Arc<Self> {
        Self::of(context.poller().map(|poller| (context.handle(), poller)))
    }

    /// Creates a mailbox for the same poller, and notes that this one is not used any more.
    pub(crate) fn replace(&self) -> Arc<Self> {
        self.close();
        Self::of(self.poller.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Outcomes> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the outcome of a flight to a piece of a request.
    pub(crate) fn deliver(&self, piece: u32, outcome: Result<Block, IoError>) {
        self.lock().push((piece, outcome));
        self.arrival.notify_one();
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
    pub(crate) fn take(&self, out: &mut Outcomes) {
        let mut inbox = self.lock();
        std::mem::swap(&mut *inbox, out);
        // Under the lock: an outcome that comes later finds it false, and wakes the poller.
        self.is_notified.store(false, Ordering::Release);
    }

    /// Returns the outcomes since the last call. Waits for one, at most for this time.
    pub(crate) fn wait(&self, most: Duration) -> Outcomes {
        let waited = self.arrival.wait_timeout_while(self.lock(), most, |inbox| inbox.is_empty());
        std::mem::take(&mut waited.unwrap_or_else(PoisonError::into_inner).0)
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

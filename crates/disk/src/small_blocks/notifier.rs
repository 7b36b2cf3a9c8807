//! Messages to a channel from requests of other channels.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reactor::{Context, Handle, PollerId};

/// Wakes the poller of one channel.
#[derive(Debug)]
pub(super) struct ChannelNotifier {
    reactor: Handle,
    poller: Option<PollerId>,
    inbox: Mutex<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    /// Slot and ticket number of requests that may begin.
    granted: Vec<(u32, u64)>,
    /// Whether the channel will empty the inbox without another wake-up.
    notified: bool,
}

impl ChannelNotifier {
    /// Creates the notifier of a channel of the poller that is being made or called.
    pub(super) fn new(context: &Context<'_>) -> Arc<Self> {
        let (reactor, poller) = (context.handle(), context.poller());
        Arc::new(Self { reactor, poller, inbox: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a grant, if there is one. Returns whether the caller must [wake](Self::wake) the
    /// channel.
    pub(super) fn put(&self, granted: Option<(u32, u64)>) -> bool {
        let mut inbox = self.lock();
        inbox.granted.extend(granted);
        !std::mem::replace(&mut inbox.notified, true)
    }

    /// Makes the channel's poller run. A reactor that has ended needs no wake-up.
    pub(super) fn wake(&self) {
        if let Some(poller) = self.poller {
            let _ = self.reactor.send(move |context| context.wake(poller));
        }
    }

    /// Reports that the channel runs and empties the inbox before it ends.
    pub(super) fn begin(&self) {
        self.lock().notified = true;
    }

    /// Moves the grants into `out`, which is empty. Returns false if there are none; the next
    /// message wakes the channel then.
    pub(super) fn take(&self, out: &mut Vec<(u32, u64)>) -> bool {
        let mut inbox = self.lock();
        std::mem::swap(&mut inbox.granted, out);
        inbox.notified = !out.is_empty();
        inbox.notified
    }
}

//! Wake-ups of a channel by other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reactor::{Context, Handle, PollerId};

/// Makes the poller of one channel run.
#[derive(Debug)]
pub(crate) struct ChannelWaker {
    reactor: Handle,
    poller: Option<PollerId>,
    /// Whether the poller will run without another wake-up.
    is_woken: AtomicBool,
}

impl ChannelWaker {
    /// Creates the waker of a channel of the poller that is being made or called.
    pub(crate) fn new(context: &Context<'_>) -> Arc<Self> {
        let (reactor, poller) = (context.handle(), context.poller());
        Arc::new(Self { reactor, poller, is_woken: AtomicBool::new(false) })
    }

    /// Makes the poller run. A reactor that has ended needs no wake-up.
    pub(crate) fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel)
            && let Some(poller) = self.poller
        {
            let _ = self.reactor.send(move |context| context.wake(poller));
        }
    }

    /// Returns whether there was a wake-up since the last call.
    pub(crate) fn take(&self) -> bool {
        self.is_woken.load(Ordering::Relaxed) && self.is_woken.swap(false, Ordering::AcqRel)
    }
}

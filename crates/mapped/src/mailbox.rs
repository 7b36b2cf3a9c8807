//! Answers of an owner to one channel, or to a thread that may wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use image::shared::{Answer, AnswerKind};
use reactor::{Context, Handle, PollerId};

/// Inbox of one channel, or of a thread that waits.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// Poller of the channel.
    poller: Option<(Handle, PollerId)>,
    inbox: Mutex<Inbox>,
    /// Notified when an answer is there, or when none will come.
    bell: Condvar,
    /// Whether the channel's poller will run without another wake-up. If not, there is no answer.
    is_notified: AtomicBool,
}

#[derive(Debug, Default)]
struct Inbox {
    answers: Vec<Answer>,
    /// True once the channel is gone.
    is_closed: bool,
}

impl Mailbox {
    /// Creates the mailbox of a channel of the poller that is being made or called.
    /// [`Mailbox::default`] is one of a thread.
    pub(crate) fn new(context: &Context<'_>) -> Arc<Self> {
        let poller = context.poller().map(|poller| (context.handle(), poller));
        Arc::new(Self { poller, ..Self::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers an answer.
    ///
    /// # Errors
    /// The answer, if the channel is gone.
    pub(crate) fn deliver(&self, answer: Answer) -> Result<(), Answer> {
        let mut inbox = self.lock();
        if inbox.is_closed {
            return Err(answer);
        }
        inbox.answers.push(answer);
        // A bell is a system call. Only a thread waits for it: `wake` makes a poller run.
        if self.poller.is_none() {
            self.bell.notify_all();
        }
        Ok(())
    }

    /// Waits for an answer. `None` if none will come.
    pub(crate) fn wait(&self) -> Option<Answer> {
        let is_empty = |inbox: &mut Inbox| inbox.answers.is_empty() && !inbox.is_closed;
        let waited = self.bell.wait_while(self.lock(), is_empty);
        waited.unwrap_or_else(PoisonError::into_inner).answers.pop()
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

    /// Returns whether there may be answers to [`Self::take`].
    #[inline]
    pub(crate) fn has_answers(&self) -> bool {
        self.is_notified.load(Ordering::Acquire)
    }

    /// Moves the answers into `out`, which is empty.
    pub(crate) fn take(&self, out: &mut Vec<Answer>) {
        let mut inbox = self.lock();
        std::mem::swap(&mut inbox.answers, out);
        // Under the lock: an answer that comes later finds it false, and wakes the poller.
        self.is_notified.store(false, Ordering::Release);
    }

    /// Refuses later answers. Returns those that the channel has not taken.
    pub(crate) fn close(&self) -> Vec<Answer> {
        let mut inbox = self.lock();
        inbox.is_closed = true;
        self.bell.notify_all();
        std::mem::take(&mut inbox.answers)
    }
}

/// Returns the grant of an answer that no channel takes.
pub(crate) fn unclaimed(answer: &Answer) -> Option<image::shared::Grant> {
    match answer.kind {
        AnswerKind::Granted(grant) => Some(grant),
        _ => None,
    }
}

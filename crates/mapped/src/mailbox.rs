//! Answers of an owner to one channel.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use image::shared::{Answer, AnswerKind};
use reactor::{Context, Handle, PollerId};

/// Inbox of one channel.
#[derive(Debug)]
pub(crate) struct Mailbox {
    reactor: Handle,
    poller: Option<PollerId>,
    inbox: Mutex<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    answers: Vec<Answer>,
    /// Whether the channel's poller will run without another wake-up.
    is_notified: bool,
    /// True once the channel is gone.
    is_closed: bool,
}

impl Mailbox {
    /// Creates the mailbox of a channel of the poller that is being made or called.
    pub(crate) fn new(context: &Context<'_>) -> Arc<Self> {
        let (reactor, poller) = (context.handle(), context.poller());
        Arc::new(Self { reactor, poller, inbox: Mutex::default() })
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
        Ok(())
    }

    /// Makes the channel's poller run. A reactor that has ended needs no wake-up.
    pub(crate) fn wake(&self) {
        if std::mem::replace(&mut self.lock().is_notified, true) {
            return;
        }
        if let Some(poller) = self.poller {
            let _ = self.reactor.send(move |context| context.wake(poller));
        }
    }

    /// Moves the answers into `out`, which is empty.
    pub(crate) fn take(&self, out: &mut Vec<Answer>) {
        let mut inbox = self.lock();
        std::mem::swap(&mut inbox.answers, out);
        inbox.is_notified = false;
    }

    /// Refuses later answers. Returns those that the channel has not taken.
    pub(crate) fn close(&self) -> Vec<Answer> {
        let mut inbox = self.lock();
        inbox.is_closed = true;
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

//! Owner of an image, as channels and disks see it.

#[cfg(test)]
mod tests;
mod thread;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use disk::FileDisk;
use image::format::Format;
use image::owner::{Owner, OwnerCounts, Round};
use image::shared::{AnswerKind, Question, QuestionKind, Shared};
use image::{ImageError, run_now};

use crate::counters::Counters;
use crate::mailbox::{Mailbox, unclaimed};
use crate::mailboxes::{Mailboxes, Registered};
use crate::threads::OWNERS;

/// Owner of an image, as channels see it.
pub(crate) trait Service: Send + Sync + fmt::Debug {
    /// Returns the shared state of the map.
    fn shared(&self) -> &Arc<Shared>;

    /// Makes the owner read its questions.
    fn notify(self: Arc<Self>);

    /// Returns the number of questions that wait for space on the storage.
    fn waiting(&self) -> u64;

    /// Registers a channel that writes. Returns its number and its ring of the journal. `None` if
    /// all rings are in use.
    fn open_channel(&self, mailbox: Arc<Mailbox>) -> Option<(u32, u32)>;

    /// Registers a thread that only asks. Returns its number. `None` if the service has stopped.
    fn open_asker(&self, mailbox: Arc<Mailbox>) -> Option<u32>;

    /// Removes a channel or an asker.
    fn close_channel(self: Arc<Self>, channel: u32);

    /// Makes everything that is committed durable. Channels may be in use.
    ///
    /// # Errors
    /// Storage failed, now or before.
    fn sync(self: Arc<Self>) -> Result<(), ImageError>;

    /// Lets questions wait from now on. Does not wait.
    fn begin_pause(&self);

    /// Waits until no thread has the owner, after [`Self::begin_pause`]. Nothing is flushed.
    fn pause(self: Arc<Self>);

    /// Answers questions again.
    fn resume(self: Arc<Self>);

    /// Makes everything durable, and ends the owner for good. The channels are closed.
    ///
    /// # Errors
    /// Storage failed, now or before.
    fn stop(&self) -> Result<(), ImageError>;
}

/// Options of an [`OwnerService`].
#[derive(Debug)]
pub(crate) struct ServiceOptions {
    /// File of the image, which counts the requests that wait for space.
    pub(crate) file: Arc<FileDisk>,
    /// Most channels that write, at a time.
    pub(crate) rings: u32,
    /// Whether requests wait for space, or fail.
    pub(crate) waits_for_room: bool,
    /// Counters of the layer.
    pub(crate) counters: Arc<Counters>,
}

/// Owner on a thread that runs while there are questions.
pub(crate) struct OwnerService<F: Format> {
    shared: Arc<Shared>,
    state: Mutex<State<F>>,
    bell: Condvar,
    mailboxes: Mutex<Mailboxes>,
    waiting: AtomicU64,
    options: ServiceOptions,
    /// This service, to start a thread.
    me: Weak<Self>,
}

struct State<F: Format> {
    /// The owner, while no thread has it.
    owner: Option<Box<Owner<F>>>,
    has_questions: bool,
    /// True while the owner waits for a thread.
    is_queued: bool,
    /// True while the thread waits and no question has rung the bell.
    is_asleep: bool,
    /// True while the thread has had no questions for some time.
    is_silent: bool,
    /// True while a caller waits for the owner.
    is_stopping: bool,
    /// True while questions wait.
    is_paused: bool,
    /// True once the disk is closed: nothing may change any more.
    is_closed: bool,
    /// Counts of the owner that are published.
    published: OwnerCounts,
    /// True from the begin of a round to its end. The owner may be free meanwhile.
    is_in_round: bool,
    /// The round, while its next step is the owner's.
    round: Option<Round<F::File>>,
}

impl<F: Format> State<F> {
    fn new(owner: Owner<F>) -> Self {
        Self {
            owner: Some(Box::new(owner)),
            has_questions: false,
            is_queued: false,
            is_asleep: false,
            is_silent: false,
            is_stopping: false,
            is_paused: false,
            is_closed: false,
            published: OwnerCounts::default(),
            is_in_round: false,
            round: None,
        }
    }
}

impl<F: Format> fmt::Debug for OwnerService<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerService({:?})", self.shared)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Format<File: Send> + Send + 'static> OwnerService<F> {
    /// Takes over an image whose lock and fence this process has.
    ///
    /// # Errors
    /// Storage fails, or the image is damaged.
    pub(crate) fn start(
        shared: Arc<Shared>,
        format: F,
        options: ServiceOptions,
    ) -> Result<Arc<Self>, ImageError> {
        let owner = run_now(Owner::take_over(Arc::clone(&shared), format))?;
        let service = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            shared,
            state: Mutex::new(State::new(owner)),
            bell: Condvar::new(),
            mailboxes: Mutex::default(),
            waiting: AtomicU64::new(0),
            options,
        });
        let giver = Arc::downgrade(&service);
        // Other maps want pages.
        let notify = move || giver.upgrade().into_iter().for_each(Service::notify);
        service.shared.map.user().set_notify(Box::new(notify));
        Ok(service)
    }

    /// Waits until no thread has the owner and no round runs.
    fn wait_owner(&self) -> MutexGuard<'_, State<F>> {
        let mut state = lock(&self.state);
        state.is_stopping = true;
        self.bell.notify_all();
        let mut state = self
            .bell
            .wait_while(state, |state| {
                (state.owner.is_none() || state.is_in_round) && !state.is_closed
            })
            .unwrap_or_else(PoisonError::into_inner);
        state.is_stopping = false;
        state
    }
}

impl<F: Format<File: Send> + Send + 'static> Service for OwnerService<F> {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn notify(self: Arc<Self>) {
        let mut state = lock(&self.state);
        state.has_questions = true;
        if state.owner.is_none() {
            // A bell is a system call. A thread that works finds the questions without it.
            if std::mem::take(&mut state.is_asleep) {
                self.bell.notify_all();
            }
            return;
        }
        if state.is_paused || state.is_closed || state.is_queued {
            return;
        }
        state.is_queued = true;
        drop(state);
        OWNERS.start(self);
    }

    fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Acquire)
    }

    fn open_channel(&self, mailbox: Arc<Mailbox>) -> Option<(u32, u32)> {
        let mut mailboxes = lock(&self.mailboxes);
        let ring = mailboxes.free_ring(self.options.rings)?;
        let channel = mailboxes.insert(Registered { mailbox, ring: Some(ring) })?;
        Some((channel, ring))
    }

    fn open_asker(&self, mailbox: Arc<Mailbox>) -> Option<u32> {
        lock(&self.mailboxes).insert(Registered { mailbox, ring: None })
    }

    fn close_channel(self: Arc<Self>, channel: u32) {
        let registered = lock(&self.mailboxes).by_channel.remove(&channel);
        let answers = registered.map(|one| one.mailbox.close()).unwrap_or_default();
        answers.iter().for_each(|answer| self.take_back(answer));
        if answers.iter().any(|answer| unclaimed(answer).is_some()) {
            self.notify();
        }
    }

    fn sync(self: Arc<Self>) -> Result<(), ImageError> {
        let gone = || ImageError::io("flush", 0)(std::io::Error::other("the owner has ended"));
        let mailbox = Arc::new(Mailbox::default());
        let channel = self.open_asker(Arc::clone(&mailbox)).ok_or_else(gone)?;
        self.shared.ask(Question { channel, tag: 0, kind: QuestionKind::Flush });
        Arc::clone(&self).notify();
        let answer = mailbox.wait().map(|answer| answer.kind);
        Arc::clone(&self).close_channel(channel);
        match answer {
            Some(AnswerKind::Done(Ok(()))) => Ok(()),
            Some(AnswerKind::Done(Err(error))) => Err(ImageError::io("flush", 0)(error.into())),
            _ => Err(gone()),
        }
    }

    fn begin_pause(&self) {
        lock(&self.state).is_paused = true;
    }

    fn pause(self: Arc<Self>) {
        drop(self.wait_owner());
        // A resume may have come meanwhile.
        let state = lock(&self.state);
        if !state.is_paused && state.has_questions {
            drop(state);
            self.notify();
        }
    }

    fn resume(self: Arc<Self>) {
        lock(&self.state).is_paused = false;
        self.notify();
    }

    fn stop(&self) -> Result<(), ImageError> {
        let mut state = self.wait_owner();
        state.is_closed = true;
        let Some(mut owner) = state.owner.take() else { return Ok(()) };
        drop(state);
        while self.work(&mut owner) {}
        // This ends the flushes, too.
        let outcome = run_now(owner.close());
        // From here on, another owner may have the image.
        // Threads that still wait get what there is, or nothing.
        self.deliver(&mut owner);
        let mut mailboxes = lock(&self.mailboxes);
        mailboxes.is_stopped = true;
        mailboxes.by_channel.values().for_each(|one| drop(one.mailbox.close()));
        drop(mailboxes);
        self.publish_waiting(0);
        self.bell.notify_all();
        outcome
    }
}

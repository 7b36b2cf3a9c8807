//! Thread of an owner.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use image::format::Format;
use image::owner::Owner;
use image::shared::{Answer, AnswerKind, Question, QuestionKind, Shared};
use image::{ImageError, run_now};

use crate::mailbox::{Mailbox, unclaimed};

/// Silence after which the thread ends.
const SILENCE: Duration = Duration::from_secs(5);
/// Interval for trying again what waits for space: the kernel reports no event for free space.
const RETRY: Duration = Duration::from_millis(500);
/// Number that stands for callers that are no channels.
const CALLER: u32 = u32::MAX;
/// Questions between two checks for a round.
const BATCH: usize = 64;

/// Owner of an image, as channels see it.
pub(crate) trait Service: Send + Sync + fmt::Debug {
    /// Returns the shared state of the map.
    fn shared(&self) -> &Arc<Shared>;

    /// Makes the owner read its questions.
    fn notify(self: Arc<Self>);

    /// Returns the number of questions that wait for space.
    fn waiting(&self) -> u64;

    /// Registers a channel. `None` if all channel numbers are in use.
    fn open_channel(&self, mailbox: Arc<Mailbox>) -> Option<u32>;

    /// Removes a channel.
    fn close_channel(&self, channel: u32);

    /// Makes everything that is committed durable. Channels may be in use.
    ///
    /// # Errors
    /// Storage failed, now or before.
    fn sync(self: Arc<Self>) -> Result<(), ImageError>;

    /// Ends the thread, and lets questions wait. Nothing is flushed.
    fn pause(&self);

    /// Answers questions again.
    fn resume(self: Arc<Self>);

    /// Makes everything durable, and ends the thread. The channels are closed.
    ///
    /// # Errors
    /// Storage failed, now or before.
    fn stop(&self) -> Result<(), ImageError>;
}

/// Owner on a thread that runs while there are questions.
pub(crate) struct OwnerService<F: Format> {
    shared: Arc<Shared>,
    state: Mutex<State<F>>,
    bell: Condvar,
    mailboxes: Mutex<BTreeMap<u32, Arc<Mailbox>>>,
    waiting: AtomicU64,
    channels: u32,
    /// Callers that wait for a flush.
    syncs: Mutex<BTreeMap<u32, SyncSender<AnswerKind>>>,
    sync_number: AtomicU32,
}

struct State<F> {
    /// The owner, while no thread has it.
    owner: Option<Box<Owner<F>>>,
    has_questions: bool,
    /// True while a caller waits for the owner.
    is_stopping: bool,
    /// True while questions wait.
    is_paused: bool,
}

impl<F: Format> fmt::Debug for OwnerService<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerService({:?})", self.shared)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Format + Send + 'static> OwnerService<F> {
    /// Takes over an image whose lock and fence this process has. At most `channels` channels can
    /// be open at a time.
    ///
    /// # Errors
    /// Storage fails, or the image is damaged.
    pub(crate) fn start(
        shared: Arc<Shared>,
        format: F,
        channels: u32,
    ) -> Result<Arc<Self>, ImageError> {
        let owner = run_now(Owner::take_over(Arc::clone(&shared), format))?;
        let state = State {
            owner: Some(Box::new(owner)),
            has_questions: false,
            is_stopping: false,
            is_paused: false,
        };
        Ok(Arc::new(Self {
            shared,
            state: Mutex::new(state),
            bell: Condvar::new(),
            mailboxes: Mutex::default(),
            waiting: AtomicU64::new(0),
            channels,
            syncs: Mutex::default(),
            sync_number: AtomicU32::new(0),
        }))
    }

    /// Runs the owner until there is silence.
    fn run(&self, mut owner: Box<Owner<F>>) {
        loop {
            let worked = self.work(&mut owner);
            self.deliver(&mut owner);
            if worked {
                continue;
            }
            let is_waiting = owner.waiting_for_room() > 0;
            let mut state = lock(&self.state);
            if std::mem::take(&mut state.has_questions) {
                continue;
            }
            let pause = if is_waiting { RETRY } else { SILENCE };
            let is_silent = |state: &mut State<F>| !state.has_questions && !state.is_stopping;
            let waited = self.bell.wait_timeout_while(state, pause, is_silent);
            let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state.has_questions = false;
            if state.is_stopping || (timeout.timed_out() && !is_waiting) {
                state.owner = Some(owner);
                self.bell.notify_all();
                return;
            }
            drop(state);
            if timeout.timed_out() {
                owner.retry_room();
            }
        }
    }

    /// Waits until no thread has the owner.
    fn wait_owner(&self) -> MutexGuard<'_, State<F>> {
        let mut state = lock(&self.state);
        state.is_stopping = true;
        self.bell.notify_all();
        let mut state = self
            .bell
            .wait_while(state, |state| state.owner.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.is_stopping = false;
        state
    }

    /// Answers some questions, runs a round if one is wanted, and frees space. Returns whether
    /// there was anything to do.
    fn work(&self, owner: &mut Owner<F>) -> bool {
        let mut worked = false;
        for _ in 0..BATCH {
            let Some(question) = self.shared.next_question() else { break };
            block(async { Ok(owner.answer(question).await) });
            worked = true;
        }
        if owner.wants_round() {
            self.deliver(owner);
            block(async { Ok(owner.run_round().await) });
            worked = true;
        }
        match block(owner.reclaim()) {
            Some(reclaimed) => worked | reclaimed,
            None => worked,
        }
    }

    fn deliver(&self, owner: &mut Owner<F>) {
        let waiting = owner.waiting_for_room() as u64;
        let changed = self.waiting.swap(waiting, Ordering::AcqRel) != waiting;
        let mut answers = Vec::new();
        owner.take_answers(&mut answers);
        let mailboxes = lock(&self.mailboxes);
        let mut notified = Vec::new();
        for answer in answers {
            let channel = answer.channel;
            if channel == CALLER {
                let caller = lock(&self.syncs).remove(&answer.tag);
                // A caller that has given up needs no answer.
                let _ = caller.map(|caller| caller.send(answer.kind));
                continue;
            }
            let delivered = match mailboxes.get(&channel) {
                Some(mailbox) => mailbox.deliver(answer),
                None => Err(answer),
            };
            match delivered {
                Ok(()) => notified.push(channel),
                Err(answer) => self.take_back(&answer),
            }
        }
        if changed {
            notified.extend(mailboxes.keys());
        }
        notified.sort_unstable();
        notified.dedup();
        notified.iter().filter_map(|channel| mailboxes.get(channel)).for_each(|one| one.wake());
    }

    /// Gives a grant back whose channel is gone.
    fn take_back(&self, answer: &Answer) {
        if let Some(grant) = unclaimed(answer) {
            let kind = QuestionKind::Failed(grant);
            self.shared.ask(Question { channel: answer.channel, tag: 0, kind });
            lock(&self.state).has_questions = true;
        }
    }
}

/// Runs a call of the owner. `None` if it failed; the log says why.
fn block<T>(call: impl Future<Output = Result<T, ImageError>>) -> Option<T> {
    run_now(call).inspect_err(|error| tracing::error!("an image failed: {error}")).ok()
}

impl<F: Format + Send + 'static> Service for OwnerService<F> {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn notify(self: Arc<Self>) {
        let mut state = lock(&self.state);
        state.has_questions = true;
        if state.is_paused {
            return;
        }
        let Some(owner) = state.owner.take() else { return self.bell.notify_all() };
        drop(state);
        let service = Arc::clone(&self);
        // Handed over through a cell, so that the owner is not lost if there is no thread.
        let cell = Arc::new(Mutex::new(Some(owner)));
        let handed = Arc::clone(&cell);
        let thread = std::thread::Builder::new().name("image-owner".into()).spawn(move || {
            let owner = lock(&handed).take();
            owner.into_iter().for_each(|owner| service.run(owner));
        });
        if let Err(error) = thread {
            tracing::error!("an image's owner cannot start: {error}; its requests wait");
            lock(&self.state).owner = lock(&cell).take();
        }
    }

    fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Acquire)
    }

    fn open_channel(&self, mailbox: Arc<Mailbox>) -> Option<u32> {
        let mut mailboxes = lock(&self.mailboxes);
        let channel = (0..self.channels).find(|channel| !mailboxes.contains_key(channel))?;
        mailboxes.insert(channel, mailbox);
        Some(channel)
    }

    fn close_channel(&self, channel: u32) {
        let mailbox = lock(&self.mailboxes).remove(&channel);
        let answers = mailbox.map(|mailbox| mailbox.close()).unwrap_or_default();
        answers.iter().for_each(|answer| self.take_back(answer));
    }

    fn sync(self: Arc<Self>) -> Result<(), ImageError> {
        let (sender, receiver) = sync_channel(1);
        let tag = self.sync_number.fetch_add(1, Ordering::Relaxed);
        lock(&self.syncs).insert(tag, sender);
        self.shared.ask(Question { channel: CALLER, tag, kind: QuestionKind::Flush });
        self.notify();
        let gone = || std::io::Error::other("the owner of the image has ended");
        match receiver.recv() {
            Ok(AnswerKind::Done(Ok(()))) => Ok(()),
            Ok(AnswerKind::Done(Err(error))) => Err(ImageError::io("flush", 0)(error.into())),
            _ => Err(ImageError::io("flush", 0)(gone())),
        }
    }

    fn pause(&self) {
        // From now on: a resume that comes before the owner has stopped must hold.
        lock(&self.state).is_paused = true;
        drop(self.wait_owner());
    }

    fn resume(self: Arc<Self>) {
        lock(&self.state).is_paused = false;
        self.notify();
    }

    fn stop(&self) -> Result<(), ImageError> {
        let mut state = self.wait_owner();
        state.is_paused = false;
        let Some(mut owner) = state.owner.take() else { return Ok(()) };
        drop(state);
        while self.work(&mut owner) {}
        let outcome = run_now(owner.close());
        lock(&self.state).owner = Some(owner);
        outcome
    }
}

//! Thread of an owner.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use image::format::Format;
use image::owner::{Owner, Round};
use image::shared::{Answer, Question, QuestionKind};
use image::{ImageError, run_now};

use super::{OwnerService, Service, State, lock};
use crate::mailbox::unclaimed;
use crate::threads::Run;

/// Silence after which the thread ends.
const SILENCE: Duration = Duration::from_secs(5);
/// Interval for trying again what waits for space: the kernel reports no event for free space.
const RETRY: Duration = Duration::from_millis(500);
/// First interval for trying again what waits for a page of the map: its readers leave soon.
const RETRY_PAGES: Duration = Duration::from_millis(1);
/// Questions between two checks for a round.
const BATCH: usize = 64;

impl<F: Format<File: Send> + Send + 'static> OwnerService<F> {
    /// Waits for questions. Returns the owner if it should go on.
    fn wait(&self, mut owner: Box<Owner<F>>, retry: &mut Duration) -> Option<Box<Owner<F>>> {
        let mut state = lock(&self.state);
        if std::mem::take(&mut state.has_questions) {
            return Some(owner);
        }
        let (is_short, is_full) = (owner.is_short(), owner.waiting_for_room() > 0);
        let pause = match (is_short, is_full) {
            (true, _) => *retry,
            (false, true) => RETRY,
            (false, false) => SILENCE,
        };
        *retry = if is_short { RETRY.min(*retry * 2) } else { RETRY_PAGES };
        state.is_silent = !is_short && !is_full;
        state.is_asleep = true;
        let is_stopping = |state: &State<F>| state.is_stopping && !state.is_in_round;
        let waits = |state: &mut State<F>| {
            !state.has_questions && !is_stopping(state) && (state.is_silent || is_short || is_full)
        };
        let waited = self.bell.wait_timeout_while(state, pause, waits);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_asleep = false;
        let is_silent = std::mem::take(&mut state.is_silent);
        let is_over = !is_short && !is_full && (timeout.timed_out() || !is_silent);
        let stops = is_stopping(&state);
        if stops || (is_over && !state.has_questions) {
            if !stops {
                // An idle image keeps little memory. After a pause it goes on with what it had.
                owner.shrink();
            }
            state.owner = Some(owner);
            self.bell.notify_all();
            return None;
        }
        state.has_questions = false;
        drop(state);
        if timeout.timed_out() {
            owner.retry_room();
            owner.retry_later();
        }
        Some(owner)
    }

    /// Answers some questions and frees space. Returns whether there was anything to do.
    pub(super) fn work(&self, owner: &mut Owner<F>) -> bool {
        let mut worked = false;
        for _ in 0..BATCH {
            let Some(question) = self.shared.next_question() else { break };
            block(async {
                owner.answer(question).await;
                Ok(())
            });
            worked = true;
        }
        owner.give_pages();
        // As many as questions, so that discards do not leave more and more behind.
        for _ in 0..BATCH {
            if block(owner.reclaim()) != Some(true) {
                break;
            }
            worked = true;
        }
        if !self.options.waits_for_room && owner.is_full() {
            owner.fail_full();
        }
        worked
    }

    /// Runs the owner's next step of a round, if there is one. Returns the round if it is to be
    /// synced.
    fn step_round(&self, owner: &mut Owner<F>) -> Option<Round<F::File>> {
        let round = lock(&self.state).round.take();
        match round {
            None if owner.wants_round() => {
                lock(&self.state).is_in_round = true;
                block(async { Ok(owner.begin_round().await) })
            }
            None => None,
            Some(mut round) if !round.is_written() => block(async {
                owner.write_round(&mut round).await;
                Ok(round)
            }),
            Some(round) => {
                owner.end_round(round);
                let mut state = lock(&self.state);
                state.is_in_round = false;
                // Its flushes have answers, and other questions may go on.
                state.has_questions = true;
                None
            }
        }
    }

    /// Syncs a round. Meanwhile another thread may have the owner, to answer questions. Returns the
    /// owner, unless that thread goes on with the round.
    fn sync_round(&self, owner: Box<Owner<F>>, mut round: Round<F::File>) -> Option<Box<Owner<F>>> {
        let mut state = lock(&self.state);
        state.owner = Some(owner);
        let has_questions = std::mem::take(&mut state.has_questions);
        drop(state);
        if has_questions {
            self.me.upgrade().into_iter().for_each(Service::notify);
        }
        block(async {
            round.sync().await;
            Ok(())
        });
        let mut state = lock(&self.state);
        state.round = Some(round);
        if let Some(owner) = state.owner.take() {
            return Some(owner);
        }
        state.has_questions = true;
        self.bell.notify_all();
        None
    }

    /// Publishes how many questions wait for space. To be called when the owner can do no more.
    pub(super) fn publish_waiting(&self, waiting: u64) {
        let before = self.waiting.swap(waiting, Ordering::AcqRel);
        if waiting == before {
            return;
        }
        self.options.file.room_waits().begin(waiting.saturating_sub(before));
        self.options.file.room_waits().end(before.saturating_sub(waiting));
        // A queue that drains fails its requests.
        lock(&self.mailboxes).by_channel.values().for_each(|one| one.mailbox.wake());
    }

    pub(super) fn deliver(&self, owner: &mut Owner<F>) {
        // Before the answers: a channel that has one finds its question counted.
        self.options.counters.publish(owner, &mut lock(&self.state).published);
        let mut answers = Vec::new();
        owner.take_answers(&mut answers);
        let mailboxes = lock(&self.mailboxes);
        let mut notified = Vec::new();
        for answer in answers {
            let channel = answer.channel;
            let delivered = match mailboxes.get(channel) {
                Some(mailbox) => mailbox.deliver(answer),
                None => Err(answer),
            };
            match delivered {
                Ok(()) => notified.push(channel),
                Err(answer) => self.take_back(&answer),
            }
        }
        notified.sort_unstable();
        notified.dedup();
        notified.into_iter().filter_map(|one| mailboxes.get(one)).for_each(|one| one.wake());
    }

    /// Gives a grant back whose channel is gone.
    pub(super) fn take_back(&self, answer: &Answer) {
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

impl<F: Format<File: Send> + Send + 'static> Run for OwnerService<F> {
    fn run(&self) {
        let mut state = lock(&self.state);
        state.is_queued = false;
        if state.is_paused || state.is_closed {
            return;
        }
        let mut next = state.owner.take();
        drop(state);
        let mut retry = RETRY_PAGES;
        while let Some(mut owner) = next {
            // What is asked from here on is seen by the work, or by another thread during a sync.
            lock(&self.state).has_questions = false;
            let worked = self.work(&mut owner);
            let round = self.step_round(&mut owner);
            self.deliver(&mut owner);
            next = if let Some(round) = round {
                self.sync_round(owner, round)
            } else if worked {
                Some(owner)
            } else {
                self.publish_waiting(owner.waiting_for_room() as u64);
                self.wait(owner, &mut retry)
            };
        }
    }

    fn end_silence(&self) -> bool {
        let mut state = lock(&self.state);
        self.bell.notify_all();
        std::mem::take(&mut state.is_silent)
    }
}

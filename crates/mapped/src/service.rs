//! Thread of an owner.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disk::FileDisk;
use image::format::Format;
use image::owner::{Owner, OwnerCounts};
use image::shared::{Answer, AnswerKind, Question, QuestionKind, Shared};
use image::{ImageError, run_now};

use crate::counters::Counters;
use crate::mailbox::{Mailbox, unclaimed};
use crate::mailboxes::{Mailboxes, Registered};
use crate::threads::{OWNERS, Run};

/// Silence after which the thread ends.
const SILENCE: Duration = Duration::from_secs(5);
/// Interval for trying again what waits for space: the kernel reports no event for free space.
const RETRY: Duration = Duration::from_millis(500);
/// First interval for trying again what waits for a page of the map: its readers leave soon.
const RETRY_PAGES: Duration = Duration::from_millis(1);
/// Questions between two checks for a round.
const BATCH: usize = 64;

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
}

struct State<F> {
    /// The owner, while no thread has it.
    owner: Option<Box<Owner<F>>>,
    has_questions: bool,
    /// True while the owner waits for a thread.
    is_queued: bool,
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
}

impl<F> State<F> {
    fn new(owner: Owner<F>) -> Self {
        Self {
            owner: Some(Box::new(owner)),
            has_questions: false,
            is_queued: false,
            is_silent: false,
            is_stopping: false,
            is_paused: false,
            is_closed: false,
            published: OwnerCounts::default(),
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

impl<F: Format + Send + 'static> OwnerService<F> {
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
        let service = Arc::new(Self {
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
        let waits = |state: &mut State<F>| {
            !state.has_questions && !state.is_stopping && (state.is_silent || is_short || is_full)
        };
        let waited = self.bell.wait_timeout_while(state, pause, waits);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_silent = std::mem::take(&mut state.is_silent);
        let is_over = !is_short && !is_full && (timeout.timed_out() || !is_silent);
        if state.is_stopping || (is_over && !state.has_questions) {
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

    /// Waits until no thread has the owner.
    fn wait_owner(&self) -> MutexGuard<'_, State<F>> {
        let mut state = lock(&self.state);
        state.is_stopping = true;
        self.bell.notify_all();
        let mut state = self
            .bell
            .wait_while(state, |state| state.owner.is_none() && !state.is_closed)
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
            block(async {
                owner.answer(question).await;
                Ok(())
            });
            worked = true;
        }
        if owner.wants_round() {
            self.deliver(owner);
            block(async {
                owner.run_round().await;
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

    /// Publishes how many questions wait for space. To be called when the owner can do no more.
    fn publish_waiting(&self, waiting: u64) {
        let before = self.waiting.swap(waiting, Ordering::AcqRel);
        if waiting == before {
            return;
        }
        self.options.file.begin_waits(waiting.saturating_sub(before));
        self.options.file.end_waits(before.saturating_sub(waiting));
        // A queue that drains fails its requests.
        lock(&self.mailboxes).by_channel.values().for_each(|one| one.mailbox.wake());
    }

    fn deliver(&self, owner: &mut Owner<F>) {
        // Before the answers: who has one finds itself counted.
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

impl<F: Format + Send + 'static> Run for OwnerService<F> {
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
            let worked = self.work(&mut owner);
            self.deliver(&mut owner);
            next = if worked {
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

impl<F: Format + Send + 'static> Service for OwnerService<F> {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn notify(self: Arc<Self>) {
        let mut state = lock(&self.state);
        state.has_questions = true;
        if state.owner.is_none() {
            return self.bell.notify_all();
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

#[cfg(test)]
mod tests {
    use disk::{FileOptions, OnFull};
    use image::PlainFile;
    use image::channel::MapChannel;
    use image::journal::Journal;
    use image::map::{Map, PagePool};
    use image::qcow2::{CreateOptions, Qcow2Format, create_file};
    use memory::Mapping;

    use super::*;
    use crate::JOURNAL;

    /// Starts the owner of a new image, which stores whole clusters.
    fn start(
        dir: &tempfile::TempDir,
        rings: u32,
    ) -> Arc<OwnerService<Qcow2Format<Arc<PlainFile>>>> {
        let path = dir.path().join("a.qcow2");
        let options = CreateOptions { extended_l2: false, ..CreateOptions::new(1 << 20) };
        create_file(&path, &options).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let file = Arc::new(PlainFile::new(file.into()));
        let format = run_now(Qcow2Format::open(file, false)).unwrap();
        let memory = Mapping::private(JOURNAL.cells().unwrap() * 8).unwrap();
        let journal = Journal::open(Arc::new(memory), JOURNAL).unwrap();
        let map = Map::new(format.layout(), &Arc::new(PagePool::new(64)));
        let options = FileOptions {
            path,
            read_only: true,
            direct: false,
            block_size: None,
            on_full: OnFull::Error,
        };
        let file = Arc::new(FileDisk::open_container(options, None).unwrap());
        let options =
            ServiceOptions { file, rings, waits_for_room: true, counters: Arc::default() };
        OwnerService::start(Arc::new(Shared::new(map, journal)), format, options).unwrap()
    }

    #[test]
    fn a_grant_that_no_channel_took_goes_to_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let service = start(&dir, 2);
        let mailboxes = [Arc::<Mailbox>::default(), Arc::default()];
        let open = |mailbox: &Arc<Mailbox>| service.open_channel(Arc::clone(mailbox)).unwrap().0;
        let channels = [open(&mailboxes[0]), open(&mailboxes[1])];
        for channel in channels {
            let kind = QuestionKind::Write(0);
            service.shared().ask(Question { channel, tag: 7, kind });
        }
        Arc::clone(&service).notify();
        drop(service.wait_owner());
        Arc::clone(&service).close_channel(channels[0]);
        assert!(matches!(mailboxes[1].wait().unwrap().kind, AnswerKind::Granted(_)));
    }

    #[test]
    fn a_pause_that_was_undone_before_the_owner_stopped_holds_nothing_up() {
        let dir = tempfile::tempdir().unwrap();
        let service = start(&dir, 1);
        let owner = lock(&service.state).owner.take();
        service.begin_pause();
        let paused = Arc::clone(&service);
        let thread = std::thread::spawn(move || paused.pause());
        let waits = |state: &mut State<_>| !state.is_stopping;
        drop(service.bell.wait_while(lock(&service.state), waits).unwrap());
        Arc::clone(&service).resume();
        lock(&service.state).owner = owner;
        service.bell.notify_all();
        thread.join().unwrap();
        let state = lock(&service.state);
        assert!(state.is_queued || state.owner.is_none(), "a thread has it, or will");
        drop(state);
        service.stop().unwrap();
    }

    #[test]
    fn an_owner_that_was_stopped_does_not_start_again() {
        let dir = tempfile::tempdir().unwrap();
        let service = start(&dir, 1);
        service.stop().unwrap();
        Arc::clone(&service).notify();
        Arc::clone(&service).resume();
        assert!(!lock(&service.state).is_queued, "the image is closed");
        assert!(service.sync().is_err());
    }

    #[test]
    fn space_that_a_request_keeps_is_shown_as_long_as_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let service = start(&dir, 1);
        let mailbox = Arc::<Mailbox>::default();
        let (channel, ring) = service.open_channel(Arc::clone(&mailbox)).unwrap();
        let mut map = MapChannel::open(Arc::clone(service.shared()), ring).unwrap();
        let ask = |kind| {
            service.shared().ask(Question { channel, tag: 0, kind });
            Arc::clone(&service).notify();
            mailbox.wait().unwrap().kind
        };
        let counts = || service.options.counters.counts(Some(service.shared()));
        let AnswerKind::Granted(grant) = ask(QuestionKind::Write(0)) else { panic!("no grant") };
        let hold = map.enter_grant();
        map.commit_grant(&grant, u16::MAX, hold);
        let reading = map.enter_grant();
        ask(QuestionKind::Discard(0, Default::default()));
        assert_eq!((counts().limbo_bytes, counts().held_bytes), (65536, 0), "not durable");
        ask(QuestionKind::Flush);
        assert_eq!((counts().limbo_bytes, counts().held_bytes), (65536, 65536));
        let first = counts().held_ns;
        assert!(first > 0 && counts().held_ns >= first);
        map.leave(reading);
        assert_eq!((counts().held_bytes, counts().held_ns), (0, 0), "before the owner sees it");
        ask(QuestionKind::Read(1));
        ask(QuestionKind::Read(1));
        assert_eq!(counts().limbo_bytes, 0);
    }

    #[test]
    fn late_answers_do_not_reach_a_later_channel() {
        let dir = tempfile::tempdir().unwrap();
        let service: Arc<dyn Service> = start(&dir, 1);
        let (first, ring) = service.open_channel(Arc::default()).unwrap();
        assert!(service.open_channel(Arc::default()).is_none(), "all rings are in use");
        let kind = QuestionKind::Read(0);
        service.shared().ask(Question { channel: first, tag: 0, kind: kind.clone() });
        Arc::clone(&service).close_channel(first);
        let mailbox = Arc::<Mailbox>::default();
        let (second, again) = service.open_channel(Arc::clone(&mailbox)).unwrap();
        assert_eq!(again, ring);
        service.shared().ask(Question { channel: second, tag: 1, kind });
        Arc::clone(&service).notify();
        assert_eq!(mailbox.wait().unwrap().tag, 1);
        service.stop().unwrap();
        assert!(mailbox.wait().is_none());
        assert!(service.open_asker(Arc::default()).is_none());
    }
}

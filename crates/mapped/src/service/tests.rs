//! Tests of an owner on its thread.

use disk::{FileOptions, OnFull};
use image::channel::MapChannel;
use image::journal::Journal;
use image::map::{Map, PagePool};
use image::qcow2::{CreateOptions, Qcow2Format, create_file};
use image::{ImageFile, PlainFile};
use memory::Mapping;

use super::*;
use crate::JOURNAL;

/// Starts the owner of a new image, which stores whole clusters.
fn start(dir: &tempfile::TempDir, rings: u32) -> Arc<OwnerService<Qcow2Format<Arc<PlainFile>>>> {
    start_over(dir, rings, |file| file)
}

/// Starts the owner of a new image in a file of another kind.
fn start_over<F: ImageFile + Clone + Send + 'static>(
    dir: &tempfile::TempDir,
    rings: u32,
    file_of: impl FnOnce(Arc<PlainFile>) -> F,
) -> Arc<OwnerService<Qcow2Format<F>>> {
    let path = dir.path().join("a.qcow2");
    let options = CreateOptions { extended_l2: false, ..CreateOptions::new(1 << 20) };
    create_file(&path, &options).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let file = file_of(Arc::new(PlainFile::new(file.into())));
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
    let options = ServiceOptions { file, rings, waits_for_room: true, counters: Arc::default() };
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
    ask(QuestionKind::Discard { granule: 0, count: 1, claim: Default::default() });
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

/// File whose syncs wait until they are allowed.
#[derive(Clone)]
struct Gated {
    file: Arc<PlainFile>,
    gate: Arc<Gate>,
}

/// Number of syncs that have begun, and that are allowed.
#[derive(Default)]
struct Gate(Mutex<(u32, u32)>, Condvar);

impl Gate {
    fn pass(&self) {
        let mut counts = lock(&self.0);
        counts.0 += 1;
        let number = counts.0;
        self.1.notify_all();
        drop(self.1.wait_while(counts, |(_, allowed)| *allowed < number).unwrap());
    }

    fn allow(&self, syncs: u32) {
        lock(&self.0).1 = syncs;
        self.1.notify_all();
    }

    /// Waits until so many syncs have begun.
    fn wait(&self, syncs: u32) {
        drop(self.1.wait_while(lock(&self.0), |(begun, _)| *begun < syncs).unwrap());
    }
}

impl ImageFile for Gated {
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.file.read_at(offset, out).await
    }

    async fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.file.write_at(offset, data).await
    }

    async fn sync(&self) -> std::io::Result<()> {
        self.gate.pass();
        Ok(())
    }

    async fn len(&self) -> std::io::Result<u64> {
        self.file.len().await
    }

    async fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.file.set_len(len).await
    }

    async fn allocate(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.file.allocate(offset, len).await
    }

    async fn punch(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.file.punch(offset, len).await
    }
}

#[test]
fn questions_are_answered_while_a_round_syncs() {
    let (dir, gate) = (tempfile::tempdir().unwrap(), Arc::<Gate>::default());
    gate.allow(1); // that of the takeover
    let file = |file| Gated { file, gate: Arc::clone(&gate) };
    let service = start_over(&dir, 1, file);
    let mailbox = Arc::<Mailbox>::default();
    let (channel, ring) = service.open_channel(Arc::clone(&mailbox)).unwrap();
    let mut map = MapChannel::open(Arc::clone(service.shared()), ring).unwrap();
    let ask = |tag, kind| {
        service.shared().ask(Question { channel, tag, kind });
        Arc::clone(&service).notify();
    };
    let mut write = |granule| {
        ask(1, QuestionKind::Write(granule));
        let answer = mailbox.wait().unwrap();
        let AnswerKind::Granted(grant) = answer.kind else { panic!("{answer:?}") };
        let hold = map.enter_grant();
        map.commit_grant(&grant, u16::MAX, hold);
    };
    write(0);
    ask(2, QuestionKind::Flush);
    for sync in 2..=3 {
        gate.wait(sync);
        // The flush does not end, and a write to another granule does.
        write(u64::from(sync));
        if sync == 3 {
            let paused = Arc::clone(&service);
            service.begin_pause();
            let pause = std::thread::spawn(move || paused.pause());
            let waits = |state: &mut State<_>| !state.is_stopping;
            drop(service.bell.wait_while(lock(&service.state), waits).unwrap());
            assert!(!pause.is_finished(), "the round goes on");
            gate.allow(u32::MAX);
            pause.join().unwrap();
            let state = lock(&service.state);
            assert!(state.owner.is_some() && !state.is_in_round && state.round.is_none());
        } else {
            gate.allow(sync);
        }
    }
    let answer = mailbox.wait().unwrap();
    assert_eq!((answer.tag, answer.kind), (2, AnswerKind::Done(Ok(()))));
    Arc::clone(&service).resume();
    service.stop().unwrap();
}

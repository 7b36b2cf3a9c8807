//! Tests of a channel whose file or owner does what storage seldom does.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use ::disk::conformance::Client;
use ::disk::{
    Channel, Completion, Disk, DiskError, Extent, FileDisk, FileOptions, Geometry, IoError,
    NullDisk, OnFull, Request, RequestKind, SubmitOutcome,
};
use image::ImageError;
use image::journal::Journal;
use image::map::{Layout, Map, PagePool};
use image::qcow2::{CreateOptions, create_file};
use image::shared::{Answer, AnswerKind, Question, QuestionKind, Shared};
use memory::Mapping;
use reactor::Context;
use rustix::io::Errno;

use crate::below::Below;
use crate::disk::{JOURNAL, MappedDisk};
use crate::mailbox::Mailbox;
use crate::qcow2::LayerOptions;
use crate::service::Service;

const SIZE: u64 = 8 << 20;
const WRITE: RequestKind = RequestKind::Write { durable: false };
const ZEROES: RequestKind = RequestKind::WriteZeroes { unmap: true, durable: false };

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

fn file(path: &Path, read_only: bool) -> Arc<FileDisk> {
    let (path, on_full) = (path.to_path_buf(), OnFull::Error);
    let options = FileOptions { path, read_only, direct: false, block_size: None, on_full };
    Arc::new(FileDisk::open_container(options, None).unwrap())
}

/// Makes an image whose requests wait for space or not.
fn image(dir: &Path, cluster_bits: u32, waits_for_room: bool, below: bool) -> MappedDisk {
    let path = dir.join("top.qcow2");
    let extended_l2 = cluster_bits > 14;
    let options = CreateOptions { cluster_bits, extended_l2, ..CreateOptions::new(SIZE) };
    create_file(&path, &options).unwrap();
    let below = below.then(|| {
        let base = dir.join("base.raw");
        std::fs::write(&base, vec![7; SIZE as usize]).unwrap();
        file(&base, true) as Arc<dyn Disk>
    });
    open(path, waits_for_room, below).unwrap()
}

fn open(
    path: PathBuf,
    waits_for_room: bool,
    below: Option<Arc<dyn Disk>>,
) -> Result<MappedDisk, ImageError> {
    let journal = Arc::new(Mapping::private(JOURNAL.cells().unwrap() * 8).unwrap());
    let pages = Arc::new(PagePool::new(64));
    let top = file(&path, false);
    let (read_only, direct) = (false, false);
    let options = LayerOptions { path, read_only, direct, waits_for_room, journal, pages };
    MappedDisk::open_qcow2(top, below, options)
}

/// What a write to the file does.
enum Step {
    /// It stores so many bytes, then the storage is full.
    Store(u64),
    /// It stays in the kernel until it is released.
    Hold,
}

#[derive(Default)]
struct Script {
    /// Steps of the next writes. Later ones succeed.
    steps: VecDeque<Step>,
    /// Writes: offset, length, whether durable.
    writes: Vec<(u64, u64, bool)>,
    flushes: usize,
    is_released: bool,
}

/// File that follows a script and stores nothing.
struct ScriptedFile {
    script: Arc<Mutex<Script>>,
    held: Vec<Request>,
}

impl Channel for ScriptedFile {
    fn submit(&mut self, _: &mut Context<'_>, mut request: Request) -> SubmitOutcome {
        let mut script = lock(&self.script);
        match request.kind {
            RequestKind::Write { durable } => {
                script.writes.push((request.offset, request.len, durable));
                match script.steps.pop_front() {
                    Some(Step::Hold) => {
                        self.held.push(request);
                        return SubmitOutcome::Pending;
                    }
                    Some(Step::Store(bytes)) => {
                        request.buffers.advance(bytes as usize);
                        return SubmitOutcome::Done(request.complete(Err(IoError::Full)));
                    }
                    None => {}
                }
            }
            RequestKind::Flush => script.flushes += 1,
            _ => request.buffers.zero(),
        }
        SubmitOutcome::Done(request.complete(Ok(())))
    }

    fn reap(&mut self, _: &mut Context<'_>, out: &mut Vec<Completion>) {
        if lock(&self.script).is_released {
            out.extend(self.held.drain(..).map(|request| request.complete(Ok(()))));
        }
    }

    fn waiting(&self) -> usize {
        0
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {}

    fn abandon(&mut self) {}
}

/// Image whose channels write to a scripted file.
#[derive(Debug)]
struct ScriptedDisk(MappedDisk, Arc<Mutex<Script>>);

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Script")
    }
}

impl Disk for ScriptedDisk {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        let file = ScriptedFile { script: Arc::clone(&self.1), held: Vec::new() };
        let below = self.0.open_below(context).map(|(layer, size)| Below::new(layer, size));
        self.0.open_channel_on(Box::new(file), below, context)
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn activate(&self) -> Result<(), DiskError> {
        self.0.activate()
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        self.0.deactivate()
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.0.sync()
    }

    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError> {
        self.0.resize(size)
    }

    fn stalled(&self) -> u64 {
        self.0.stalled()
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Extent>, IoError> {
        self.0.extents(offset, len, limit)
    }

    fn zeroes_fast(&self, unmap: bool) -> bool {
        self.0.zeroes_fast(unmap)
    }
}

fn scripted(dir: &Path) -> (Arc<dyn Disk>, Arc<Mutex<Script>>) {
    let script = Arc::<Mutex<Script>>::default();
    let disk: Arc<dyn Disk> =
        Arc::new(ScriptedDisk(image(dir, 16, true, false), Arc::clone(&script)));
    disk.activate().unwrap();
    (disk, script)
}

#[test]
fn a_write_that_stops_midway_goes_on_where_it_stopped_and_stays_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, script) = scripted(dir.path());
    let client = Client::new(&disk);
    client.write(0, vec![1; 8192]);
    assert_eq!(client.run(RequestKind::Flush, 0, 0, Vec::new()).0, Ok(()));
    let (at, flushes) = {
        let mut script = lock(&script);
        script.steps = [512, 0, 1024].map(Step::Store).into();
        (script.writes.pop().unwrap().0, script.flushes)
    };
    let durable = RequestKind::Write { durable: true };
    assert_eq!(client.run(durable, 0, 8192, vec![2; 8192]).0, Ok(()));
    let script = lock(&script);
    let expected = [
        (at, 8192, true),
        (at + 512, 7680, false),
        (at + 512, 7680, false),
        (at + 1536, 6656, false),
    ];
    assert_eq!(script.writes, expected);
    assert_eq!(script.flushes, flushes + 1, "the rest has no sync of its own");
}

#[test]
fn a_request_with_a_part_in_the_kernel_does_not_wait_for_space() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, script) = scripted(dir.path());
    let client = Client::new(&disk);
    // In this order, so that the clusters are not one run.
    client.write(64 << 10, vec![1; 64 << 10]);
    client.write(0, vec![1; 64 << 10]);
    lock(&script).steps = [Step::Hold, Step::Store(0)].into();
    let sent = client.send(WRITE, 0, 128 << 10, vec![2; 128 << 10], 0);
    assert_eq!(client.waiting(), 0);
    lock(&script).is_released = true;
    assert_eq!(sent.wait().0, Ok(()));
}

#[test]
fn discards_that_fill_the_journal_do_not_fail() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(image(dir.path(), 9, false, true));
    disk.activate().unwrap();
    let client = Client::new(&disk);
    let parts: Vec<_> =
        (0..8).map(|part| client.send(ZEROES, part << 20, 1 << 20, Vec::new(), 0)).collect();
    for part in parts {
        assert_eq!(part.wait().0, Ok(()));
    }
    assert!(client.read(0, SIZE).iter().all(|byte| *byte == 0));
}

/// Owner that does what a test says.
struct FakeService {
    shared: Arc<Shared>,
    mailbox: Mutex<Option<Arc<Mailbox>>>,
    /// Whether the owner begins with each question at once.
    takes: bool,
    /// Questions that wait for space, as the owner says.
    waiting: AtomicU64,
    begun: Mutex<Vec<Question>>,
    /// Whether a pause has begun, and whether it has been undone.
    pause: Mutex<(bool, bool)>,
    bell: Condvar,
}

impl std::fmt::Debug for FakeService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeService")
    }
}

impl FakeService {
    fn new(takes: bool) -> Arc<Self> {
        let layout =
            Layout { granules: 128, granule_bits: 16, block_bits: 12, unit_bits: 9, page_bits: 9 };
        let memory = Mapping::private(JOURNAL.cells().unwrap() * 8).unwrap();
        let journal = Journal::open(Arc::new(memory), JOURNAL).unwrap();
        let map = Map::new(layout, &Arc::new(PagePool::new(64)));
        let shared = Arc::new(Shared::new(map, journal));
        let (mailbox, begun, pause, bell) = Default::default();
        let waiting = AtomicU64::new(1);
        Arc::new(Self { shared, mailbox, takes, waiting, begun, pause, bell })
    }

    /// Answers a question.
    fn answer(&self, tag: u32, kind: AnswerKind) {
        let mailbox = lock(&self.mailbox).clone().unwrap();
        mailbox.deliver(Answer { channel: 1, tag, kind }).unwrap();
        mailbox.wake();
    }
}

impl Service for FakeService {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn notify(self: Arc<Self>) {
        while let Some(question) = self.shared.next_question() {
            if let QuestionKind::Discard { claim, .. } = &question.kind {
                assert!(!self.takes || claim.take());
            }
            lock(&self.begun).push(question);
        }
    }

    fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    fn open_channel(&self, mailbox: Arc<Mailbox>) -> Option<(u32, u32)> {
        *lock(&self.mailbox) = Some(mailbox);
        Some((1, 0))
    }

    fn open_asker(&self, _: Arc<Mailbox>) -> Option<u32> {
        None
    }

    fn close_channel(self: Arc<Self>, _: u32) {}

    fn sync(self: Arc<Self>) -> Result<(), ImageError> {
        Ok(())
    }

    fn begin_pause(&self) {}

    fn pause(self: Arc<Self>) {
        let mut pause = lock(&self.pause);
        pause.0 = true;
        self.bell.notify_all();
        let limit = Duration::from_secs(10);
        let waited = self.bell.wait_timeout_while(pause, limit, |(_, is_undone)| !*is_undone);
        assert!(!waited.unwrap().1.timed_out(), "nobody could resume");
    }

    fn resume(self: Arc<Self>) {
        lock(&self.pause).1 = true;
        self.bell.notify_all();
    }

    fn stop(&self) -> Result<(), ImageError> {
        Ok(())
    }
}

/// Makes a disk whose owner says that requests wait for space.
fn faked(dir: &Path, takes: bool) -> (Arc<dyn Disk>, Arc<FakeService>) {
    let service = FakeService::new(takes);
    let disk = image(dir, 16, false, false);
    disk.set_service(service.clone());
    (Arc::new(disk), service)
}

#[test]
fn a_discard_that_failed_is_not_carried_out_later() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, service) = faked(dir.path(), false);
    let client = Client::new(&disk);
    let sent = client.send(ZEROES, 0, 64 << 10, Vec::new(), 0);
    client.give_up();
    assert_eq!(sent.wait().0, Err(IoError::Full));
    let begun = lock(&service.begun);
    let [Question { kind: QuestionKind::Discard { granule: 0, count: 1, claim }, .. }] = &begun[..]
    else {
        panic!("{begun:?}")
    };
    assert!(!claim.take(), "the owner must not begin");
}

#[test]
fn a_discard_that_the_owner_carries_out_does_not_fail() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, service) = faked(dir.path(), true);
    let client = Client::new(&disk);
    let sent = client.send(ZEROES, 0, 64 << 10, Vec::new(), 0);
    client.give_up();
    client.barrier();
    let tag = lock(&service.begun)[0].tag;
    service.answer(tag, AnswerKind::Zeroed(1));
    assert_eq!(sent.wait().0, Ok(()));
}

#[test]
fn a_write_whose_answer_comes_while_the_queue_drains_ends_once() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, service) = faked(dir.path(), false);
    service.waiting.store(0, Ordering::Relaxed);
    let client = Client::new(&disk);
    let first = client.send(WRITE, 0, 4096, vec![1; 4096], 0);
    client.give_up();
    let tag = lock(&service.begun)[0].tag;
    // Other requests begin to wait for space.
    service.waiting.store(1, Ordering::Relaxed);
    service.answer(tag, AnswerKind::Look);
    assert_eq!(first.wait().0, Err(IoError::Full));
    service.waiting.store(0, Ordering::Relaxed);
    let second = client.send(WRITE, 0, 4096, vec![1; 4096], 0);
    client.barrier();
    let asked: Vec<_> = lock(&service.begun).iter().map(|question| question.tag).collect();
    let [_, again, other] = asked[..] else { panic!("{asked:?}") };
    service.answer(again, AnswerKind::Done(Err(Errno::IO)));
    service.answer(other, AnswerKind::Done(Err(Errno::NOSPC)));
    assert_eq!(second.wait().0, Err(IoError::Full), "not the answer to the first one");
}

#[test]
fn a_disk_is_resumed_while_its_owner_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, service) = faked(dir.path(), false);
    let quiesced = Arc::clone(&disk);
    let thread = std::thread::spawn(move || quiesced.quiesce());
    drop(service.bell.wait_while(lock(&service.pause), |(has_begun, _)| !*has_begun).unwrap());
    disk.unquiesce();
    thread.join().unwrap();
}

#[test]
fn blocks_are_as_large_as_those_of_the_layer_below() {
    let over = |cluster_bits| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("top.qcow2");
        let extended_l2 = false;
        let options = CreateOptions { cluster_bits, extended_l2, ..CreateOptions::new(SIZE) };
        create_file(&path, &options).unwrap();
        let below: Arc<dyn Disk> = Arc::new(NullDisk::new(SIZE, 4096, true));
        let layer = open(path, true, Some(below));
        layer.map(|layer| layer.geometry().block_size).map_err(|error| error.to_string())
    };
    assert_eq!(over(16), Ok(4096));
    let refused = over(9).unwrap_err();
    assert!(refused.contains("clusters of 512 bytes on storage with blocks of 4096"), "{refused}");
}

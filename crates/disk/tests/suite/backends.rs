//! Tests that every backend passes the conformance suite, and that files follow the locking, flush
//! and full-storage rules of the `Disk` contract.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use disk::conformance::{self, Client};
use disk::{
    Disk, DiskError, FileDisk, FileOptions, IoError, MemoryDisk, NullDisk, OnFull, RequestKind,
    Window,
};
use rustix::event::{EventfdFlags, eventfd};

pub(crate) const SIZE: u64 = 8 << 20;

pub(crate) fn image(dir: &Path, size: u64) -> PathBuf {
    let path = dir.join("disk.raw");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

pub(crate) fn options(path: &Path) -> FileOptions {
    FileOptions {
        path: path.into(),
        read_only: false,
        direct: false,
        block_size: None,
        on_full: OnFull::Wait,
    }
}

fn open(options: FileOptions) -> Arc<dyn Disk> {
    Arc::new(FileDisk::open(options).unwrap())
}

/// Creates a directory on a real file system: the default one may be tmpfs, which refuses nothing.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_buffered_file_conforms() {
    let dir = dir();
    conformance::run(open(options(&image(dir.path(), SIZE))));
}

#[test]
fn a_direct_file_conforms() {
    let dir = dir();
    let path = image(dir.path(), SIZE);
    conformance::run(open(FileOptions { direct: true, ..options(&path) }));
}

#[test]
fn a_file_in_memory_conforms_though_it_has_no_zero_range() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    conformance::run(open(options(&image(dir.path(), SIZE))));
}

/// With io_uring, a kernel thread would execute each of them.
#[test]
fn small_reads_of_a_file_in_memory_end_within_their_submission() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(dir.path(), SIZE);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[7; 8192], 0).unwrap();
    if let Ok(direct) = FileDisk::open(FileOptions { direct: true, ..options(&path) }) {
        let disk: Arc<dyn Disk> = Arc::new(direct);
        let client = Client::new(&disk);
        assert_eq!((client.read(0, 8192), client.ended_at_once()), (vec![7; 8192], 1));
    }
    let client = Client::new(&open(options(&path)));
    // Data, both, a hole, and the largest small read.
    for (offset, len, sum) in [(512, 4096, 7 * 4096), (4096, 8192, 7 * 4096), (SIZE - 512, 512, 0)]
    {
        let read = client.read(offset, len);
        assert_eq!(read.iter().map(|byte| u64::from(*byte)).sum::<u64>(), sum);
    }
    client.read(0, 32 << 10);
    assert_eq!(client.ended_at_once(), 4);
    // A large read would hold up the reactor's other queues.
    client.read(0, 64 << 10);
    client.write(0, vec![8; 4096]);
    assert_eq!((client.read(0, 1 << 20)[4095], client.ended_at_once()), (8, 4));
    // The file has ended before the disk: io_uring finds the error.
    file.set_len(4096).unwrap();
    let short = client.run(RequestKind::Read, 2048, 4096, vec![]).0;
    assert_eq!((short, client.ended_at_once()), (Err(IoError::Short), 4));
}

#[test]
fn memory_conforms_and_grows() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SIZE, 512, false).unwrap());
    conformance::run(disk.clone());
    let client = Client::new(&disk);
    client.write(0, vec![7; 512]);
    assert!(matches!(disk.resize(Some(SIZE - 512)), Err(DiskError::Resize { .. })));
    assert_eq!(disk.resize(Some(2 * SIZE)).unwrap().size, 2 * SIZE);
    client.write(2 * SIZE - 512, vec![8; 512]);
    assert_eq!(client.read(2 * SIZE - 512, 512), [8; 512]);
    assert_eq!(client.read(0, 512), [7; 512]);
}

/// Runs the suite on the middle of a disk and checks that the rest is untouched.
fn window_conforms(child: Arc<dyn Disk>) {
    let (offset, size) = (1 << 20, SIZE - (2 << 20));
    child.activate().unwrap();
    let client = Client::new(&child);
    let whole = client.read(0, 4096).len() as u64;
    let edges = [0, offset - whole, offset + size, SIZE - whole];
    for at in edges {
        client.write(at, vec![9; whole as usize]);
    }
    let window: Arc<dyn Disk> = Arc::new(Window::new(Arc::clone(&child), offset, size).unwrap());
    conformance::run(Arc::clone(&window));
    child.activate().unwrap();
    for at in edges {
        assert!(client.read(at, whole).iter().all(|byte| *byte == 9), "at {at}");
    }
    // Data, holes and the limit are those of the child at the offset.
    Client::new(&window).write(0, vec![7; 4096]);
    assert_eq!(client.read(offset, 4096), [7; 4096]);
    let same = |at, len| (window.extents(at, len, 3), child.extents(offset + at, len, 3));
    for (ours, theirs) in [same(0, size), same(1 << 20, 1 << 20), same(size - 4096, 4096)] {
        assert_eq!(ours.unwrap(), theirs.unwrap());
    }
}

#[test]
fn a_window_of_each_disk_conforms_and_touches_nothing_else() {
    let dir = dir();
    let path = image(dir.path(), SIZE);
    window_conforms(open(options(&path)));
    window_conforms(open(FileOptions { direct: true, ..options(&path) }));
    window_conforms(Arc::new(MemoryDisk::new(SIZE, 512, false).unwrap()));
    let outer = Arc::new(MemoryDisk::new(SIZE + (1 << 20), 512, false).unwrap());
    window_conforms(Arc::new(Window::new(outer, 1 << 19, SIZE).unwrap()));
}

#[test]
fn a_descriptor_is_opened_anew_for_what_it_allows() {
    let dir = dir();
    let path = image(dir.path(), SIZE);
    let file = |write| std::fs::File::options().read(true).write(write).open(&path).unwrap();
    let named = FileOptions { path: "fd:3".into(), ..options(&path) };
    let reader = FileOptions { read_only: true, ..named.clone() };
    let open = |options: &FileOptions, file: &std::fs::File, size| {
        FileDisk::reopen_fd(options.clone(), file.as_fd(), size)
    };
    let both = file(true);
    let disk: Arc<dyn Disk> = Arc::new(open(&named, &both, u64::MAX).unwrap());
    // Locks belong to the new open file: the descriptor's other holders are other users.
    disk.activate().unwrap();
    let error = open(&named, &both, u64::MAX).unwrap().activate().unwrap_err();
    assert!(error.to_string().starts_with("fd:3 is in use"), "{error}");
    Client::new(&disk).write(4096, vec![5; 4096]);
    let mut found = [0; 4096];
    both.read_exact_at(&mut found, 4096).unwrap();
    assert_eq!(found, [5; 4096]);
    assert_eq!(open(&named, &both, 4096).unwrap().geometry().size, 4096);
    assert!(open(&reader, &file(false), SIZE).unwrap().geometry().read_only);
    // The cache mode is that of the disk and changes nothing for other holders.
    open(&FileOptions { direct: true, ..named.clone() }, &both, SIZE).unwrap();
    assert!(!rustix::fs::fcntl_getfl(&both).unwrap().contains(rustix::fs::OFlags::DIRECT));

    let text = |options: &FileOptions, file: &std::fs::File| {
        open(options, file, SIZE).unwrap_err().to_string()
    };
    let refused = text(&named, &file(false));
    assert!(refused.starts_with("fd:3 is not open for writing"), "{refused}");
    assert!(refused.contains("read-only"), "{refused}");
    let write_only = std::fs::File::options().write(true).open(&path).unwrap();
    assert!(text(&reader, &write_only).contains("fd:3 is not open for reading"));
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    assert!(text(&reader, &pipe.into()).contains("fd:3 is a pipe"));
    let found = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
    assert!(text(&reader, &found.unwrap().into()).contains("not open for reading"));
    // A file without a name is opened as well.
    std::fs::remove_file(&path).unwrap();
    open(&named, &both, SIZE).unwrap();
}

#[test]
fn null_answers_everything() {
    let disk: Arc<dyn Disk> = Arc::new(NullDisk::new(SIZE, 512, false));
    let client = Client::new(&disk);
    for kind in [
        RequestKind::Read,
        RequestKind::Write { durable: true },
        RequestKind::Flush,
        RequestKind::Discard,
    ] {
        assert_eq!(client.run(kind, 0, 4096, vec![1; 4096]).0, Ok(()));
    }
}

#[test]
fn bad_images_are_refused_with_a_next_step() {
    let dir = dir();
    let path = dir.path().join("missing.raw");
    let text = |options: FileOptions| FileDisk::open(options).unwrap_err().to_string();
    assert!(text(options(&path)).contains("No such file"), "{}", text(options(&path)));
    assert!(text(options(dir.path())).contains("is a directory"));
    std::fs::write(&path, "").unwrap();
    assert!(text(options(&path)).contains("truncate"));
    std::fs::write(&path, vec![0; 1000]).unwrap();
    assert!(text(options(&path)).contains("1024"), "{}", text(options(&path)));
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from(0o600)).unwrap();
    assert!(text(options(&fifo)).contains("a pipe"));
    assert!(text(options(Path::new("/dev/null"))).contains("character device"));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
    let small = FileOptions { block_size: Some(4096), ..options(&path) };
    std::fs::File::options().write(true).open(&path).unwrap().set_len(8192 + 512).unwrap();
    assert!(text(small).contains("truncate -s 12288"));
}

#[test]
fn an_abandoned_channel_copies_nothing_and_starts_nothing() {
    let dir = dir();
    let path = image(dir.path(), SIZE);
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[1; 64 << 10], 0).unwrap();
    let disk = open(FileOptions { direct: true, ..options(&path) });
    disk.activate().unwrap();
    // Unaligned memory: the data goes through a bounce buffer.
    let read = Client::new(&disk).send_abandoned(RequestKind::Read, 0, &[7; 64 << 10], 1).wait();
    assert!(read.0.is_err() && read.1.iter().all(|byte| *byte == 7), "copied to a guest that left");
    // Larger than a bounce buffer: at most the first piece was in flight.
    let write = RequestKind::Write { durable: false };
    let len = 4 << 20;
    assert!(Client::new(&disk).send_abandoned(write, 0, &vec![9; len], 1).wait().0.is_err());
    let mut last = [9; 4096];
    file.read_exact_at(&mut last, len as u64 - 4096).unwrap();
    assert_eq!(last, [0; 4096], "the last piece was written");
    // The disk still works, and so do other channels.
    assert_eq!(Client::new(&disk).read(len as u64, 4096), [0; 4096]);
}

#[test]
fn two_writers_are_refused_and_readers_share() {
    let dir = dir();
    let path = image(dir.path(), SIZE);
    let reading = || open(FileOptions { read_only: true, ..options(&path) });
    let (first, second) = (open(options(&path)), open(options(&path)));
    first.activate().unwrap();
    assert!(matches!(second.activate(), Err(DiskError::Locked { .. })));
    assert!(matches!(reading().activate(), Err(DiskError::Locked { .. })));
    first.deactivate().unwrap();
    second.activate().unwrap();
    drop(second);
    let (a, b) = (reading(), reading());
    a.activate().unwrap();
    b.activate().unwrap();
    assert!(matches!(first.activate(), Err(DiskError::Locked { .. })));
}

#[test]
fn an_image_goes_on_in_another_process_without_a_moment_unlocked() {
    let dir = dir();
    let path = image(dir.path(), SIZE);
    let old = FileDisk::open(options(&path)).unwrap();
    let rival = open(options(&path));
    old.activate().unwrap();
    // Grown by another process: the guest knows the former size.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZE + 1000).unwrap();
    let (file, lost) = old.handover();
    let (file, lost) = (Arc::clone(file), lost);
    let twin = || file.try_clone().unwrap();
    let refused = FileDisk::adopt(options(&path), twin(), SIZE + 4096, false);
    assert!(matches!(refused, Err(DiskError::Shrunk { .. })));
    let no_file = std::os::unix::net::UnixStream::pair().unwrap().0.into();
    let refused = FileDisk::adopt(options(&path), no_file, SIZE, false);
    assert!(matches!(refused, Err(DiskError::WrongType { .. })));

    let new = FileDisk::adopt(options(&path), twin(), SIZE, lost).unwrap();
    assert_eq!(new.geometry(), old.geometry());
    new.activate().unwrap();
    // A process that ends runs no destructors.
    std::mem::forget(old);
    assert!(matches!(rival.activate(), Err(DiskError::Locked { .. })));
    new.deactivate().unwrap();
    rival.activate().unwrap();
    // A failed flush stays failed for every later user.
    let lost = FileDisk::adopt(options(&path), file.try_clone().unwrap(), SIZE, true).unwrap();
    assert!(lost.deactivate().is_err());
}

#[test]
fn a_file_grows_and_never_shrinks() {
    let dir = dir();
    let path = image(dir.path(), SIZE);
    let disk = open(options(&path));
    let inactive = disk.resize(Some(SIZE * 2)).unwrap_err().to_string();
    assert!(inactive.contains("activate"), "{inactive}");
    disk.activate().unwrap();
    assert!(matches!(disk.resize(Some(SIZE / 2)), Err(DiskError::Resize { .. })));
    assert!(matches!(disk.resize(Some(SIZE + 1)), Err(DiskError::Resize { .. })));
    assert_eq!(disk.resize(Some(SIZE * 2)).unwrap().size, SIZE * 2);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE * 2);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZE * 3).unwrap();
    assert_eq!(disk.resize(None).unwrap().size, SIZE * 3);
    disk.deactivate().unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZE).unwrap();
    assert!(matches!(disk.activate(), Err(DiskError::Shrunk { .. })));
}

#[test]
fn a_file_that_somebody_shrank_gives_errors_and_no_panic() {
    let dir = dir();
    let path = image(dir.path(), SIZE);
    let client = Client::new(&open(options(&path)));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let (outcome, _) = client.run(RequestKind::Read, 1 << 20, 4096, Vec::new());
    assert_eq!(outcome, Err(IoError::Short));
}

/// Small file system that can be filled, if the test may mount one.
pub(crate) struct Small {
    dir: tempfile::TempDir,
}

impl Small {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2m", "ringway-test"]).arg(dir.path());
        assert!(mount.status().unwrap().success(), "mounting a tmpfs needs root");
        Self { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg("-l").arg(self.dir.path()).status().ok();
    }
}

#[test]
fn full_storage_makes_writes_wait_until_there_is_room() {
    let small = Small::new();
    let path = image(small.dir.path(), SIZE);
    let ballast = small.dir.path().join("ballast");
    std::fs::write(&ballast, vec![1; 1536 << 10]).unwrap();
    let file = FileDisk::open(options(&path)).unwrap();
    let signal = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    file.room_waits().signal(signal.clone());
    let signals = || {
        let mut count = [0; 8];
        let read = rustix::io::read(&signal, &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    };
    let disk: Arc<dyn Disk> = Arc::new(file);
    let client = Client::new(&disk);
    let kind = RequestKind::Write { durable: false };
    let sent = client.send(kind, 0, 1 << 20, vec![9; 1 << 20], 0);
    assert!(sent.still_waits(Duration::from_millis(300)));
    assert_eq!((disk.stalled(), signals()), (1, 1));
    // Attempts in vain are no news.
    assert!(sent.still_waits(Duration::from_millis(1200)));
    assert_eq!((disk.stalled(), signals()), (1, 0));
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(sent.wait().0, Ok(()));
    assert_eq!((disk.stalled(), signals()), (0, 1));
    let mut back = vec![0; 1 << 20];
    std::fs::File::open(&path).unwrap().read_exact_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|byte| *byte == 9));
}

#[test]
fn full_storage_gives_an_error_when_that_was_asked_for_or_the_queue_stops() {
    let small = Small::new();
    let path = image(small.dir.path(), SIZE);
    let kind = RequestKind::Write { durable: false };
    let failing = Client::new(&open(FileOptions { on_full: OnFull::Error, ..options(&path) }));
    let (outcome, _) = failing.run(kind, 0, 4 << 20, vec![9; 4 << 20]);
    assert_eq!(outcome, Err(IoError::Full));
    let disk = open(options(&path));
    let waiting = Client::new(&disk);
    let sent = waiting.send(kind, 0, 4 << 20, vec![9; 4 << 20], 0);
    assert!(sent.still_waits(Duration::from_millis(300)));
    waiting.give_up();
    assert_eq!(sent.wait().0, Err(IoError::Full));
}

/// Returns the flushes that the loop device has seen: field 16 of its statistics.
fn flushes(device: &Loop) -> u64 {
    let name = device.path.file_name().unwrap().to_str().unwrap();
    let text = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    text.split_whitespace().nth(15).unwrap().parse().unwrap()
}

#[test]
fn flush_and_write_through_reach_the_device() {
    let dir = dir();
    let device = Loop::new(&image(dir.path(), SIZE));
    let client = Client::new(&open(options(&device.path)));
    client.write(0, vec![1; 4096]);
    let before = flushes(&device);
    assert_eq!(client.run(RequestKind::Flush, 0, 0, Vec::new()).0, Ok(()));
    let flushed = flushes(&device);
    assert!(flushed > before, "a flush is one for the device: {before}, {flushed}");
    let durable = RequestKind::Write { durable: true };
    assert_eq!(client.run(durable, 0, 4096, vec![2; 4096]).0, Ok(()));
    assert!(flushes(&device) > flushed, "a durable write is flushed");
}

#[test]
fn a_block_device_conforms() {
    let dir = dir();
    let path = image(dir.path(), SIZE);
    let device = Loop::new(&path);
    conformance::run(open(FileOptions { direct: true, ..options(&device.path) }));
}

/// Loop device over a file.
struct Loop {
    path: PathBuf,
}

impl Loop {
    fn new(image: &Path) -> Self {
        let mut losetup = std::process::Command::new("losetup");
        let found = losetup.args(["--find", "--show"]).arg(image).output().unwrap();
        assert!(found.status.success(), "losetup needs root and loop devices");
        Self { path: String::from_utf8(found.stdout).unwrap().trim().into() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        std::process::Command::new("losetup").arg("-d").arg(&self.path).status().ok();
    }
}

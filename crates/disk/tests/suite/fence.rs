//! Tests that I/O of a killed process never lands after that of its successor.
//!
//! The hazard is shown first, without the fence. The block layer delays a request, and its process
//! is killed. A successor completes a write to the same range, and then the dead process's request
//! lands on top. With the fence it never does.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed helper is a failed test.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use disk::conformance::Client;
use disk::{Disk, DiskError, FileDisk, FileOptions, OnFull, RequestKind, fence_byte};
use memory::Mapping;
use testkit::storage::Stalling;

/// Environment variable with the task of the child process.
const ROLE: &str = "RINGWAY_FENCE_TEST";
const LENGTH: u64 = 16 << 10;

fn disk(path: &Path, read_only: bool, fenced: bool) -> FileDisk {
    let options = FileOptions {
        path: path.into(),
        read_only,
        direct: true,
        block_size: None,
        on_full: OnFull::Wait,
    };
    let disk = FileDisk::open(options).unwrap();
    if fenced { disk.fenced(fence_byte("disk", b"/run/d.sock")) } else { disk }
}

/// Body of the process that dies, not a test: begins a request that takes long and reports it.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split(' ');
    let mut next = || words.next().unwrap().to_owned();
    let (kind, path, memory, group) = (next(), next(), next(), next());
    std::fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(disk(Path::new(&path), kind == "read", true));
    disk.wait_fence().unwrap();
    disk.activate().unwrap();
    let client = Client::new(&disk);
    let file = std::fs::File::options().read(true).write(true).open(&memory).unwrap();
    let mapping = Arc::new(Mapping::file(file.as_fd(), LENGTH).unwrap());
    let kind =
        if kind == "read" { RequestKind::Read } else { RequestKind::Write { durable: false } };
    let _under_way = client.send_mapping(kind, 0, mapping);
    // Two round trips through the reactor: by then the kernel has the request.
    client.barrier();
    client.barrier();
    println!("\nsubmitted");
    std::io::stdout().flush().unwrap();
    std::thread::park();
}

/// Device that stalls, and memory that two processes share.
struct Bench {
    device: Stalling,
    dir: tempfile::TempDir,
}

impl Bench {
    /// Returns `None` if this host is known to have no block layer that can be stalled.
    fn new() -> Option<Self> {
        let device = Stalling::new(1 << 20, 0xcc).unwrap()?;
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::write(dir.path().join("memory"), vec![0xaa; LENGTH as usize]).unwrap();
        Some(Self { device, dir })
    }

    fn memory(&self) -> PathBuf {
        self.dir.path().join("memory")
    }

    fn disk(&self, read_only: bool, fenced: bool) -> FileDisk {
        disk(self.device.device(), read_only, fenced)
    }

    /// Runs a process that dies with a request in flight, which stays in the kernel.
    fn crash(&self, kind: &str) {
        self.device.hang().unwrap();
        let role = format!(
            "{kind} {} {} {}",
            self.device.device().display(),
            self.memory().display(),
            self.device.group().display()
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fence::child", "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let submitted = out.lines().any(|line| line.unwrap() == "submitted");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(submitted, "the child failed");
    }

    /// Checks that a successor waits for the dead process's request, and for nothing after it.
    fn let_in(&self, successor: &Arc<FileDisk>) {
        let early = successor.activate().unwrap_err();
        assert!(matches!(early, DiskError::Fenced { .. }), "{early}");
        let (done_tx, done_rx) = std::sync::mpsc::channel();
        let waits = Arc::clone(successor);
        let waiting = std::thread::spawn(move || {
            waits.wait_fence().unwrap();
            done_tx.send(()).unwrap();
        });
        let early = done_rx.recv_timeout(Duration::from_millis(100));
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "the kernel still has a request");
        self.device.answer().unwrap();
        waiting.join().unwrap();
        successor.activate().unwrap();
    }

    /// Lets the kernel complete all requests of the dead process, and waits until it has.
    fn settle(&self) {
        self.device.answer().unwrap();
        self.disk(false, true).wait_fence().unwrap();
    }
}

/// Returns the final data on the disk, after a successor has written `0xbb` over the request of the
/// dead process.
fn written_last(bench: &Bench, fenced: bool) -> Vec<u8> {
    bench.crash("write");
    let successor = Arc::new(bench.disk(false, fenced));
    if fenced {
        bench.let_in(&successor);
    }
    let successor: Arc<dyn Disk> = successor;
    let client = Client::new(&successor);
    client.write(0, vec![0xbb; LENGTH as usize]);
    drop(client);
    drop(successor);
    bench.settle();
    let (outcome, data) = Client::new(&(Arc::new(bench.disk(true, false)) as _)).run(
        RequestKind::Read,
        0,
        LENGTH,
        Vec::new(),
    );
    outcome.unwrap();
    data
}

#[test]
fn a_late_write_never_lands_on_a_successors() {
    let Some(bench) = Bench::new() else { return };
    let without = written_last(&bench, false);
    assert!(without.contains(&0xaa), "the hazard is real: the dead process has the last word");
    let with = written_last(&bench, true);
    assert!(with.iter().all(|byte| *byte == 0xbb), "the successor has the last word");
}

/// Returns the final data in the guest's memory, which was reused as soon as a successor was ready.
fn remembered(bench: &Bench, fenced: bool) -> Vec<u8> {
    bench.crash("read");
    // Read-only disk: it waits by polling.
    let successor = Arc::new(bench.disk(true, fenced));
    if fenced {
        bench.let_in(&successor);
    }
    // The same pages with new contents.
    let memory = std::fs::File::options().write(true).open(bench.memory()).unwrap();
    memory.write_all_at(&[0xdd; LENGTH as usize], 0).unwrap();
    drop(successor);
    bench.settle();
    std::fs::read(bench.memory()).unwrap()
}

#[test]
fn a_late_read_never_lands_in_memory_that_is_used_again() {
    let Some(bench) = Bench::new() else { return };
    let without = remembered(&bench, false);
    assert!(without.contains(&0xcc), "the hazard is real: the guest's memory changes later");
    let with = remembered(&bench, true);
    assert!(with.iter().all(|byte| *byte == 0xdd), "nothing touches it any more");
}

#[test]
fn only_successors_wait_for_each_other() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, [0; 4096]).unwrap();
    let options = |read_only| FileOptions {
        path: path.clone(),
        read_only,
        direct: false,
        block_size: None,
        on_full: OnFull::Wait,
    };
    let open = |id| FileDisk::open(options(true)).unwrap().fenced(fence_byte(id, b"/s"));
    let (a, b, twin) = (open("a"), open("b"), open("a"));
    a.activate().unwrap();
    a.activate().unwrap();
    // Another reader of the same image, served elsewhere.
    b.wait_fence().unwrap();
    b.activate().unwrap();
    assert!(matches!(twin.activate(), Err(DiskError::Fenced { .. })));
    a.deactivate().unwrap();
    twin.wait_fence().unwrap();
    twin.activate().unwrap();
    drop((a, b, twin));
    // A writer sleeps until its predecessor has gone.
    let writer = || FileDisk::open(options(false)).unwrap().fenced(fence_byte("w", b"/s"));
    let (first, second) = (writer(), Arc::new(writer()));
    first.activate().unwrap();
    let waits = Arc::clone(&second);
    let waiting = std::thread::spawn(move || waits.wait_fence());
    assert!(matches!(second.activate(), Err(DiskError::Fenced { .. })));
    drop(first);
    waiting.join().unwrap().unwrap();
    second.activate().unwrap();
}

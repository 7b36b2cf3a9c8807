//! I/O of a process that was killed never lands after that of its successor.
//!
//! The hazard is shown first, without the fence: a request waits in a throttled control group's
//! part of the block layer, its process is killed, a successor writes to the same place and is
//! done, and then the dead process's request lands on top. With the fence it never does.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed helper is a failed test.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use disk::conformance::Client;
use disk::{Disk, DiskError, FileDisk, FileOptions, Kind, OnFull, fence_byte};
use memory::Mapping;

/// What the child is to do, in its environment.
const ROLE: &str = "RINGWAY_FENCE_TEST";
/// Set to 1 it allows to leave out what needs slow storage.
const ALLOWED: &str = "RINGWAY_NO_BLKIO";
const LENGTH: u64 = 16 << 10;
/// Bytes a second of the throttled group: a request of [`LENGTH`] takes two seconds.
const RATE: u64 = 8 << 10;

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

/// Not a test: the process that dies. It begins a request that takes long and says so.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split(' ');
    let mut next = || words.next().unwrap().to_owned();
    let (kind, path, memory, group) = (next(), next(), next(), next());
    std::fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(disk(Path::new(&path), kind == "read", true));
    disk.await_predecessor().unwrap();
    disk.activate().unwrap();
    let client = Client::new(&disk);
    let file = std::fs::File::options().read(true).write(true).open(&memory).unwrap();
    let mapping = Arc::new(Mapping::file(file.as_fd(), LENGTH).unwrap());
    let kind = if kind == "read" { Kind::Read } else { Kind::Write { durable: false } };
    let _under_way = client.send_mapping(kind, 0, mapping);
    // Two round trips through the reactor: by then the kernel has the request.
    client.barrier();
    client.barrier();
    println!("\nsubmitted");
    std::io::stdout().flush().unwrap();
    std::thread::park();
}

/// A loop device, a throttled group for it, and memory that two processes share.
struct Bench {
    device: PathBuf,
    group: PathBuf,
    dir: tempfile::TempDir,
}

impl Bench {
    /// `None`: this host has no block layer that could be told to be slow, and [`ALLOWED`] says
    /// that this is known.
    fn new(what: &str) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup/blkio");
        if !root.join("blkio.throttle.write_bps_device").exists() {
            let allowed = std::env::var_os(ALLOWED).is_some_and(|value| value == "1");
            assert!(
                allowed,
                "needs root and the blkio controller of control groups, version 1, mounted at {}; \
                 on a host without it {ALLOWED}=1 leaves this out",
                root.display()
            );
            eprintln!("left out, as {ALLOWED} allows: nothing shows that the fence holds");
            return None;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, vec![0xcc; 1 << 20]).unwrap();
        std::fs::write(dir.path().join("memory"), vec![0xaa; LENGTH as usize]).unwrap();
        let mut losetup = Command::new("losetup");
        let found = losetup.args(["--find", "--show"]).arg(&image).output().unwrap();
        assert!(found.status.success(), "losetup needs root and loop devices");
        let device = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim());
        let group = root.join(format!("ringway-{what}-{}", std::process::id()));
        std::fs::create_dir(&group).unwrap();
        let number = device.metadata().unwrap().rdev();
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        for limit in ["write", "read"] {
            let file = group.join(format!("blkio.throttle.{limit}_bps_device"));
            std::fs::write(file, format!("{number} {RATE}")).unwrap();
        }
        Some(Self { device, group, dir })
    }

    fn memory(&self) -> PathBuf {
        self.dir.path().join("memory")
    }

    /// A process that dies with a request under way.
    fn crash(&self, kind: &str) {
        let role = format!(
            "{kind} {} {} {}",
            self.device.display(),
            self.memory().display(),
            self.group.display()
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let submitted = out.lines().any(|line| line.unwrap() == "submitted");
        let kill = |child: &mut Child| {
            child.kill().unwrap();
            child.wait().unwrap();
        };
        kill(&mut child);
        assert!(submitted, "the child failed");
    }

    /// Waits until the kernel has ended all that the dead process began.
    fn settle(&self) {
        disk(&self.device, false, true).await_predecessor().unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        Command::new("losetup").arg("-d").arg(&self.device).status().ok();
        std::fs::remove_dir(&self.group).ok();
    }
}

/// What is on the disk at the end, when a successor has written `0xbb` over the request of the
/// dead process.
fn written_last(bench: &Bench, fenced: bool) -> Vec<u8> {
    bench.crash("write");
    let successor: Arc<dyn Disk> = Arc::new(disk(&bench.device, false, fenced));
    if fenced {
        let early = successor.activate().unwrap_err();
        assert!(matches!(early, DiskError::Fenced { .. }), "{early}");
        successor.await_predecessor().unwrap();
        successor.activate().unwrap();
    }
    let client = Client::new(&successor);
    client.write(0, vec![0xbb; LENGTH as usize]);
    drop(client);
    drop(successor);
    bench.settle();
    let (outcome, data) = Client::new(&(Arc::new(disk(&bench.device, true, false)) as _)).run(
        Kind::Read,
        0,
        LENGTH,
        Vec::new(),
    );
    outcome.unwrap();
    data
}

#[test]
fn a_late_write_never_lands_on_a_successors() {
    let Some(bench) = Bench::new("write") else { return };
    let without = written_last(&bench, false);
    assert!(without.contains(&0xaa), "the hazard is real: the dead process has the last word");
    let with = written_last(&bench, true);
    assert!(with.iter().all(|byte| *byte == 0xbb), "the successor has the last word");
}

/// What is in the guest's memory at the end, when it was used for something else as soon as a
/// successor was there.
fn remembered(bench: &Bench, fenced: bool) -> Vec<u8> {
    bench.crash("read");
    // A disk that may not be written: it waits in another way.
    let successor = disk(&bench.device, true, fenced);
    if fenced {
        assert!(matches!(successor.activate(), Err(DiskError::Fenced { .. })));
        successor.await_predecessor().unwrap();
        successor.activate().unwrap();
    }
    // The same pages, written anew.
    let memory = std::fs::File::options().write(true).open(bench.memory()).unwrap();
    memory.write_all_at(&[0xdd; LENGTH as usize], 0).unwrap();
    drop(successor);
    bench.settle();
    std::fs::read(bench.memory()).unwrap()
}

#[test]
fn a_late_read_never_lands_in_memory_that_is_used_again() {
    let Some(bench) = Bench::new("read") else { return };
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
    b.await_predecessor().unwrap();
    b.activate().unwrap();
    assert!(matches!(twin.activate(), Err(DiskError::Fenced { .. })));
    a.deactivate().unwrap();
    twin.await_predecessor().unwrap();
    twin.activate().unwrap();
    drop((a, b, twin));
    // One that writes sleeps until its predecessor has gone.
    let writer = || FileDisk::open(options(false)).unwrap().fenced(fence_byte("w", b"/s"));
    let (first, second) = (writer(), Arc::new(writer()));
    first.activate().unwrap();
    let waits = Arc::clone(&second);
    let waiting = std::thread::spawn(move || waits.await_predecessor());
    assert!(matches!(second.activate(), Err(DiskError::Fenced { .. })));
    drop(first);
    waiting.join().unwrap().unwrap();
    second.activate().unwrap();
}

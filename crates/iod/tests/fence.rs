//! A new worker and the I/O of the one that was killed: it waits, and only that disk does.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::*;
use serde_json::json;
use tempfile::TempDir;
use testkit::raw::guest::Event;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

/// Bytes a second of the slow device: the request of 16 KiB takes four seconds.
const RATE: u64 = 4 << 10;

/// Set to 1 it allows to leave out what needs slow storage.
const ALLOWED: &str = "RINGWAY_NO_BLKIO";

/// A loop device that is slow for those in a control group.
struct Slow {
    device: PathBuf,
    group: PathBuf,
    _dir: TempDir,
}

impl Slow {
    /// `None`: this host has no block layer that could be told to be slow, and [`ALLOWED`] says
    /// that this is known.
    fn new(name: &str) -> Option<Self> {
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
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let found =
            Command::new("losetup").args(["--find", "--show"]).arg(&image).output().unwrap();
        assert!(found.status.success(), "losetup needs root and loop devices");
        let device = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim());
        let group = root.join(format!("ringway-{name}-{}", std::process::id()));
        std::fs::create_dir(&group).unwrap();
        let number = device.metadata().unwrap().rdev();
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        let limit = group.join("blkio.throttle.write_bps_device");
        std::fs::write(limit, format!("{number} {RATE}")).unwrap();
        Some(Self { device, group, _dir: dir })
    }

    /// All threads of a process are in the group from here on.
    fn slow_down(&self, pid: u32) {
        std::fs::write(self.group.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        Command::new("losetup").arg("-d").arg(&self.device).status().ok();
        std::fs::remove_dir(&self.group).ok();
    }
}

/// A worker that died with a write of `0xaa` under way, and one beside it that is well.
fn crashed(slow: &Slow) -> Io {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("slow", json!({"file": slow.device})));
    caller.disk("disk.attach", io.spec("well", json!({"memory": 1 << 20})));
    let worker = io.process.worker().unwrap().unwrap();
    slow.slow_down(worker.id());
    let mut guest = Guest::start(&io.socket("slow"), &Setup::default()).unwrap();
    let _lost = guest.submit(0, &Request::write(0, &[0xaa; 16 << 10])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(200)).unwrap(), Event::Silent, "it is slow");
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    io
}

fn fence(caller: &mut Caller) -> Option<f64> {
    let disks = caller.stats().disks;
    let disk = disks.into_iter().find(|disk| disk.id == "slow").unwrap();
    disk.fence.map(|fence| fence.since_seconds)
}

#[test]
fn a_successor_waits_and_has_the_last_word() {
    let Some(slow) = Slow::new("last-word") else { return };
    let io = crashed(&slow);
    let mut caller = io.caller();
    eventually("it waits, and says so", || fence(&mut caller).is_some_and(|since| since > 0.0));
    // The others are served meanwhile.
    let mut well = Guest::start(&io.socket("well"), &Setup::default()).unwrap();
    assert_eq!(well.run(0, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    // Its guest connects at once and waits in the backlog.
    let mut guest = Guest::start(&io.socket("slow"), &Setup::default()).unwrap();
    assert!(fence(&mut caller).is_none(), "let in when the wait was over");
    assert_eq!(guest.run(0, &Request::write(0, &[0xbb; 16 << 10])).unwrap().status, status::OK);
    drop((guest, caller));
    drop(io);
    let mut last = vec![0; 16 << 10];
    std::fs::File::open(&slow.device).unwrap().read_exact_at(&mut last, 0).unwrap();
    assert!(last.iter().all(|byte| *byte == 0xbb));
}

#[test]
fn a_disk_that_waits_can_be_detached_and_the_process_ended() {
    let Some(slow) = Slow::new("detach") else { return };
    let mut io = crashed(&slow);
    let mut caller = io.caller();
    eventually("it waits", || fence(&mut caller).is_some());
    caller.call("disk.detach", json!({"id": "slow"})).unwrap();
    assert_eq!(caller.stats().disks.len(), 1, "detached at once");
    // Attached anew it meets the same I/O.
    let mut second = io.caller();
    let spec = io.spec("slow", json!({"file": slow.device}));
    let attaching = std::thread::spawn(move || second.call("disk.attach", spec));
    eventually("it waits again", || caller.stats().disks.iter().any(|disk| disk.fence.is_some()));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    let refused = attaching.join().unwrap().unwrap_err();
    assert!(refused.message.contains("gave up waiting"), "{refused}");
    assert_eq!(names(&io.folder), [""; 0]);
}

/// Threads of a process that wait for a fence.
fn waiters(pid: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    };
    threads.filter_map(name).filter(|name| name.trim() == "fence").count()
}

#[test]
fn attempts_while_the_fence_is_held_leave_one_waiter() {
    let Some(slow) = Slow::new("waiters") else { return };
    let io = crashed(&slow);
    let mut caller = io.caller();
    eventually("it waits", || fence(&mut caller).is_some());
    caller.call("disk.detach", json!({"id": "slow"})).unwrap();
    let worker = io.process.worker().unwrap().unwrap().id();
    let former = waiters(worker);
    let mut spec = io.spec("slow", json!({"file": slow.device}));
    spec["activate"] = json!(false);
    spec["stop_deadline_ms"] = json!(400);
    caller.disk("disk.attach", spec);
    let id = json!({"id": "slow"});
    for _ in 0..3 {
        let refused = caller.call("disk.activate", id.clone()).unwrap_err();
        assert!(refused.message.contains("cannot be served yet"), "{refused}");
        assert_eq!(waiters(worker), former + 1);
    }
    eventually("the fence is open", || waiters(worker) == 0);
    // What came when nobody waited is not kept, and the next attempt has it at once.
    assert_eq!(caller.disk("disk.activate", id).state, model::report::DiskState::Active);
}

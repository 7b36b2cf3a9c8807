//! A new worker and the I/O of a killed one: the new worker waits, and only for that disk.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::common::*;
use serde_json::json;
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::storage::Stalling;

/// Returns a block device that can be stalled. `None` if this host has no such block layer, which
/// is known.
fn stalling() -> Option<Stalling> {
    Stalling::new(1 << 20, 0).unwrap()
}

/// Kills a worker with a write of `0xaa` in flight, beside another disk without problems.
fn crashed(slow: &Stalling) -> Io {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("slow", json!({"file": slow.device()})));
    caller.disk("disk.attach", io.spec("well", json!({"memory": 1 << 20})));
    let worker = io.process.worker().unwrap().unwrap();
    slow.enclose(worker.id()).unwrap();
    slow.hang().unwrap();
    let mut guest = Guest::start(&io.socket("slow"), &Setup::default()).unwrap();
    let _lost = guest.submit(0, &Request::write(0, &[0xaa; 16 << 10])).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(200)).unwrap(), WaitEvent::Silent, "it hangs");
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
    let Some(slow) = stalling() else { return };
    let io = crashed(&slow);
    let mut caller = io.caller();
    eventually("it waits, and says so", || fence(&mut caller).is_some_and(|since| since > 0.0));
    // The other disks are served meanwhile.
    let mut well = Guest::start(&io.socket("well"), &Setup::default()).unwrap();
    assert_eq!(well.run(0, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    // Its guest connects at once and waits in the backlog.
    let socket = io.socket("slow");
    let connecting = std::thread::spawn(move || Guest::start(&socket, &Setup::default()).unwrap());
    assert!(fence(&mut caller).is_some(), "it waits as long as the storage has the write");
    slow.answer().unwrap();
    let mut guest = connecting.join().unwrap();
    assert!(fence(&mut caller).is_none(), "let in when the wait was over");
    assert_eq!(guest.run(0, &Request::write(0, &[0xbb; 16 << 10])).unwrap().status, status::OK);
    drop((guest, caller));
    drop(io);
    let mut last = vec![0; 16 << 10];
    std::fs::File::open(slow.device()).unwrap().read_exact_at(&mut last, 0).unwrap();
    assert!(last.iter().all(|byte| *byte == 0xbb));
}

#[test]
fn a_disk_that_waits_can_be_detached_and_the_process_ended() {
    let Some(slow) = stalling() else { return };
    let mut io = crashed(&slow);
    let mut caller = io.caller();
    eventually("it waits", || fence(&mut caller).is_some());
    caller.call("disk.detach", json!({"id": "slow"})).unwrap();
    assert_eq!(caller.stats().disks.len(), 1, "detached at once");
    // A new attach waits for the same I/O.
    let mut second = io.caller();
    let spec = io.spec("slow", json!({"file": slow.device()}));
    let attaching = std::thread::spawn(move || second.call("disk.attach", spec));
    eventually("it waits again", || caller.stats().disks.iter().any(|disk| disk.fence.is_some()));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    let refused = attaching.join().unwrap().unwrap_err();
    assert!(refused.message.contains("cancelled the wait"), "{refused}");
    assert_eq!(names(&io.folder), [""; 0]);
}

/// Counts the threads of a process that wait for a fence.
fn waiters(pid: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    };
    threads.filter_map(name).filter(|name| name.trim() == "fence").count()
}

#[test]
fn attempts_while_the_fence_is_held_leave_one_waiter() {
    let Some(slow) = stalling() else { return };
    let io = crashed(&slow);
    let mut caller = io.caller();
    eventually("it waits", || fence(&mut caller).is_some());
    caller.call("disk.detach", json!({"id": "slow"})).unwrap();
    let worker = io.process.worker().unwrap().unwrap().id();
    let former = waiters(worker);
    let mut spec = io.spec("slow", json!({"file": slow.device()}));
    spec["activate"] = json!(false);
    spec["stop_deadline_ms"] = json!(400);
    caller.disk("disk.attach", spec);
    let id = json!({"id": "slow"});
    for _ in 0..3 {
        let refused = caller.call("disk.activate", id.clone()).unwrap_err();
        assert!(refused.message.contains("cannot be served yet"), "{refused}");
        assert_eq!(waiters(worker), former + 1);
    }
    slow.answer().unwrap();
    eventually("the fence is open", || waiters(worker) == 0);
    // An outcome without waiting activation is dropped, and the next attempt gets the fence at
    // once.
    assert_eq!(caller.disk("disk.activate", id).state, model::report::DiskState::Active);
}

#[test]
fn attaches_and_retries_behind_a_fence_leave_one_waiter() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = image(&folder, "image", 1 << 20);
    let io = Io::start();
    let mut spec = io.spec("d", json!({"file": image}));
    spec["stop_deadline_ms"] = json!(100);
    spec["cache"] = json!("writeback");
    // A killed process with requests in flight has the image open like this.
    let former = serde_json::from_value(spec.clone()).unwrap();
    let former = iod::open_disk::open(&former, Default::default()).unwrap();
    former.disk.activate().unwrap();
    let mut caller = io.caller();
    let worker = io.process.worker().unwrap().unwrap().id();
    let mut files = None;
    for _ in 0..4 {
        let refused = caller.call("disk.attach", spec.clone()).unwrap_err();
        assert!(refused.message.contains("cannot be served yet"), "{refused}");
        assert_eq!(waiters(worker), 1);
        let now = std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count();
        assert!(*files.get_or_insert(now) >= now, "{files:?} and then {now}");
    }
    former.disk.deactivate().unwrap();
    eventually("nobody waits", || waiters(worker) == 0);
    assert_eq!(caller.disk("disk.attach", spec).state, model::report::DiskState::Active);
}

//! Disks that share one storage by their weights.

use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::caps::{BYTES, QUEUES, Storm};
use crate::common::sectors::{connect, read, write};
use crate::common::*;
use model::calibration::{PROFILE_FILE, ProfileReply};
use model::report::{DiskState, DiskStats, Stats};
use model::share::DiskShare;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::rounds;
use testkit::storage::store_profile;

pub(crate) fn attach(io: &Io, caller: &mut Caller, id: &str, share: Value) {
    let path = io.folder.path().join(format!("{id}.raw"));
    std::fs::write(&path, vec![1; BYTES as usize]).unwrap();
    let mut spec = io.spec(id, json!({ "file": path }));
    (spec["queues"], spec["share"]) = (json!(QUEUES), share);
    caller.disk("disk.attach", spec);
}

/// Stores a profile of the storage of the folder.
pub(crate) fn store(io: &Io) {
    let folder = io.folder.path();
    let device = calibrate::identity(std::fs::metadata(folder).unwrap().dev());
    store_profile(folder, device).unwrap();
}

/// Stores a profile with a change.
pub(crate) fn store_changed(io: &Io, change: impl FnOnce(&mut Value)) {
    store(io);
    let path = io.folder.path().join(PROFILE_FILE);
    let mut profile = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut profile);
    std::fs::write(path, profile.to_string()).unwrap();
}

pub(crate) fn use_profile(io: &Io, caller: &mut Caller) -> ProfileReply {
    let reply = caller.call("storage.profile", json!({ "path": io.folder.path() })).unwrap();
    serde_json::from_value(reply).unwrap()
}

pub(crate) fn stats(caller: &mut Caller, id: &str) -> DiskStats {
    let stats = caller.call("stats", json!({ "id": id })).unwrap();
    let stats: Stats = serde_json::from_value(stats).unwrap();
    stats.disks.into_iter().next().unwrap()
}

/// Waits until the second storm completes this many requests for each of the first one. Weights
/// decide only while requests wait for the storage, and a busy host may have no CPU for them.
pub(crate) fn wait_for_ratio(storms: [&Storm; 2], expected: Range<f64>) {
    let mut found = Vec::new();
    let mut is_so = || {
        let before = storms.map(Storm::requests);
        std::thread::sleep(Duration::from_secs(rounds(1, 10) as u64));
        let [one, other] = [0, 1].map(|at| (storms[at].requests() - before[at]) as f64);
        found.push(other / one);
        expected.contains(&(other / one))
    };
    assert!((0..30).any(|_| is_so()), "{found:?} is never in {expected:?}");
}

#[test]
fn disks_share_a_storage_by_their_weights() {
    // Queues of one disk on one reactor, and on several.
    ["1", "2"].into_iter().for_each(disks_share_a_storage);
}

fn disks_share_a_storage(reactors: &str) {
    let io = Io::start_with(&["--reactors", reactors]);
    let mut caller = io.caller();
    let live = reactors == "2";
    if !live {
        store(&io);
    }
    attach(&io, &mut caller, "light", Value::Null);
    attach(&io, &mut caller, "heavy", json!({"weight": 400}));
    let storms = ["light", "heavy"].map(|id| Storm::start(&io, id, 4096));
    if live {
        // Guests run, and do not notice.
        assert_eq!(use_profile(&io, &mut caller), ProfileReply::default());
        assert_eq!(stats(&mut caller, "heavy").share, None);
        store(&io);
        let used = use_profile(&io, &mut caller);
        assert_eq!(used.disks, ["heavy", "light"]);
        assert!(used.profile.is_some() && used.notes.is_empty(), "{used:?}");
    }
    wait_for_ratio([&storms[0], &storms[1]], 3.0..5.0);
    let heavy = stats(&mut caller, "heavy").share.unwrap();
    assert_eq!(heavy.share, DiskShare { weight: 400, ..DiskShare::default() });
    assert!(heavy.waited_seconds > 0.0 && heavy.waiting > 10, "{heavy:?}");
    // High latency on a busy host makes it half of the knee at least.
    assert!((5e-5..=1e-4).contains(&heavy.depth_seconds) && heavy.in_flight > 0, "{heavy:?}");
    if live {
        // A profile of another depth.
        store_changed(&io, |profile| profile["knee_ns"] = json!(40_000));
        assert_eq!(use_profile(&io, &mut caller).disks, ["heavy", "light"]);
        let depth = stats(&mut caller, "light").share.unwrap().depth_seconds;
        assert!((2e-5..=4e-5).contains(&depth), "{depth}");
    }
    caller.disk("disk.weight", json!({"id": "light", "weight": 400}));
    wait_for_ratio([&storms[0], &storms[1]], 0.8..1.25);
    for storm in storms {
        storm.end();
    }
}

#[test]
fn disks_of_one_model_share_it_and_keep_their_bytes() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let model = |name: &str, profile: bool| {
        json!({"model": {"name": name, "size": 1 << 20, "profile": profile,
                         "device": {"pipe": {"latency_ns": 50_000}}}})
    };
    for (id, name) in [("a", "array"), ("b", "array"), ("c", "other")] {
        caller.disk("disk.attach", io.spec(id, model(name, id != "c")));
    }
    let refused = caller.call("disk.attach", io.spec("d", model("array", false))).unwrap_err();
    assert!(refused.message.contains("the model array"), "{refused:?}");
    for (id, sector, byte) in [("a", 7, 1), ("b", 7, 2), ("c", 2047, 3)] {
        write(&mut connect(&io.socket(id)), sector, byte);
        assert_eq!(read(&mut connect(&io.socket(id)), sector), byte);
    }
    caller.disk("disk.weight", json!({"id": "a", "weight": 400}));
    assert_eq!(stats(&mut caller, "a").share.unwrap().share.weight, 400);
    assert!(stats(&mut caller, "c").share.is_none());
    caller.disk("disk.resize", json!({"id": "b", "size": 2 << 20}));
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    for (id, sector, byte) in [("a", 7, 1), ("b", 7, 2), ("b", 4000, 0), ("c", 2047, 3)] {
        assert_eq!(read(&mut connect(&io.socket(id)), sector), byte, "{id}");
    }
    assert_eq!(stats(&mut io.caller(), "a").share.unwrap().share.weight, 400);
}

/// Load of another program: takes the CPUs from a process for most of the time, until it is dropped.
struct Stalls {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stalls {
    fn start(pid: u32) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (stopped, pid) = (Arc::clone(&stop), Pid::from_raw(pid.cast_signed()).unwrap());
        let stall = move || {
            while !stopped.load(Ordering::Relaxed) {
                kill_process(pid, Signal::STOP).unwrap();
                std::thread::sleep(Duration::from_millis(8));
                kill_process(pid, Signal::CONT).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        Self { stop, thread: Some(std::thread::spawn(stall)) }
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn weights_hold_while_reactors_stall() {
    for reactors in ["1", "2"] {
        let io = Io::start_with(&["--reactors", reactors]);
        let mut caller = io.caller();
        // 32 requests at a time. All end while the process has no CPU.
        let pipe = json!({"bytes_per_second": 100_000_000_000_u64, "request_ns": 1, "queue": 32,
                          "latency_ns": 2_000_000,
                          "connection_bytes_per_second": 100_000_000_000_u64});
        for (id, weight) in [("light", 100), ("heavy", 700)] {
            let device = json!({ "pipe": pipe });
            let model = json!({"name": "array", "size": BYTES, "device": device});
            let mut spec = io.spec(id, json!({ "model": model }));
            spec["share"] = json!({ "weight": weight });
            caller.disk("disk.attach", spec);
        }
        let storms = ["light", "heavy"].map(|id| Storm::start_on(&io, id, 4096, 1));
        let stalls = Stalls::start(io.process.worker_pid().unwrap().unwrap());
        wait_for_ratio([&storms[0], &storms[1]], 6.0..8.0);
        drop(stalls);
        for storm in storms {
            storm.end();
        }
    }
}

#[test]
fn a_profile_that_does_not_fit_is_not_used_and_says_so() {
    let io = Io::start();
    let mut caller = io.caller();
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 3] = [
        (|profile| profile["device"]["name"] = json!("sdz"), "another device"),
        (|profile| profile["device"]["rotational"] = Value::Null, "the device has changed"),
        (|profile| profile["knee_ns"] = json!(0), "knee is 0, allowed are"),
    ];
    for (change, told) in changes {
        store_changed(&io, change);
        let used = use_profile(&io, &mut caller);
        assert!(used.profile.is_none() && used.disks.is_empty(), "{used:?}");
        assert!(used.notes[0].contains(told) && used.notes[0].contains("--store"), "{used:?}");
    }
    // An attach works, and says the same.
    let path = io.folder.path().join("d.raw");
    std::fs::write(&path, vec![1; BYTES as usize]).unwrap();
    let reply = caller.call("disk.attach", io.spec("d", json!({ "file": path }))).unwrap();
    assert!(reply["notes"][0].as_str().unwrap().contains("allowed are"), "{reply}");
    assert_eq!(stats(&mut caller, "d").share, None);
    let set = caller.call("disk.weight", json!({"id": "d", "weight": 7})).unwrap();
    assert!(set["notes"][0].as_str().unwrap().contains("was not measured"), "{set}");
    // The right one joins the disk.
    store(&io);
    assert_eq!(use_profile(&io, &mut caller).disks, ["d"]);
    let set = caller.call("disk.weight", json!({"id": "d", "weight": 7})).unwrap();
    assert!(set["notes"].is_null(), "{set}");
    for (weight, fine) in [(0, false), (1, true), (1000, true), (1001, false), (u64::MAX, false)] {
        let set = caller.call("disk.weight", json!({"id": "d", "weight": weight}));
        assert_eq!(set.is_ok(), fine, "{weight}: {set:?}");
    }
    assert_eq!(stats(&mut caller, "d").share.unwrap().share.weight, 1000);
}

#[test]
fn a_weight_survives_a_kill_and_an_upgrade() {
    let mut io = Io::start();
    store(&io);
    let mut caller = io.caller();
    attach(&io, &mut caller, "d", json!({"weight": 400}));
    attach(&io, &mut caller, "e", json!({"floor_iops": 50}));
    caller.disk("disk.weight", json!({"id": "d", "weight": 7, "floor_bytes": 4096}));
    let expected = [
        DiskShare { weight: 7, floor_bytes: Some(4096), ..DiskShare::default() },
        DiskShare { floor_iops: Some(50), ..DiskShare::default() },
    ];
    let shares = |caller: &mut Caller| ["d", "e"].map(|id| stats(caller, id).share.unwrap().share);
    for _ in 0..2 {
        caller.call("upgrade", Value::Null).unwrap();
        caller = io.caller();
        assert_eq!(shares(&mut caller), expected, "after an upgrade");
        let serves = caller.stats().pid;
        eventually("one worker", || io.process.worker_pid().unwrap() == Some(serves));
        io.process.worker().unwrap().unwrap().kill().unwrap();
        io.process.next_worker(Some(serves)).unwrap();
        caller = io.caller();
        let is_open = |caller: &mut Caller, id| caller.state(id) == Some(DiskState::Active);
        eventually("restored", || ["d", "e"].iter().all(|id| is_open(&mut caller, id)));
        assert_eq!(shares(&mut caller), expected, "after a kill");
    }
}

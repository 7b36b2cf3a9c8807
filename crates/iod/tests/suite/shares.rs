//! Disks that share one storage by their weights.

use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use crate::caps::{BYTES, QUEUES, Storm};
use crate::common::sectors::{connect, read, write};
use crate::common::*;
use model::report::{DiskStats, Stats};
use model::share::DiskShare;
use serde_json::{Value, json};
use testkit::rounds;
use testkit::storage::store_profile;

fn attach(io: &Io, caller: &mut Caller, id: &str, share: Value) {
    let path = io.folder.path().join(format!("{id}.raw"));
    std::fs::write(&path, vec![1; BYTES as usize]).unwrap();
    let mut spec = io.spec(id, json!({ "file": path }));
    (spec["queues"], spec["share"]) = (json!(QUEUES), share);
    caller.disk("disk.attach", spec);
}

fn stats(caller: &mut Caller, id: &str) -> DiskStats {
    let stats = caller.call("stats", json!({ "id": id })).unwrap();
    let stats: Stats = serde_json::from_value(stats).unwrap();
    stats.disks.into_iter().next().unwrap()
}

/// Waits until the second storm completes this many requests for each of the first one. Weights
/// decide only while requests wait for the storage, and a busy host may have no CPU for them.
fn wait_for_ratio(storms: [&Storm; 2], expected: Range<f64>) {
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
    let folder = io.folder.path();
    let device = calibrate::identity(std::fs::metadata(folder).unwrap().dev());
    store_profile(folder, device).unwrap();
    let mut caller = io.caller();
    attach(&io, &mut caller, "light", Value::Null);
    attach(&io, &mut caller, "heavy", json!({"weight": 400}));
    let storms = ["light", "heavy"].map(|id| Storm::start(&io, id, 4096));
    wait_for_ratio([&storms[0], &storms[1]], 3.0..5.0);
    let heavy = stats(&mut caller, "heavy").share.unwrap();
    assert_eq!(heavy.share, DiskShare { weight: 400, ..DiskShare::default() });
    assert!(heavy.waited_seconds > 0.0 && heavy.waiting > 10, "{heavy:?}");
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

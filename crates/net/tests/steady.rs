//! What is decided about a frame takes no memory from the heap, no lock, and writes nothing that
//! others write too: counted under callgrind, as calls of what would do so.
//!
//! This program starts itself under valgrind, with the load of `examples/steering.rs` for a short and
//! for a long time. What a frame calls, the long run calls more often. Without optimisation, as
//! tests are built, an atomic read-modify-write and a lock are calls like all others.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../examples/steering.rs"]
#[allow(dead_code)]
mod steering;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

const LOAD: &str = "RINGWAY_TEST_LOAD";
const SHORT: u64 = 128;
const LONG: u64 = 512;
/// Frames between the two counts.
const MORE: u64 = LONG - SHORT;

/// Not a test: what the others run under valgrind.
#[test]
#[ignore = "it is the load of the other tests"]
fn load() {
    if let Ok(args) = std::env::var(LOAD) {
        steering::run(&args.split(' ').map(String::from).collect::<Vec<_>>());
    }
}

/// How often each function was called in a run.
fn calls(load: &str) -> BTreeMap<String, u64> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "load", "--ignored", "--test-threads=1"])
        .env(LOAD, load)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("valgrind is needed: apt-get install valgrind");
    assert!(status.success(), "{status}");
    let (mut counts, mut called) = (BTreeMap::new(), String::new());
    for line in std::fs::read_to_string(out).unwrap().lines() {
        if let Some(name) = line.strip_prefix("cfn=") {
            name.clone_into(&mut called);
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let count: u64 = rest.split(' ').next().unwrap().parse().unwrap();
            *counts.entry(called.clone()).or_default() += count;
        }
    }
    counts
}

/// Memory of the heap, a lock, or a write to what others may write.
fn is_shared(name: &str) -> bool {
    const HEAP: [&str; 5] = ["malloc", "calloc", "realloc", "free", "posix_memalign"];
    const LOCKS: [&str; 5] = ["::Mutex<", "::RwLock<", "::Condvar", "futex", "pthread_mutex"];
    const ATOMIC: &str = "sync::atomic";
    const CHANGES: [&str; 5] = ["fetch_", "compare_exchange", "swap", "atomic_add", "xchg"];
    HEAP.contains(&name)
        || LOCKS.iter().any(|lock| name.contains(lock))
        || name.contains(ATOMIC) && CHANGES.iter().any(|change| name.contains(change))
}

fn is_steady(kind: &str) {
    let run = |frames: u64| calls(&format!("{kind} {frames}"));
    let (short, long) = (run(SHORT), run(LONG));
    let grown: BTreeMap<_, _> = long
        .into_iter()
        .map(|(name, count)| {
            (name.clone(), count - short.get(&name).copied().unwrap_or(0).min(count))
        })
        // Once in a while is not once a frame: who waits for the load's thread may come too late to.
        .filter(|(_, more)| *more * 64 > MORE)
        .collect();
    let decided = grown.iter().find(|(name, _)| name.contains("Switch>::decide"));
    assert!(decided.is_some_and(|(_, more)| *more >= MORE), "frames were not seen: {grown:?}");
    let shared: Vec<_> = grown.iter().filter(|(name, _)| is_shared(name)).collect();
    assert!(shared.is_empty(), "{kind}: {shared:#?}");
}

#[test]
fn small_frames_share_nothing() {
    is_steady("udp");
}

#[test]
fn frames_of_a_locked_port_share_nothing() {
    is_steady("locked");
}

#[test]
fn large_frames_share_nothing() {
    is_steady("tso");
}

#[test]
fn frames_that_are_cut_share_nothing() {
    is_steady("cut");
}

#[test]
fn new_stations_share_nothing() {
    is_steady("learn");
}

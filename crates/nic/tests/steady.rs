//! A frame on its way takes no memory from the heap, no lock, and writes nothing that others write
//! too: counted under callgrind, as calls of what would do so.
//!
//! This program starts itself under valgrind, with the load of `examples/frames.rs` for a short and
//! for a long time. What a frame calls, the long run calls more often. Without optimisation, as
//! tests are built, an atomic read-modify-write and a lock are calls like all others.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../examples/frames.rs"]
#[allow(dead_code)]
mod frames;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

const LOAD: &str = "RINGWAY_TEST_LOAD";

/// Not a test: what the others run under valgrind.
#[test]
#[ignore = "it is the load of the other tests"]
fn load() {
    if let Ok(args) = std::env::var(LOAD) {
        frames::run(&args.split(' ').map(String::from).collect::<Vec<_>>());
    }
}

/// How often each function was called in a run.
fn calls(load: &str) -> BTreeMap<String, u64> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let status = Command::new("valgrind")
        // One thread runs at a time: without turns a reactor that is busy keeps the others waiting
        // for minutes.
        .args(["--tool=callgrind", "--fair-sched=yes"])
        .args(["--compress-strings=no", "--compress-pos=no"])
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

/// Small functions are calls too, as tests are built but not in soak: only then does one that is missing
/// say something.
fn shows_all(grown: &BTreeMap<String, u64>) -> bool {
    grown.keys().any(|name| name.contains("sync::atomic"))
}

/// Nothing that is called for each frame is shared; what is called.
fn is_steady(kind: &str, frames: u64) -> BTreeMap<String, u64> {
    let (grown, shared) = grows(kind, frames);
    assert!(shared.is_empty(), "{kind}: {shared:#?}");
    grown
}

/// Compares a short run with one that is four times as long; what is called more often there, and what
/// of that is shared.
fn grows(kind: &str, frames: u64) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let more = 3 * frames;
    let run = |frames: u64| calls(&format!("{kind} {frames}"));
    let (short, long) = (run(frames), run(4 * frames));
    let grown: BTreeMap<_, _> = long
        .into_iter()
        .map(|(name, count)| {
            let before = short.get(&name).copied().unwrap_or(0);
            (name, count.saturating_sub(before))
        })
        // Once in a while is not once a frame.
        .filter(|(_, grown)| *grown > 8 && grown * 64 > more)
        .collect();
    let decided = grown.iter().find(|(name, _)| name.contains("Hub>::forward"));
    // That all of them arrived is asserted by the load.
    let is_seen = decided.is_some_and(|(_, grown)| *grown >= more / 2);
    assert!(is_seen, "frames were not seen: {grown:?}");
    let mut shared = grown.clone();
    shared.retain(|name, _| is_shared(name));
    (grown, shared)
}

#[test]
fn frames_to_a_known_station_share_nothing() {
    is_steady("known", 512);
}

#[test]
fn frames_of_a_known_flow_are_not_parsed_to_find_their_queue() {
    let grown = is_steady("steered", 512);
    let name = |of: &str| grown.keys().find(|name| name.contains(of));
    assert!(name("Memo::of").is_some() || !shows_all(&grown), "{grown:#?}");
    for dear in ["Toeplitz::of", "Frame::net", "frame::ip::"] {
        assert_eq!(name(dear), None);
    }
}

#[test]
fn frames_on_one_reactor_share_nothing() {
    is_steady("near", 512);
}

#[test]
fn frames_between_reactors_share_nothing() {
    is_steady("far", 512);
}

#[test]
fn frames_of_flows_that_may_be_moved_share_nothing() {
    is_steady("wide", 512);
}

#[test]
fn large_frames_share_nothing() {
    is_steady("whole", 64);
}

#[test]
fn frames_that_are_cut_share_nothing() {
    is_steady("cut", 16);
}

#[test]
fn frames_of_a_locked_port_share_nothing() {
    let grown = is_steady("locked", 512);
    let checks = grown.iter().find(|(name, _)| name.contains("Lock::check"));
    let checked = checks.is_some_and(|(_, count)| *count >= 3 * 512);
    assert!(checked || !shows_all(&grown), "{grown:#?}");
}

#[test]
fn frames_to_a_guest_that_is_called_share_nothing() {
    let grown = is_steady("called", 512);
    let calls = grown.iter().find(|(name, _)| name.contains("Context::ring"));
    // One for each batch; that the guest was called is asserted by the load.
    let is_called = calls.is_some_and(|(_, count)| *count >= 3 * 512 / 32);
    assert!(is_called || !shows_all(&grown), "{grown:#?}");
}

#[test]
fn frames_that_wait_for_buffers_share_nothing() {
    let grown = is_steady("late", 512);
    let held = grown.iter().find(|(name, _)| name.contains("Backlog::hold"));
    // That all of them waited is asserted by the load.
    let are_held = held.is_some_and(|(_, count)| *count >= 3 * 512);
    assert!(are_held || !shows_all(&grown), "{grown:#?}");
}

/// But for the cap itself, which all queues of the port have in common: one number, once a frame.
#[test]
fn frames_of_a_capped_port_share_the_cap() {
    let (grown, shared) = grows("capped", 512);
    assert!(!shared.is_empty() || !shows_all(&grown), "no cap");
    for (name, count) in &shared {
        assert!(name.contains("compare_exchange") && *count <= 3 * 512, "{shared:#?}");
    }
}

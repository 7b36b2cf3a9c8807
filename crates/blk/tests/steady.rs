//! A request on its steady path takes no memory from the heap, no lock, and writes nothing that
//! others write too: counted under callgrind, as calls of what would do so.
//!
//! This program starts itself under valgrind, with the load of `examples/path.rs` for a short and
//! for a long time. What a request calls, the long run calls more often. Without optimisation,
//! as tests are built, an atomic read-modify-write and a lock are calls like all others.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../examples/path.rs"]
#[allow(dead_code)]
mod path;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

const LOAD: &str = "RINGWAY_TEST_LOAD";
const SHORT: u64 = 512;
const LONG: u64 = 2048;
/// Requests between the two counts.
const MORE: u64 = LONG - SHORT;

/// Not a test: what the others run under valgrind.
#[test]
#[ignore = "it is the load of the other tests"]
fn load() {
    if let Ok(args) = std::env::var(LOAD) {
        path::run(&args.split(' ').map(String::from).collect::<Vec<_>>());
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
    parse(&out)
}

/// Lines of interest: `cfn=NAME`, then `calls=COUNT ...`.
fn parse(out: &Path) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut called = "";
    let text = std::fs::read_to_string(out).unwrap();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("cfn=") {
            called = name;
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let count: u64 = rest.split(' ').next().unwrap().parse().unwrap();
            *counts.entry(called.to_owned()).or_default() += count;
        }
    }
    counts
}

/// Memory of the heap, a lock, or a write to what others may write.
fn is_shared(name: &str) -> bool {
    const HEAP: [&str; 5] = ["malloc", "calloc", "realloc", "free", "posix_memalign"];
    const LOCKS: [&str; 6] =
        ["::Mutex<", "::RwLock<", "::Condvar", "futex", "pthread_mutex", "pthread_rwlock"];
    const ATOMIC: &str = "sync::atomic";
    const CHANGES: [&str; 7] =
        ["fetch_", "compare_exchange", "swap", "atomic_add", "atomic_sub", "atomic_and", "xchg"];
    HEAP.contains(&name)
        || LOCKS.iter().any(|lock| name.contains(lock))
        || name.contains(ATOMIC) && CHANGES.iter().any(|change| name.contains(change))
}

/// What requests call: those that grow with their number, with calls for each of them.
fn grown(disk: &str, depth: u16, record: &str) -> BTreeMap<String, f64> {
    let run = |requests| calls(&format!("{disk} {depth} {record} {requests}"));
    let (short, long) = (run(SHORT), run(LONG));
    let each = |(name, count): (String, u64)| {
        let more = count.saturating_sub(short.get(&name).copied().unwrap_or(0));
        // Once in a while is not once a request: a table that grows, a rate that is found anew.
        (more * 64 > MORE).then(|| (name, more as f64 / MORE as f64))
    };
    long.into_iter().filter_map(each).collect()
}

fn is_steady(disk: &str, depth: u16, record: &str) {
    let grown = grown(disk, depth, record);
    let submits = grown.iter().filter(|(name, _)| name.contains("submit"));
    assert!(submits.count() > 0, "requests were not seen: {grown:?}");
    let shared: Vec<_> = grown.iter().filter(|(name, _)| is_shared(name)).collect();
    assert!(shared.is_empty(), "{disk}, depth {depth}, recording {record}: {shared:#?}");
}

#[test]
fn requests_on_a_null_disk_share_nothing() {
    is_steady("null", 32, "on");
}

#[test]
fn requests_on_a_disk_in_memory_share_nothing() {
    is_steady("memory", 4, "on");
}

#[test]
fn what_is_shared_is_known_by_name() {
    for name in [
        "malloc",
        "<std::sync::poison::mutex::Mutex<T>>::lock",
        "core::sync::atomic::AtomicU64::fetch_add",
        "core::sync::atomic::atomic_compare_exchange",
    ] {
        assert!(is_shared(name), "{name}");
    }
    for name in ["core::mem::swap", "core::sync::atomic::AtomicU64::load", "ringway::free_list"] {
        assert!(!is_shared(name), "{name}");
    }
}

//! The steady request path allocates no heap memory, takes no lock, and writes no shared memory.
//! The tests run `examples/path.rs` under callgrind ([`testkit::callgrind`]) and count calls that
//! would do so.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../examples/path.rs"]
#[allow(dead_code)]
mod path;

use testkit::callgrind::{self, Calls, writes_shared};

const SHORT: u64 = 512;
const LONG: u64 = 2048;
/// Number of requests between the two counts.
const MORE: u64 = LONG - SHORT;

/// Load that the tests run under valgrind; not a test itself.
#[test]
#[ignore = "it is the load of the other tests"]
fn load() {
    if let Some(words) = callgrind::load() {
        path::run(&words);
    }
}

/// Returns the functions that requests call, and how often in [`MORE`] requests.
fn grown(disk: &str, depth: u16, record: &str) -> Calls {
    let load = |requests| format!("{disk} {depth} {record} {requests}");
    let mut grown = callgrind::extra_calls("load", &load(SHORT), &load(LONG)).unwrap();
    // Ignore rare calls: a table that grows, a rate that is measured again.
    grown.retain(|_, more| *more * 64 > MORE);
    grown
}

fn is_steady(disk: &str, depth: u16, record: &str) {
    let grown = grown(disk, depth, record);
    let submits = grown.iter().filter(|(name, _)| name.contains("submit"));
    assert!(submits.count() > 0, "requests were not seen: {grown:?}");
    let shared: Vec<_> = grown.iter().filter(|(name, _)| writes_shared(name)).collect();
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

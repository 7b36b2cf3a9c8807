//! The steady request path allocates no heap memory, takes no lock, and writes no shared memory. On
//! an image, it asks nothing, and the number of layers does not matter.
//! The tests run `examples/path.rs` under callgrind ([`testkit::callgrind`]) and count calls that
//! would do so.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../examples/path.rs"]
#[allow(dead_code)]
mod path;

use testkit::callgrind::{self, Calls, allocates_or_locks, writes_shared};

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

/// Number of requests on an image. The first ones ask for the map: their calls are few in comparison.
const IMAGE_LOAD: u64 = 16384;

/// Number of requests between the two counts.
const MORE_ON_IMAGE: u64 = IMAGE_LOAD - SHORT;

/// Returns the functions that requests for known blocks of an image call, and how often in
/// [`MORE_ON_IMAGE`] requests. Leaves out those that fewer than seven in eight requests call.
fn known(layers: usize) -> Calls {
    let load = |requests| format!("qcow2-{layers} 32 off {requests}");
    let mut calls = callgrind::extra_calls("load", &load(SHORT), &load(IMAGE_LOAD)).unwrap();
    calls.retain(|_, more| *more * 8 >= MORE_ON_IMAGE * 7);
    assert!(callgrind::find(&calls, "MapChannel::find").is_some(), "{:?}", calls.keys());
    let slow: Vec<_> = calls.keys().filter(|name| allocates_or_locks(name)).collect();
    assert!(slow.is_empty(), "{layers} layers: {slow:#?}");
    for slow in ["submit_planned", "MapChannel::ask"] {
        assert_eq!(callgrind::find(&calls, slow), None, "{layers} layers");
    }
    calls
}

#[test]
fn known_blocks_of_an_image_ask_nothing_however_many_layers_it_has() {
    known(1);
    let [few, many] = [2, 10].map(known);
    // Eight layers more would add eight calls to a request. How many completions the kernel returns
    // at once varies between runs, so some functions differ by a fraction of a call.
    let grew = |name: &String, more: u64| {
        let less = few.get(name).copied().unwrap_or(0);
        more.saturating_sub(less) * 2 > MORE_ON_IMAGE * 3
    };
    let grown: Vec<_> = many.iter().filter(|(name, more)| grew(name, **more)).collect();
    assert!(grown.is_empty(), "{grown:#?}");
}

/// Writes to an overlay between the two counts. Those before them fill the stocks.
const MORE_ON_OVERLAY: u64 = IMAGE_LOAD - LONG;

#[test]
fn writes_to_an_overlay_make_no_system_call_and_allocate_nothing() {
    let load = |requests| format!("overlay 32 off {requests}");
    let calls = callgrind::extra_calls("load", &load(LONG), &load(IMAGE_LOAD)).unwrap();
    let write = callgrind::find(&calls, "OverlayChannel::submit_write");
    assert!(write.is_some_and(|(_, count)| count == MORE_ON_OVERLAY), "{write:?}");
    let few = |most: u64, is_bad: &dyn Fn(&str) -> bool| {
        let many: Vec<_> =
            calls.iter().filter(|(name, more)| is_bad(name) && **more > most).collect();
        assert!(many.is_empty(), "{many:#?}");
    };
    few(MORE_ON_OVERLAY / 1024, &|name| {
        callgrind::allocates_or_locks(name) && !name.contains("::Mutex<")
    });
    // A stock that runs low wakes the thread that fills it. How often a lock is contended varies.
    few(MORE_ON_OVERLAY / 256, &|name| name == "syscall");
    // The pool's lock is for 64 new slots, or for 128 former ones.
    few(MORE_ON_OVERLAY / 32, &callgrind::allocates_or_locks);
}

#[test]
fn requests_on_a_null_disk_share_nothing() {
    is_steady("null", 32, "on");
}

#[test]
fn requests_on_a_disk_in_memory_share_nothing() {
    is_steady("memory", 4, "on");
}

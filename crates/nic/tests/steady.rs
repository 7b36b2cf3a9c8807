//! Tests that forwarding a frame allocates no memory, takes no lock, and writes no shared memory.
//! The test counts the calls that would do so under callgrind ([`testkit::callgrind`]) with the
//! load of `examples/frames.rs`.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../examples/frames.rs"]
#[allow(dead_code)]
mod frames;

use testkit::callgrind::{self, Calls, writes_shared};

/// Load that the other tests run under valgrind; not a test itself.
#[test]
#[ignore = "it is the load of the other tests"]
fn load() {
    if let Some(words) = callgrind::load() {
        frames::run(&words);
    }
}

/// Frames of a short run.
const FRAMES: u64 = 256;

/// Returns whether small functions are calls too, as in test builds but not in soak builds. Only
/// then a missing call means something.
fn shows_all(grown: &Calls) -> bool {
    grown.keys().any(|name| name.contains("sync::atomic"))
}

/// Checks that no function called for each frame accesses shared state; returns the called
/// functions.
fn is_steady(kind: &str, frames: u64) -> Calls {
    let (grown, shared) = grows(kind, frames);
    assert!(shared.is_empty(), "{kind}: {shared:#?}");
    grown
}

/// Compares a short run with one that is four times as long. Returns the functions called more
/// often in the long run, and those of them that access shared state.
fn grows(kind: &str, frames: u64) -> (Calls, Calls) {
    let more = 3 * frames;
    let load = |frames: u64| format!("{kind} {frames}");
    let mut grown = callgrind::extra_calls("load", &load(frames), &load(4 * frames)).unwrap();
    // A call once in a while is not a call for each frame.
    grown.retain(|_, grown| *grown > 8 && *grown * 64 > more);
    let decided = callgrind::find(&grown, "Hub::forward");
    // The load asserts that all frames arrived.
    let is_seen = decided.is_some_and(|(_, grown)| grown >= more / 2);
    assert!(is_seen, "frames were not seen: {grown:?}");
    let mut shared = grown.clone();
    // Beside other work, the threads that start the load wait for each other longer, and look at
    // their locks more often.
    shared.retain(|name, grown| writes_shared(name) && *grown * 16 > more);
    (grown, shared)
}

#[test]
fn frames_to_a_known_station_share_nothing() {
    is_steady("known", FRAMES);
}

#[test]
fn frames_of_a_known_flow_are_not_parsed_to_find_their_queue() {
    let grown = is_steady("steered", FRAMES);
    let name = |of: &str| callgrind::find(&grown, of).map(|(name, _)| name);
    assert!(name("FlowHashCache::of").is_some() || !shows_all(&grown), "{grown:#?}");
    for dear in ["Toeplitz::of", "Frame::net", "frame::ip::"] {
        assert_eq!(name(dear), None);
    }
}

#[test]
fn frames_on_one_reactor_share_nothing() {
    is_steady("near", FRAMES);
}

#[test]
fn frames_between_reactors_share_nothing() {
    is_steady("far", FRAMES);
}

#[test]
fn frames_of_flows_that_may_be_moved_share_nothing() {
    is_steady("wide", FRAMES);
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
    let grown = is_steady("locked", FRAMES);
    let checks = callgrind::find(&grown, "Lock::check");
    let checked = checks.is_some_and(|(_, count)| count >= 3 * FRAMES);
    assert!(checked || !shows_all(&grown), "{grown:#?}");
}

#[test]
fn frames_to_a_guest_that_is_called_share_nothing() {
    let grown = is_steady("called", FRAMES);
    let calls = callgrind::find(&grown, "Context::notify");
    // One for each batch; the load asserts that the guest was called.
    let is_called = calls.is_some_and(|(_, count)| count >= 3 * FRAMES / 32);
    assert!(is_called || !shows_all(&grown), "{grown:#?}");
}

#[test]
fn frames_that_wait_for_buffers_share_nothing() {
    let grown = is_steady("late", FRAMES);
    let held = callgrind::find(&grown, "Backlog::hold");
    // The load asserts that all frames waited.
    let are_held = held.is_some_and(|(_, count)| count >= 3 * FRAMES);
    assert!(are_held || !shows_all(&grown), "{grown:#?}");
}

/// Except for the limit itself, which all queues of the port share: one number, once a frame.
#[test]
fn frames_of_a_capped_port_share_the_cap() {
    let (grown, shared) = grows("capped", FRAMES);
    assert!(!shared.is_empty() || !shows_all(&grown), "no cap");
    for (name, count) in &shared {
        assert!(name.contains("compare_exchange") && *count <= 3 * FRAMES, "{shared:#?}");
    }
}

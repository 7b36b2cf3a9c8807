//! Tests that a forwarding decision allocates no memory, takes no lock, and writes no shared
//! memory. The test counts the calls that would do so under callgrind ([`testkit::callgrind`]) with
//! the load of `examples/steering.rs`.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../examples/steering.rs"]
#[allow(dead_code)]
mod steering;

use testkit::callgrind::{self, writes_shared};

/// Frames of a short run. A long run has four times as many.
const FRAMES: u64 = 128;

/// Load that the other tests run under valgrind; not a test itself.
#[test]
#[ignore = "it is the load of the other tests"]
fn load() {
    if let Some(words) = callgrind::load() {
        steering::run(&words);
    }
}

fn is_steady(kind: &str, frames: u64) {
    let more = 3 * frames;
    let load = |frames: u64| format!("{kind} {frames}");
    let mut grown = callgrind::extra_calls("load", &load(frames), &load(4 * frames)).unwrap();
    // A call once in a while is not a call for each frame: a thread that waits for the load's
    // thread may be late.
    grown.retain(|_, grown| *grown * 64 > more);
    let decided = callgrind::find(&grown, "Switch::decide");
    assert!(decided.is_some_and(|(_, grown)| grown >= more), "frames were not seen: {grown:?}");
    let shared: Vec<_> = grown.iter().filter(|(name, _)| writes_shared(name)).collect();
    assert!(shared.is_empty(), "{kind}: {shared:#?}");
}

#[test]
fn small_frames_share_nothing() {
    is_steady("udp", FRAMES);
}

#[test]
fn frames_of_a_locked_port_share_nothing() {
    is_steady("locked", FRAMES);
}

#[test]
fn large_frames_share_nothing() {
    is_steady("tso", FRAMES);
}

#[test]
fn frames_that_are_cut_share_nothing() {
    is_steady("cut", FRAMES / 8);
}

#[test]
fn new_stations_share_nothing() {
    is_steady("learn", FRAMES);
}

//! What is decided about a frame takes no memory from the heap, no lock, and writes nothing that
//! others write too: counted under callgrind ([`testkit::callgrind`]) with the load of
//! `examples/steering.rs`, as calls of what would do so.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../examples/steering.rs"]
#[allow(dead_code)]
mod steering;

use testkit::callgrind::{self, is_shared};

const SHORT: u64 = 128;
const LONG: u64 = 512;
/// Frames between the two counts.
const MORE: u64 = LONG - SHORT;

/// Not a test: what the others run under valgrind.
#[test]
#[ignore = "it is the load of the other tests"]
fn load() {
    if let Some(words) = callgrind::load() {
        steering::run(&words);
    }
}

fn is_steady(kind: &str) {
    let load = |frames: u64| format!("{kind} {frames}");
    let mut grown = callgrind::grown("load", &load(SHORT), &load(LONG)).unwrap();
    // Once in a while is not once a frame: who waits for the load's thread may come too late to.
    grown.retain(|_, more| *more * 64 > MORE);
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

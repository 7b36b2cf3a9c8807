//! Tests with real TAP devices, in network namespaces of their own. They need root.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod ends;
mod faults;
mod older;
mod open;
mod traffic;

use std::process::Command;

/// Runs `ip` with these arguments, in the namespace of the calling thread.
fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}

/// Gives a device addresses, and static neighbour entries for its other end.
fn address(device: &str, host: u8) {
    ip(&format!("addr add 10.7.0.{host}/24 dev {device}"));
    ip(&format!("addr add fd07::{host}/64 dev {device} nodad"));
    ip(&format!("link set dev {device} up"));
}

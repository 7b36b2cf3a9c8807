//! Tests of `testkit` with real guests, in one program.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test reports what it saw")]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

#[path = "../../../golden/tests/suite/servers.rs"]
#[allow(dead_code, reason = "the tests of golden use the rest")]
mod golden_servers;
mod guest_boot;
mod guest_disk;
mod guest_golden;
mod guest_images;
mod guest_limits;
mod guest_orphan;
mod guest_overflow;
mod guest_restart;
mod guest_snapshots;
mod guest_upgrade;
mod kill;

//! Tests of `testkit` under libvirt, in one program.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test reports what it saw")]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod libvirt;
mod libvirt_refusals;

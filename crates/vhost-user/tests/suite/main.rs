//! Tests of `vhost-user`, in one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod common;
mod conformance;
mod freeze;
mod hostile;
mod inflight;
mod listener;
mod peer;

//! Tests of `mapped`, in one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod chains;
mod layers;
mod shares;
mod vhd;
#[path = "../../../image/tests/suite/xenserver.rs"]
mod xenserver;

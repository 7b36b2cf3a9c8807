//! Tests of `cli` with real guests as one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

#[path = "../common/mod.rs"]
mod common;
mod demo;
mod readme;
mod run;

//! Tests of `disk`, in one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod backends;
mod fence;
mod model;
mod small_blocks;
mod storage;

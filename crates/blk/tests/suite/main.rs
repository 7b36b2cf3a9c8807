//! Tests of `blk` as one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod guest;
mod insight;
mod polling;
mod recovery;
mod requests;
mod stopping;
mod trial;

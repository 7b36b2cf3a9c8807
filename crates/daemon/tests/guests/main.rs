//! Tests of `daemon` with real guests, one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod machines;
mod script1;

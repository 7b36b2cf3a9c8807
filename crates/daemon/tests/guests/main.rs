//! Tests of `daemon` with real guests, one program.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test reports what it saw")]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod machines;
mod script1;

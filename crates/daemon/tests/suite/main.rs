//! Tests of `daemon`, one program.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test reports what it saw")]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod addresses;
mod bad_input;
mod clients;
mod commands;
mod disk_streams;
mod dying;
mod failing;
mod first;
mod hung;
mod known;
mod manual;
mod metrics;
mod pam;
mod places;
mod slices;
mod stopped;
mod tls;
mod units;

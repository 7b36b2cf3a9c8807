//! Tests of `toolstack` in one program.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test reports what it saw")]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod cgroups;
mod host_net;
mod internal_networks;
mod io_client;
mod io_process;
mod qemu;
mod storage;
mod store_full;
mod store_kill;

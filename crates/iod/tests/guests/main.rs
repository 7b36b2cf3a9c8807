//! Tests of `iod` with real guests, in one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

#[path = "../common/mod.rs"]
mod common;
mod net_dpdk;
mod net_guests;
mod net_pairs_guests;
mod net_reboot;
mod net_wide_guests;
mod nic_guests;

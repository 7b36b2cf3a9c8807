//! Internal networks in network namespaces of the tests: with a guest, and a host beyond the NAT.
//! Needs root.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod guests;
mod life;
mod world;

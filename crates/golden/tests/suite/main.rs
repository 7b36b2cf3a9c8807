//! Tests of golden images over real servers.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

mod cache;
mod faults;
mod full;
mod power_cut;
mod servers;
mod sources;

//! Simulation in virtual time: the product's own code on device models.
//!
//! Reactors are actors: they take completions, arrivals and kicks in turns, which come late by a
//! poll or a wake-up, and take time themselves. Guests keep requests outstanding. All of it is
//! reproducible from a seed.

mod random;
mod reactor;
mod report;
mod tests;
mod workload;
mod world;

pub(crate) use crate::device::Random;

/// Nanoseconds.
const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Returns whether tests run with full counts.
fn is_soak() -> bool {
    std::env::var_os("RINGWAY_SOAK").is_some()
}

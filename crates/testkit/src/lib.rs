//! Guest-side front-ends, started backends and bootable guests for tests.
//!
//! # Words
//! - **Front-end**: the guest's side of a vhost-user socket. There are four: [`driver`], whose
//!   protocol and rings come from other authors (the `virtio-driver` crate); [`testpmd`], DPDK's
//!   NICs; [`raw`], which sends and lays out exactly what a test says, right or wrong; and
//!   [`reconnecting`], which outlives its backend and checks all that comes back.
//! - **Backend**: the process under test, started and ended by [`process`].
//!
//! # Model
//! A test starts a [`process::Backend`], connects one or several front-ends to its socket, and
//! checks what comes back. [`driver`] answers "does it work with an independent driver, and how
//! fast"; [`raw`] answers "what does it do with this". The catalogues [`raw::malformed`] and
//! [`raw::hostile`] name every bad input that we know, each with what a backend may answer.
//!
//! # Errors
//! [`Error`] is for failures on the test's side or of the process. A backend's refusal of bad input
//! is a value ([`raw::malformed::Outcome`], [`raw::hostile::HostileOutcome`]), not an error.
//!
//! # Invariants
//! No unsafe code: shared memory is used through its file. Every wait has a deadline and is for an
//! event. A process that a test starts is killed by its own id, and its directory removed, on drop.
//!
//! # How to test
//! Both front-ends are validated against `qemu-storage-daemon`, an independent backend (`tests/`).
//! The same test functions take any backend.
#![forbid(unsafe_code)]

pub mod boot_sector;
pub mod callgrind;
pub mod clock;
pub mod cpus;
pub mod driver;
pub mod error;
pub mod guest;
pub mod in_namespace;
pub mod libvirt;
pub mod net_namespace;
pub mod openmetrics;
pub mod peers;
pub mod process;
pub mod python;
pub mod raw;
pub mod reconnecting;
pub mod requirements;
pub mod ringwayd;
pub mod storage;
pub mod testpmd;

pub use error::{Error, Result};
pub use requirements::HostRequirement;

/// Returns the number of repetitions: `reduced` in `make test`, `full` in `make soak`.
pub fn rounds(reduced: usize, full: usize) -> usize {
    if is_soak() { full } else { reduced }
}

/// Returns whether this is `make soak`, which uses full counts and has the machine for itself. Only
/// then a test may judge how long something takes.
pub fn is_soak() -> bool {
    std::env::var_os("RINGWAY_SOAK").is_some()
}

//! `ringway-io` and `ringway-blk`: spec in, sockets out, live inspection.
//!
//! # Words
//! - **Export**: one opened disk under its socket ([`export::Export`]).
//! - **Attach** opens and listens; **activate** takes the image's lock and serves; their opposites
//!   are **detach** and **deactivate** (design 5). A front-end may connect to a disk that is not
//!   active and start its rings: nothing is served before the activation.
//! - **Verb**: one of these, or **resize** ([`lifecycle`]).
//! - **Caller**: somebody on the control socket ([`control`]).
//!
//! # Model
//! ```text
//! caller -> control -> table -> export -+- disk    (image, lock)
//!                                       +- device  (features, configuration, counts)
//! front-end -> session -> glue ---------+- queues -> place on a reactor of the pool
//! ```
//! A reactor thread serves queues and nothing else. Each disk has one control thread, each caller
//! one thread; they sleep in the kernel. `ringway-blk` is one export without table and callers.
//!
//! # Errors
//! Whatever keeps a program from its work ends it with exit code 1 and one line on standard
//! error; wrong options end it with 2. A call that fails is answered with a code of
//! [`model::rpc::code`] and a sentence that names cause and next step.
//!
//! # Invariants
//! - Verbs on one disk exclude each other; on different disks they run side by side.
//! - A disk's image is written only between activate and deactivate.
//! - Looking at a disk never waits for its storage, and no verb waits for it longer than the
//!   disk's deadline ([`export`]).
//! - At the end of the process no socket and no lock file is left, and everything is flushed.
//!
//! # How to test
//! Pure parts beside the code. `tests/` runs the built programs with front-ends of `testkit`.
#![forbid(unsafe_code)]

pub mod adopt;
pub mod blk_main;
pub mod blk_options;
pub mod control;
pub mod error;
pub mod export;
pub mod io_main;
pub mod io_options;
pub mod lifecycle;
pub mod limits;
pub mod logging;
pub mod open;
pub mod pool;
pub mod signals;
mod stats;
pub mod table;
mod within;

use std::process::ExitCode;

/// Says why a program failed, if it did.
pub(crate) fn exit(program: &str, result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {}", error::text(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

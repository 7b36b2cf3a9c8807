//! `ringway-io`, `ringway-blk` and `ringway-net`: spec in, sockets out, live inspection.
//!
//! # Words
//! - **Export**: one opened disk under its socket ([`served_disk::ServedDisk`]).
//! - **Attach** opens and listens; **activate** takes the image's lock and serves; their opposites
//!   are **detach** and **deactivate** (design 5). A front-end may connect to a disk that is not
//!   active and start its rings: nothing is served before the activation.
//! - **Keeper**: the process that somebody started; it holds what outlives a crash ([`keeper`]).
//! - **Worker**: the process that serves, started and replaced by a keeper.
//! - **Held**: what a new worker is told of a disk ([`held`]); whoever changes a disk has it held
//!   before the caller is answered.
//! - **Verb**: one of these, or **resize** ([`lifecycle`]). NICs have attach and detach only (`nics`).
//! - **Caller**: somebody on the control socket ([`control`]).
//!
//! # Model
//! ```text
//! caller -> control -> table -> export -+- disk    (image, lock)
//!                         |             +- device  (features, configuration, counts)
//!                         +---> nics -> nic -> switch of reactors
//! front-end -> session -> glue ---------+- queues -> place on a reactor of the pool
//! ```
//! Everything above is a worker; `table` tells its keeper of every disk through one door.
//! A reactor thread serves queues and nothing else. Each disk has one control thread, each caller
//! one thread; they sleep in the kernel. `ringway-blk` is one export without table and callers,
//! and without a keeper unless `--supervise` asks for one. `ringway-net` is a [`served_nic::SwitchNetwork`] with its
//! [`served_nic::ServedNic`]s, and perhaps a [`served_nic::Uplink`], each with a control thread, beside all of this, and
//! answers callers by [`served_nic::NetControl`]; it shares pool, sessions and signals.
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

mod accept_gate;
pub mod blk_main;
pub mod blk_options;
mod connect;
pub mod control;
mod deadline;
pub mod disk_registry;
pub mod error;
mod handover;
pub mod inherited_fds;
pub mod io_main;
pub mod io_options;
pub mod keeper;
pub mod keeper_client;
mod keeper_link;
pub mod lifecycle;
pub mod limits;
pub mod logging;
mod message_boundary;
pub mod metrics;
pub mod net_main;
pub mod net_options;
mod nic_registry;
pub mod open_disk;
pub mod poll_options;
pub mod pool;
pub mod served_disk;
pub mod served_nic;
mod session_log;
pub mod signals;
mod stats;
mod upgrade_main;
mod worker_init;

use std::process::ExitCode;

use model::spec::SpecError;
use vhost_user::SocketError;

/// Exit code of wrong options: those that no host would take.
const USAGE: u8 = 2;

/// Says why a program failed, if it did.
pub(crate) fn exit(program: &str, result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{program}: {}", error::error_chain(error.as_ref()));
            let too_long = |socket: &SocketError| matches!(socket, SocketError::PathTooLong { .. });
            let usage = error
                .chain()
                .any(|cause| cause.is::<SpecError>() || cause.downcast_ref().is_some_and(too_long));
            if usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

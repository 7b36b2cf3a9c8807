//! Executes plans: the QEMU driver and the client of `ringway-io`.
//!
//! # Words
//! - **Machine**: one guest, run by one QEMU process ([`qemu::Machine`]).
//! - **Datapath**: one `ringway-io` process ([`ringway_io::IoProcess`]) that serves all of a machine's
//!   disks, and is told so by calls over its control socket ([`ringway_io::RpcConnection`]).
//! - **Console**: the guest's serial line, a byte stream in both directions.
//! - **Store**: what outlives the daemon ([`store`]). **Slice**: a share of the CPUs for those who
//!   must not wait for guests ([`cgroup`]). **Domain**: one running incarnation of a machine that
//!   outlives us ([`hv`]).
//! - **Driver**: what carries out a step on a hypervisor, storage, datapath or network ([`hv`],
//!   [`sr`], [`io`], [`net`]); [`sim`] has one of each in memory.
//! - **Trial boot**: a short start under KVM that shows whether it can be used ([`accel`]).
//!
//! # Model
//! [`run::run`] does what `ringway run` promises: it makes a directory for the sockets, chooses
//! the accelerator, starts the datapath, attaches every disk, starts QEMU, and waits for the
//! first of: the guest's end, the death of either process, the time limit, a request to stop.
//! Then it takes everything down, whatever had come up. [`doctor`] stands on it.
//!
//! What the daemon does with machines is in [`machines`]: one owner each, whose plans are carried
//! out by [`exec`].
//!
//! Both processes are told apart from the start: each has a process group of its own, so that a
//! Ctrl-C at the terminal reaches only us; QEMU takes its control connection and the console as
//! inherited descriptors 0 and 1, so that there is neither a socket file to wait for nor one to
//! leave behind.
//!
//! # Errors
//! One enum per module ([`ringway_io::DatapathError`], [`qemu::QemuError`], [`run::RunError`],
//! [`store::StoreError`], [`cgroup::CgroupError`], [`machines::OpError`]). The message of an error
//! does not repeat its source: print the chain. When a process died, its last lines on standard
//! error are part of the error.
//!
//! # Invariants
//! - Every wait for another process has a deadline, a constant with a name.
//! - Nothing is polled: readiness, output and ends are events.
//! - A future of this crate may be dropped at any await; children are killed then, but for those
//!   that are meant to outlive us ([`spawn`]).
//! - No guest memory and no image is opened here.
//!
//! # How to test
//! Command lines, verdicts and tables are pure functions with tests beside them. Protocols are
//! tested against a server in the test, over a socket pair. Tests that need real programs are in
//! `tests/`; they fail with the command that builds what is missing.
#![forbid(unsafe_code)]

pub mod accel;
pub mod binaries;
pub mod boxed_future;
pub mod cgroup;
pub mod detached_process;
pub mod doctor;
pub mod exec;
pub mod helper_command;
pub mod hv;
pub mod json_lines;
mod keyed_locks;
pub mod machines;
pub mod net;
pub mod open_files;
pub mod process_group;
pub mod qemu;
pub mod recipe_disks;
pub mod ringway_io;
pub mod run;
pub mod sim;
pub mod sr;
mod stderr_tail;
pub mod store;

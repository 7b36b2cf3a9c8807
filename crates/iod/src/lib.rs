//! `ringway-io`, `ringway-blk` and `ringway-net`: spec in, sockets out, live inspection.
//!
//! # Words
//! - **Keeper**: the process that a user or `ringwayd` starts. It stores what survives a crash
//!   ([`keeper`]).
//! - **Worker**: the process that serves. A keeper starts and replaces it.
//! - **Preserve**: store a device's state with the keeper ([`keeper_client`]), before the caller is
//!   answered.
//! - **Attach** opens and listens; **activate** takes the image's lock and serves. **Detach** and
//!   **deactivate** are their opposites. A front-end may connect to a disk that is not active and
//!   start its rings; they are served from the activation on.
//! - **Verb**: one of these, or pause, resume, resize, caps, poll, export ([`lifecycle`]). NICs
//!   have attach, detach, limits and poll (`nic_registry`).
//! - **Image call**: a call on an image file without a disk (`image_calls`).
//! - **Storage call**: a measurement of a storage (`storage_calls`).
//! - **Export**: a disk that is offered to programs other than guests, over NBD.
//! - **Caller**: a client on the control socket ([`control`]).
//!
//! # Model
//! ```text
//! caller -> control -> DiskRegistry -> ServedDisk -+- disk    (image, lock)
//!                           |              |       +- device  (features, configuration, counts)
//!                           |              |
//!                           +-> NicRegistry -> ServedNic -> switch on the reactors
//! front-end -> session -> session backend ---------+- queues -> lease on a reactor of the pool
//!                           `-> KeeperClient -> keeper
//! ```
//! All between caller, front-end and keeper runs in the worker. Reactor threads serve queues and
//! nothing else. Each disk and NIC has one session thread, each caller one thread; they sleep in
//! the kernel.
//!
//! `ringway-blk` is one [`served_disk::ServedDisk`] without registry and callers, and without a
//! keeper unless `--supervise` asks for one. `ringway-net` is a [`served_nic::SwitchNetwork`] with
//! its [`served_nic::ServedNic`]s and an optional [`served_nic::Uplink`];
//! [`served_nic::NetControl`] answers its callers. `ringway-net` has no crate of its own because it
//! shares sessions, pool and signals with the other programs.
//!
//! # Keeper and worker
//! **The keeper holds little and does little:** listening sockets with their lock files, the memory
//! of memory disks, files that were handed in, and opaque records. Each disk, NIC and setting has a record. So the keeper has
//! no reason to die.
//!
//! **A dead worker is replaced** at once, then with growing pauses. Front-ends that connect
//! meanwhile wait in the backlog of the sockets. A call that was answered is never forgotten; a
//! call that was cut off has happened or not. A detach is preserved before it begins, and does not
//! begin otherwise: no worker ever serves a detached disk again.
//!
//! **A worker survives its keeper.** A new `ringway-io` that finds the control socket served asks
//! for the link (`keeper.adopt`) and receives everything preserved. A worker of
//! `ringway-blk --supervise` cannot be adopted. So it ends in order when its keeper dies, and the
//! next start is not refused. The worker of a memory disk goes on, because no other process has the
//! bytes. To upgrade `ringway-blk`, replace its file and restart it.
//!
//! **A removed socket file comes back.** The worker watches the files of all preserved sockets, binds
//! a new socket in place of a removed one, and preserves it before it accepts there.
//!
//! **`refused` means that the guest waits.** The worker refuses a device that it cannot reopen as
//! its guest left it, or whose record has a newer format. The reason is in `stats`.
//!
//! **An unkillable worker** was killed, but one of its threads sleeps in hung storage. None of its
//! code runs any more. Its descriptors stay until the storage answers: locks, fences, and
//! connections, so its front-ends do not see its end. No event reports this. The keeper checks its
//! worker every 5 s and starts another 5 s later. That one answers callers and serves new disks,
//! and memory disks for front-ends that connect anew. Disks in files wait in the kernel for the
//! locks and then go on by themselves. At most 8 such processes are left behind.
//!
//! **The end has a deadline.** A worker that takes longer than its disks' stop deadlines allow is
//! killed. If the kernel keeps it even then, the keeper names it and ends.
//!
//! **Under systemd** (`packaging/systemd`) the service manager kills only the main process, the
//! keeper. Its worker goes on, and the next keeper adopts it. The keeper answers the watchdog only
//! after its worker has answered, and first replaces a worker that does not answer. VM units use
//! `Wants=` for these units, never `Requires=`. Environment variables reveal systemd; without them
//! nothing of this happens.
//!
//! # Upgrade
//! `handover` has the order of messages. Together, front-ends get 0.5 s to end their messages while
//! everything is served. Then each that is still within a message gets 50 ms, and is disconnected.
//! The source quiesces for at most 2 s.
//! Callers and front-ends that come meanwhile wait in the backlog.
//!
//! - Session, rings and descriptors go from source to destination: connection, guest memory, kicks,
//!   calls, in-flight region, image, queues of TAP devices. Locks and fence belong to the open file
//!   and are never free. Listening sockets and the bytes of memory disks come from the keeper.
//! - Until `Go` the source can resume as if nothing had happened, and does so on any failure. The
//!   source never serves after `Go`. It answers its caller, which has 2 s to take the answer, gives
//!   other accepted callers 5 s, and ends without running a destructor: a destructor would remove
//!   files that belong to the destination now.
//! - Between `Go` and the destination's first message the keeper cannot tell which of the two
//!   serves. If one of them ends, or closes its link, the other is the worker. The keeper kills it
//!   if it does not serve within 10 s.
//! - A program that has served once is started again when it dies. Otherwise the keeper goes back
//!   to its own program. The keeper waits for the end of neither.
//! - After `Go` the source closes its duplicates of the connections. So a front-end sees the end of
//!   the destination even if the source cannot end.
//! - A disk with which neither goes on is refused with the reason and retried with pauses.
//! - NICs come after disks. First transmit queues stop, then links drain, then receive queues stop.
//!   The destination starts them in the opposite order: each NIC waits with its first transmit ring
//!   until all others can receive. So links need no handover, and no frame is lost.
//! - Sessions and records of disks and NICs have a format each; the older of the two programs'
//!   newest formats is written. Counts in `stats` begin anew. Token balances go along. Connections
//!   of callers and of NBD clients end.
//!
//! # Placement
//! **A queue goes to the reactor with the least load, and moves when that changes** ([`pool`]).
//! Load is the CPU time of a reactor's queues between the last two readings of their counters.
//! Readings are at least 100 ms apart, and load has steps of an eighth of a CPU. Ties go to the
//! reactor with the fewest queues of the same disk, so that one disk can use every reactor, then to
//! the fewest queues. A new queue weighs one step until it is measured, so queues that start
//! together spread.
//!
//! A quarter of a second after queues come or go, one thread checks for a reactor with two busy
//! queues more than another. If a move lightens it, the queue drains for at most 50 ms and goes on
//! elsewhere from its index. Slow storage keeps it in place. Counters are read only on placement,
//! return and report: a process in which nothing changes has no timer. A load that shifts while no
//! queue comes or goes is not followed, because no event tells of it. To find out without an event
//! would need a timer in each busy process. Any disk that comes, goes, or is paused and resumed
//! triggers the check.
//!
//! **A queue holds three descriptors:** kick, call and error, shared by the session, the next start
//! of the ring and the reactor. A hundred disks of 32 queues need a hard limit of about 16,000 open
//! files, with the reserve for each disk. A disk that does not fit is refused at its attach, so no
//! front-end fails later.
//!
//! # Disks
//! **A disk's backend is a tree** ([`open_disk`]). One function opens all its files, top first. The
//! keeper's record has an identity for each, and an upgrade passes each on with its locks. A plain
//! disk, a leaf with at most one file by path, is written in the formats that older workers read.
//! Others are refused there. A file that was handed in as a descriptor is opened anew through
//! `/proc/self/fd`: a lock belongs to an open file, and the fence of a shared one would tell nothing
//! about a dead worker. The keeper holds the descriptor, from which the next worker opens it.
//!
//! **A stop waits for storage until a deadline, and no longer** (`stop_deadline_ms`, 30 s). Past it
//! the disk's queues are abandoned, and the in-flight region stays as it is.
//! - A front-end with a region that stops its rings (QEMU's `stop`) is answered and stays. When it
//!   starts them again (`cont`) and storage answers, they go on from the records. A front-end
//!   without a region is disconnected without an answer, because an answer would say that nothing
//!   is in flight.
//! - The disk shows `stuck`. A front-end that reconnects is answered and waits, because abandoned
//!   I/O could land after its writes. `detach`, `shutdown` and the end of the VM are not held up.
//! - One thread waits for the kernel. Then the disk goes on, or its lock is released if it was
//!   deactivated or detached meanwhile.
//! - Other storage work of a verb (open, lock, flush, grow) runs on a thread that can be abandoned
//!   in the same way.
//! - While a thread of this process sleeps in a frozen file system, the kernel does not let the
//!   process end. Its sockets are gone by then, if its end is orderly.
//!
//! **A disk waits for its fence** on a thread of its own that can be left alone, so only this disk
//! waits. `ringway-blk --fd` has no fence, because its front-end can reach no successor.
//!
//! **A pause keeps everything but the work.** `disk.pause` takes no more requests and waits for
//! those in flight. The image's lock stays, the front-end stays connected and waits. Only
//! `disk.resume` or `disk.deactivate` ends a pause, so no caller resumes by accident. Snapshots,
//! and a change of the process under a running VM, can build on a pause.
//!
//! **Other programs read and write a disk over NBD.** `disk.export` offers it on a Unix socket,
//! under its id. A connection is a poller with a channel of its own, beside the guest's queues and
//! by their rules. Only block status runs on a thread of the export, because `lseek` may wait for
//! storage. Reading is always allowed and sees the current bytes. Writing takes the lock, so it
//! excludes a guest, and a guest excludes it. An image with a map is read through its owner, so
//! reading takes the lock, too, if no guest has it. The lock is released when the last connection
//! that needs it has ended, by the deadline of every stop. A crash or an upgrade cuts the connections; the keeper
//! holds the listening sockets. If image or lock of a disk that was exported for writing cannot be
//! restored after a crash, the whole disk is refused and its clients wait. An upgrade is refused
//! while a disk is exported for writing, because an NBD client has no record of its requests in
//! flight.
//!
//! **A disk without a socket is there for exports.** It has no session thread and is never active.
//! All else is that of an inactive disk. Its record is one that a worker which expects a socket
//! refuses, and the id alone selects its fence.
//!
//! **A disk's polling settings override those of its process** (`docs/polling.md`). Settings reach
//! the queues as one word, so a change takes effect in a spin's next turn; a sleeping queue is
//! woken to learn of it. Changed settings of a disk are preserved with the disk, changed defaults
//! under a key of their own. Options are those of the keeper that starts the next worker. Absent
//! settings are not written, so an older version can read a disk that has none.
//!
//! # NICs
//! **One switch serves all networks** (`nic_registry`). It is made for the first NIC. The first
//! `nic.attach` in a network creates the network; the last `nic.detach` removes it and its uplink.
//! Port numbers are given and returned under one lock, and a number is free again only when no
//! reactor knows its port any more. The keeper holds a NIC's parameters and its socket, and nothing
//! else: the positions of its rings are in the guest's memory. New limits and polling settings are
//! preserved before they take effect.
//!
//! **An uplink is a port** ([`served_nic::Uplink`]): a TAP device with a queue on each reactor of
//! the switch. A frame from the host is in memory of this process and enters the hub as it is. A
//! frame to the host is copied: its sender gets the buffers back in the same turn, while the kernel
//! reads only at the turn's end. One system call submits all of them. 2 MiB or 1,024 frames per
//! reactor bound that memory. A frame that the kernel refuses is counted as dropped. A control
//! thread sleeps until a queue reports that the device is gone. Then it stops the others and
//! unplugs the port.
//!
//! # Errors
//! A program that cannot work ends with exit code 1 and one line on standard error; wrong options
//! end it with 2. A call that fails is answered with a code of [`model::rpc::code`] and a sentence
//! that names cause and next step.
//!
//! # Invariants
//! - Verbs on one disk exclude each other; on different disks they run side by side.
//! - A disk's image is written only between activate and deactivate.
//! - A reading call never waits for storage, and no verb waits longer than the disk's deadline
//!   ([`served_disk`]).
//! - At the end of the process no socket and no lock file is left, and everything is flushed.
//!
//! # How to test
//! Pure parts beside the code. `tests/` runs the built programs with front-ends of `testkit`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod accept_gate;
mod call_threads;
mod connect;
pub mod control;
mod deadline;
pub mod disk_registry;
pub mod error;
mod full_watch;
mod golden_calls;
mod handover;
mod image_calls;
pub mod inherited_fds;
pub mod keeper;
pub mod keeper_client;
mod keeper_link;
pub mod lifecycle;
pub mod limits;
mod message_boundary;
pub mod metrics;
mod nic_registry;
pub mod open_disk;
pub mod options;
pub mod pool;
pub mod programs;
pub mod served_disk;
pub mod served_nic;
pub mod signals;
mod socket_watch;
mod stats;
mod storage_calls;
mod trials;
mod worker_init;

use std::io::Write as _;
use std::process::ExitCode;

use model::spec::SpecError;
use vhost_user::SocketError;

/// Exit code for options that are invalid on every host.
const USAGE: u8 = 2;

/// Prints the answer of a program that serves nothing. Returns the exit code.
pub(crate) fn print(program: &str, text: &str) -> ExitCode {
    let printed = writeln!(std::io::stdout(), "{text}").map(|()| ExitCode::SUCCESS);
    exit(program, printed.map_err(Into::into))
}

/// Environment variable with the log filter, for example `debug` or `vhost_user=debug,info`.
const LOG_FILTER: &str = "RINGWAY_LOG";

/// Prepares the process: signals without effect, and a log of level `info` and above unless the
/// environment sets a filter. A program calls it before it starts a thread.
pub(crate) fn prepare() {
    let blocked = signals::block();
    let filter = std::env::var(LOG_FILTER).ok();
    let settings = logging::Settings { with_target: false, ..Default::default() };
    logging::start(
        &logging::Settings { filter: filter.as_deref(), ..settings }.limit_from_environment(),
    );
    if let Err(error) = blocked {
        tracing::warn!("cannot block signals, so some of them end this process: {error}");
    }
}

/// Logs why a program failed, if it failed, waits until the log is written, and returns the exit
/// code.
pub(crate) fn exit(program: &str, result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => {
            logging::flush();
            code
        }
        Err(error) => {
            logging::write_last_line(&format!("{program}: {}", error::error_chain(error.as_ref())));
            let too_long = |socket: &SocketError| matches!(socket, SocketError::PathTooLong { .. });
            let usage = error
                .chain()
                .any(|cause| cause.is::<SpecError>() || cause.downcast_ref().is_some_and(too_long));
            if usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

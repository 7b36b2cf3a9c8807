//! Event-loop threads with one io_uring each, adaptive polling, and the time of free CPUs.
//!
//! # Words
//! - [`Reactor`]: a thread that owns one io_uring and a set of pollers. Drop joins the thread.
//! - [`Handle`]: sends work to a reactor from other threads.
//! - [`Poller`]: an object that a reactor asks for work, for example one virtqueue. It belongs to
//!   exactly one reactor, so its work needs no lock.
//! - **Hot**: asked in every turn of the loop. **Cold**: armed; costs nothing until its eventfd or
//!   one of its operations wakes it.
//! - [`PeerNotifier`]: signals a peer and never waits for it.
//! - [`Histogram`]: counts of durations; one writer, readers without a lock.
//! - [`CompletionPort`]: where the operations of one owner come back. [`IoOp`] goes in,
//!   [`OpCompletion`] comes out.
//!
//! # Model
//! ```text
//! loop: check the completion queue (tail, and the TASKRUN flag) -> deliver
//!       poll every hot poller; one that finds nothing arms and goes cold, unless polling pays
//!       submit what was queued, once
//!       nothing hot: sleep in the kernel until a completion
//! ```
//! The cost of a turn depends on hot pollers only. An idle queue is an eventfd that the ring
//! watches. An idle reactor has no timer.
//!
//! # Polling
//! A poller may stay hot after it found nothing. Its [`PollWindow`] learns from past waits how long
//! that pays. Guards may forbid it, and its [`PollPolicy`] sets the limits: see `spin`, `window`
//! and `cpus`. While some poller polls or wants to, one thread of the process measures free CPU
//! time, ten times a second.
//!
//! - **A free CPU is a CPU that no other thread uses.** A polling reactor needs one CPU for polling
//!   and for its work. So the free time is the idle time of its CPUs, plus what polling reactors of
//!   this process use themselves, for spins and for work. Otherwise a reactor that is busy half of
//!   the time could not poll on a host without idle CPUs, although its CPU is its own. Reactors get
//!   free time in the order in which they began to poll: of two reactors and one free CPU, one
//!   polls.
//! - **Processes do not coordinate.** The spin of another process counts as use, so the first one
//!   keeps its CPU.
//! - **A cgroup quota must leave a whole CPU.** Spins and other threads can share an idle CPU. A
//!   used-up quota stops every thread of the group for the rest of its period. Cgroups are looked
//!   up at each measurement, because a process can move while it serves.
//! - **Sleeping waits do not estimate the gain.** A wait that the thread slept through ends late,
//!   by a wake-up of unknown length. Such waits only exclude windows that cannot pay. A probe
//!   decides.
//!
//! # Design
//! **Eventfds are watched with multishot polls and never read.** One kick is one completion and no
//! further system call. The counter cannot overflow in the life of a VM. Kicks are suppressed while
//! a queue is served; before it goes cold it arms and checks again.
//!
//! **Operations own what the kernel sees.** [`IoOp`] takes buffers and file by value and keeps them
//! until the completion. No future exists that a caller could drop early.
//!
//! **The ring uses deferred task work, and no more of io_uring.** SINGLE_ISSUER with DEFER_TASKRUN
//! is probed at start ([`probe()`]). Fixed buffers and registered files were measured with fio on a
//! device that takes no time: ext4 on an empty zram device (Xeon 2.5 GHz, Linux 6.18). The load was
//! 4 KiB random reads past the page cache, three rounds of `--fixedbufs=1` and `--registerfiles=1`,
//! separately and together. At depth 1 fixed buffers saved about 0.5 us of 5.9. Registered files
//! showed no difference, nor did either at depth 32. On that machine's disk, where a read takes 40
//! us and more, neither shows. Fixed buffers would pin all memory of each guest once for each
//! reactor, so balloons and memory overcommitment would not work. IOPOLL needs polled queues
//! (`queue/io_poll`). Loop devices, virtio disks by default, and device mapper have none, so IOPOLL
//! was not measured and is not used.
//!
//! **The ring writes calls.** A front-end shares its call descriptor. It may clear O_NONBLOCK and
//! fill it, so a plain write could put the reactor to sleep for all its disks. [`PeerNotifier`]
//! submits the write with the turn's other operations. Only every 64th successful write reports a
//! completion, and no further write starts before it. So a peer that never reads its calls costs a
//! bounded number of writes.
//!
//! **Time comes from the CPU's counter.** The kernel's clock costs more than
//! everything else that is measured of a request on a fast disk. So a reading is continued with the
//! time stamp counter, for 1 ms at most, at the rate between earlier readings. A counter that
//! jumps, goes back, or belongs to another host after a migration is wrong by 1 ms at most. Time
//! never goes back. Without a steady counter, the kernel is asked.
//!
//! **A panic on a reactor ends the process.** The queues of many disks live there, and their state
//! is lost with the stack. If the process went on, stopping a queue would return an old index, and
//! new queues would land on a dead reactor. A process that ends can be restarted, and its successor
//! reads the in-flight regions: see `panic`.
//!
//! **Kernel workers are plenty.** Buffered writes, flushes and whatever a file system cannot start
//! at once sleep in io_uring's workers. There may be more of them than a disk has requests.
//! Otherwise one hung disk would take the workers of its neighbours.
//!
//! # Errors and invariants
//! - The operation slab owns what the kernel sees (buffers, iovecs, descriptors) from submission to
//!   completion.
//! - A receive or a send may wait forever on its peer. The socket's owner shuts it down on drop, so
//!   that a reactor can end.
//! - An operation whose port is gone still runs to its end; its result is dropped. [`EndGuards`]
//!   live until then.
//! - Nothing blocks on a reactor thread. A poller that does harms its neighbours.
//! - [`Stopped`] is the answer of a reactor that has ended.
//!
//! # How to test
//! Spawn a reactor and send it pollers; [`ReactorCounters`] counts system calls and sleeps.
#![allow(unsafe_code)] // The kernel is handed raw pointers; `ring` and `file` own that.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// The TSC clock reads a CPU counter, and `tun` makes the ioctls of a driver.

mod clock;
mod context;
mod core;
mod cpus;
mod end_guards;
mod file;
mod histogram;
mod mailbox;
mod notifier;
mod op;
mod panic;
mod probe;
mod ring;
mod slab;
mod spin;
mod stats;
#[cfg(test)]
mod tests;
mod thread;
mod tsc_clock;
pub mod tun;
mod window;

pub use clock::OwnerId;
pub use context::{Context, PollOutcome, Poller, PollerId};
pub use end_guards::EndGuards;
pub use file::File;
pub use histogram::{Histogram, Snapshot, Summary};
pub use mailbox::{Handle, Stopped};
pub use notifier::PeerNotifier;
pub use op::{CompletionPort, IoOp, OpCompletion};
pub use probe::{Probe, probe};
pub use slab::Slab;
pub use spin::{
    POLL_MAX_NS, PollControl, PollMode, PollPolicy, PollReason, PollState, SpinRefusal, WaitTarget,
};
pub use stats::ReactorCounters;
pub use thread::Reactor;
pub use tsc_clock::clock_ns;
pub use window::{
    PollWindow, WaitSample as PollWait, WindowSettings as PollSettings,
    WindowVerdict as PollVerdict,
};

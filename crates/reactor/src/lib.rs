//! One thread: io_uring, eventfds, timers, clock.
//!
//! # Words
//! - [`Reactor`]: a thread that owns one io_uring and a set of pollers. It is joined on drop.
//! - [`Handle`]: sends work to it from other threads.
//! - [`Poller`]: something that looks for work when asked, for example one virtqueue. It belongs
//!   to exactly one reactor, so what it does needs no lock (design 4.1).
//! - **Hot**: asked at every turn of the loop. **Cold**: armed; costs nothing until its eventfd
//!   or one of its operations wakes it.
//! - [`PeerNotifier`]: signals a peer without ever waiting for it.
//! - [`Histogram`]: counts of durations; one writer, readers without a lock.
//! - [`CompletionPort`]: where the operations of one owner come back. [`IoOp`] goes in, [`OpCompletion`] comes out.
//!
//! # Model
//! ```text
//! loop: look at the completion queue (tail, and the TASKRUN flag) -> deliver
//!       poll every hot poller; one that found nothing arms and goes cold, unless it pays to look on
//!       submit what was queued, once
//!       nothing hot: sleep in the kernel until a completion
//! ```
//! What looking on costs and brings is judged for each poller by its [`PollWindow`], allowed by
//! guards, and set by a [`PollPolicy`]: see `spin` and `cpus`.
//!
//! The cost of a turn depends on hot pollers only: an idle queue is an eventfd known to the ring,
//! and an idle reactor has no timer. While some poller looks on or would like to, one thread of the
//! process measures how much CPU is free, ten times a second.
//!
//! # Errors and invariants
//! - What the kernel sees (buffers, iovecs, descriptors) is owned by the operation slab from
//!   submission to completion; no future and no caller can drop it early.
//! - A receive or a send may wait for ever on its peer: whoever owns the socket shuts it down when
//!   it is dropped, so that a reactor can end.
//! - An operation whose port is gone still runs to its end; its result is dropped.
//! - Nothing blocks on a reactor thread. A poller that does harms its neighbours.
//! - A panic on a reactor's thread ends the process, before anybody can take the reactor's silence
//!   for an answer: see `panic`.
//! - [`Stopped`] is the answer of a reactor that has ended.
//!
//! # How to test
//! Spawn one and send it pollers; [`ReactorCounters`] counts system calls and sleeps.
#![allow(unsafe_code)] // The kernel is handed raw pointers; `ring` and `file` own that.
// `ticks` reads the CPU's counter, `tun` makes calls of a driver.

mod clock;
mod context;
mod core;
mod cpus;
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
pub use file::File;
pub use histogram::{Histogram, Snapshot, Summary};
pub use mailbox::{Handle, Stopped};
pub use notifier::PeerNotifier;
pub use op::{CompletionPort, IoOp, OpCompletion};
pub use probe::{Probe, probe};
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

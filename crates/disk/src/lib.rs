//! The Disk contract and its backends: file, block device, memory, null.
//!
//! # Words
//! - [`Disk`]: something with a geometry that channels can be opened on. Shared by all threads.
//! - [`Channel`]: one reactor's way to a disk. Requests go in ([`Channel::submit`]), completions
//!   come out ([`Channel::reap`]).
//! - [`Request`]: a checked range of bytes, what to do with it, and the buffers it owns.
//! - **Activate**: take the lock that keeps a second writer away. A disk that is opened and not
//!   activated only tells its geometry.
//! - **Fence**: keeps a successor from activating while the kernel still ends the I/O of a process
//!   that was killed ([`Disk::wait_fence`]).
//! - **Home reactor**: a disk with metadata that changes has one reactor that owns it; channels
//!   elsewhere answer [`SubmitOutcome::Pending`] and ask it. The disks here have none.
//!
//! # Model
//! `submit` answers at once ([`SubmitOutcome::Done`]), later through `reap`
//! ([`SubmitOutcome::Pending`]), or hands the request back because it is out of something
//! ([`SubmitOutcome::Full`]): the caller keeps it and tries again after the next completion. A
//! channel never blocks and never drops a request.
//!
//! | backend | data | flush | discard, zeroes | full storage |
//! |---|---|---|---|---|
//! | [`FileDisk`] | io_uring, O_DIRECT or buffered | fdatasync | fallocate, else plain zeroes | waits or errors |
//! | [`MemoryDisk`] | copied at once | nothing | fallocate on the memfd | - |
//! | [`NullDisk`] | untouched | nothing | nothing | - |
//!
//! # Errors
//! [`DiskError`] for opening, locking and resizing: it names the path, the cause and what to do.
//! [`IoError`] for a request: what a guest can be told.
//!
//! # Invariants
//! - Whoever submits has checked the range against [`Geometry::check`]; a channel still never
//!   touches a byte outside its disk.
//! - Decorators forward every data operation explicitly: no method here has a default that drops
//!   data.
//! - Buffers come back with the completion, on success and on failure, whole or consumed.
//!
//! # How to test
//! `conformance` (feature of that name) runs one disk from two reactors; every backend passes it.
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod error;
mod file;
mod null;
mod ram;
mod request;

use std::fmt::Debug;

use reactor::Context;

pub use error::{DiskError, IoError};
pub use file::{FileDisk, FileIdentity, FileOptions, OnFull, fence_byte};
pub use null::NullDisk;
pub use ram::MemoryDisk;
pub use request::{Completion, Extent, Geometry, Request, RequestKind, SubmitOutcome};

/// Something that stores blocks. All methods may be called from any thread but a reactor's,
/// except [`Disk::open_channel`], which runs on the reactor that will own the channel, and what is
/// said to never wait.
pub trait Disk: Debug + Send + Sync {
    /// Size and limits now. Size grows only by [`Disk::resize`].
    fn geometry(&self) -> Geometry;

    /// A channel for the reactor and the poller that `context` belongs to.
    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel>;

    /// Sleeps until the kernel has ended all I/O that a process before this one had under way on
    /// the same disk: until then what it wrote may land after what we write. That may take as
    /// long as storage hangs: call it on a thread that can be left alone. Holds from then on
    /// until [`Disk::deactivate`].
    ///
    /// # Errors
    /// The storage has no locks.
    fn wait_fence(&self) -> Result<(), DiskError>;

    /// Takes the lock: from here on requests may be submitted. Twice is once.
    ///
    /// # Errors
    /// [`DiskError::Locked`] when somebody else uses the image, [`DiskError::Fenced`] when
    /// [`Disk::wait_fence`] would wait.
    fn activate(&self) -> Result<(), DiskError>;

    /// Makes acknowledged writes durable and releases the lock. All channels must be drained.
    ///
    /// # Errors
    /// The flush failed; the lock is released all the same.
    fn deactivate(&self) -> Result<(), DiskError>;

    /// Grows the disk to `size` bytes, or takes the size that its storage has now.
    ///
    /// # Errors
    /// [`DiskError::Resize`]: it would shrink, or the storage cannot.
    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError>;

    /// Requests that wait for full storage now, over all channels.
    fn stalled(&self) -> u64;

    /// Which bytes from `offset` on are stored and which are holes that read zeroes: at most
    /// `limit` extents in order, without a break, that begin at `offset` and end at
    /// `offset + len` at the latest. Whoever writes meanwhile makes the answer old. May wait for
    /// the storage: never on a reactor.
    ///
    /// # Errors
    /// Outside of the disk, or the storage's refusal.
    fn extents(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Extent>, IoError>;

    /// Nothing is ever stored, so whoever reads need not be sent any data: it may be told that all
    /// is zero. Never waits.
    fn reads_zeroes(&self) -> bool {
        false
    }

    /// Writing zeroes moves no data, as far as is known; `unmap` as in [`RequestKind::WriteZeroes`].
    /// Never waits.
    fn zeroes_fast(&self, unmap: bool) -> bool;
}

/// One reactor's way to a disk.
pub trait Channel {
    /// Starts a request.
    fn submit(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome;

    /// Moves requests that have ended into `out`.
    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>);

    /// The queue is being stopped: what waits for storage to get room fails now, so that
    /// everything that was submitted ends. From then on nothing waits; a queue that starts again
    /// opens a channel of its own.
    fn fail_stalled(&mut self, context: &mut Context<'_>);

    /// The queue was given up with requests under way, and its guest goes on elsewhere: from here
    /// on no step of any request begins and nothing is copied into its buffers. What the kernel
    /// has can only be waited for; every request still ends through [`Channel::reap`], with an
    /// outcome that means nothing.
    fn abandon(&mut self);
}

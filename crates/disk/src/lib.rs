//! The Disk contract and its backends: file, block device, memory, null, and a window of another
//! disk.
//!
//! # Words
//! - [`Disk`]: a device with a geometry, on which channels are opened. All threads share it.
//! - [`Channel`]: one reactor's access to a disk. Requests go in ([`Channel::submit`]), completions
//!   come out ([`Channel::reap`]).
//! - [`Request`]: a checked range of bytes, what to do with it, and the buffers it owns.
//! - **Activate**: take the lock that keeps a second writer away. A disk that is opened but not
//!   activated only reports its geometry.
//! - **Fence**: keeps a successor from activating while the kernel still ends the I/O of a killed
//!   process ([`Disk::wait_fence`]).
//! - **Home reactor**: the one reactor that owns a disk whose metadata changes. Channels elsewhere
//!   answer [`SubmitOutcome::Pending`] and ask it. The disks here have none.
//!
//! # Model
//! `submit` answers at once ([`SubmitOutcome::Done`]), or later through `reap`
//! ([`SubmitOutcome::Pending`]). If the channel is out of a resource, it hands the request back
//! ([`SubmitOutcome::Full`]); the caller keeps it and retries after the next completion. A channel
//! never blocks and never drops a request.
//!
//! | backend | data | flush | discard, zeroes | full storage |
//! |---|---|---|---|---|
//! | [`FileDisk`] | io_uring, direct or buffered | fdatasync | fallocate, zeroes | waits or fails |
//! | [`MemoryDisk`] | copied at once | nothing | fallocate on the memfd | - |
//! | [`NullDisk`] | untouched | nothing | nothing | - |
//! | [`FileDisk`] with a [`ModelDevice`] | as a file, not before the device | as a file | as a file | as a file |
//! | [`Window`] | those of the disk that contains it, at an offset | | | |
//! | [`SmallBlocks`] | of another disk, by read-modify-write | as that disk | as that disk | as that disk |
//!
//! # Design
//! **A failed flush stays failed.** The kernel reports lost data once per open file and forgets the
//! pages. After that, every flush on the disk fails until the disk is attached anew. So no guest
//! takes a later success for a promise.
//!
//! **Locks are QEMU's.** An active disk sets the marks that QEMU sets on an image: OFD read locks
//! on bytes 100+n and 200+n. So `qemu-img`, QEMU and this process refuse each other's second
//! writer.
//!
//! **A dead process's I/O is fenced.** The kernel goes on with the requests of a killed process. An
//! active disk holds one more lock, on a byte above 2^62 that disk id and socket select
//! ([`fence_byte`]), by the open file that its I/O uses. The lock goes with the last request. A
//! successor sleeps in the kernel until it has the byte, on a thread of its own, and lets no
//! front-end in before. Without write permission it cannot take the lock that it would sleep for.
//! It checks with growing pauses, because no event exists.
//!
//! **Small reads of what is in memory need no io_uring.** A buffered channel asks the page cache
//! first, without waiting. A file system that has no such read is asked once by each channel. Files
//! on tmpfs are read at once, because io_uring hands each of their reads to a kernel thread. Only a
//! page that the host swapped out makes such a read wait, as it does for a memory disk and for
//! guest memory: a host whose VMs must not wait has no swap, or keeps it away from them. Buffered
//! writes go to a kernel thread on every file system: they wait for the file's lock, which a discard
//! holds for long, and for free memory.
//!
//! **Full storage makes requests wait.** The kernel has no event for "space is available". So
//! stalled requests are retried twice a second, and only while some wait. When a queue stops, it
//! gives up waiting ([`Channel::fail_stalled`]). With an in-flight region the requests stay on
//! record and are submitted at the next start. Without one they end in an error, because a ring
//! cannot give a request back unserved. A queue that is handed over to another process leaves them
//! on record in both cases, once nothing else is in flight ([`Channel::waiting`]).
//!
//! **The guest's block size is a property of the disk.** Storage may need larger blocks for direct
//! I/O than the guest was told. [`SmallBlocks`] then stands before it; a disk that needs no
//! read-modify-write has no such layer.
//!
//! **Bounce buffers belong to the process.** A bounded pool serves all channels, and each channel may
//! have one buffer more, so none waits for another. The pool keeps few free buffers.
//!
//! # Errors
//! [`DiskError`] for opening, locking and resizing: it names the path, the cause and what to do.
//! [`IoError`] for a request: the failures that a guest can distinguish.
//!
//! # Invariants
//! - The submitter has checked the range against [`Geometry::check`]. A channel still never touches
//!   a byte outside its disk.
//! - Decorators forward every data operation explicitly: no method here has a default that drops
//!   data. The methods with a default ask the decorated disk ([`Disk::inner`]), apart from
//!   [`Disk::open_layer`], whose default is right for every disk.
//! - Buffers come back with the completion, on success and on failure, whole or consumed.
//!
//! # How to test
//! `conformance` (feature of that name) runs one disk from two reactors; every backend passes it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bounce;
mod child;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod error;
mod file;
mod layer;
mod model_device;
mod null;
mod overlay_counts;
mod ram;
mod replaceable;
mod request;
mod room_waits;
mod small_blocks;
mod storage;
mod window;

use std::fmt::Debug;
use std::sync::Arc;

use reactor::Context;

pub use bounce::{BounceBuffer, BouncePool, NoBuffer};
pub use child::Child;
pub use error::{DiskError, IoError};
pub use file::{FileDisk, FileIdentity, FileOptions, ImageLock, OnFull, fence_byte, open_image};
pub use layer::{Layer, Location, Locator};
pub use model_device::ModelDevice;
pub use null::NullDisk;
pub use overlay_counts::OverlayCounts;
pub use ram::MemoryDisk;
pub use replaceable::Replaceable;
pub use request::{
    CacheState, Completion, Extent, Geometry, LayerCounts, Request, RequestKind, SubmitOutcome,
    WarmPhase, WarmState,
};
pub use room_waits::RoomWaits;
pub use small_blocks::SmallBlocks;
pub use storage::{MetadataOp, Storage, StorageDisk, StorageError};
pub use window::Window;

/// Outcome of a request whose channel was abandoned.
const CANCELED: Result<(), IoError> = Err(IoError::Storage(rustix::io::Errno::CANCELED));

/// Block storage. All methods may be called from any thread but a reactor's. Exceptions are
/// [`Disk::open_channel`], which runs on the reactor that will own the channel, and methods that
/// never wait.
pub trait Disk: Debug + Send + Sync {
    /// Returns the disk that this one decorates, or `None`. A method with a default calls that disk.
    fn inner(&self) -> Option<Arc<dyn Disk>>;

    /// Returns the current size and limits. The size grows only by [`Disk::resize`].
    fn geometry(&self) -> Geometry;

    /// Opens a channel for the reactor and the poller that `context` belongs to.
    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel>;

    /// Opens the disk as a layer below another disk, for the reactor and the poller that `context`
    /// belongs to. It is active, and does not change as long as the layer is used.
    fn open_layer(self: Arc<Self>, context: &mut Context<'_>) -> Layer {
        Layer::opaque(self.open_channel(context))
    }

    /// Sleeps until the kernel has completed all I/O that a former process had in flight on this
    /// disk. Until then the former process's writes may land after new ones. This may take as long
    /// as the storage hangs: call it on a thread that can be abandoned. The fence is then held
    /// until [`Disk::deactivate`].
    ///
    /// # Errors
    /// Fails if the storage has no locks.
    fn wait_fence(&self) -> Result<(), DiskError>;

    /// Takes the lock; from then on requests may be submitted. A second call has no effect.
    ///
    /// # Errors
    /// [`DiskError::Locked`] if another process uses the image, [`DiskError::Fenced`] if
    /// [`Disk::wait_fence`] would wait.
    fn activate(&self) -> Result<(), DiskError>;

    /// Returns whether also requests that only read need [`Disk::activate`]. Never waits.
    fn reads_need_activation(&self) -> bool {
        self.inner().is_some_and(|inner| inner.reads_need_activation())
    }

    /// Makes acknowledged writes durable and releases the lock. All channels must be drained.
    ///
    /// # Errors
    /// Fails if the flush fails; the lock is released in any case.
    fn deactivate(&self) -> Result<(), DiskError>;

    /// Makes all completed writes durable, so that another tree may have this disk below its top.
    /// The disk is active. May wait for the storage.
    ///
    /// # Errors
    /// Storage failed, now or before: what was written may be lost.
    fn sync(&self) -> Result<(), DiskError>;

    /// Lets background work end soon. [`Disk::quiesce`] follows, perhaps on another thread that
    /// comes late: [`Disk::unquiesce`] undoes this call whether or not it has come. Never waits.
    fn begin_quiesce(&self) {
        self.inner().iter().for_each(|inner| inner.begin_quiesce());
    }

    /// Stops what the disk does in the background, so that another process can continue with it. No
    /// request that changes the disk is in flight. Other requests may wait from then on. May wait
    /// for the storage. Nothing is flushed.
    fn quiesce(&self) {
        self.inner().iter().for_each(|inner| inner.quiesce());
    }

    /// Undoes [`Disk::quiesce`]: no other process continues with the disk.
    fn unquiesce(&self) {
        self.inner().iter().for_each(|inner| inner.unquiesce());
    }

    /// Grows the disk to `size` bytes, or to the current size of its storage if `size` is `None`.
    ///
    /// # Errors
    /// [`DiskError::Resize`] if the disk would shrink or the storage cannot grow.
    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError>;

    /// Returns whether all channels must be closed before [`Disk::resize`] changes the size. Never
    /// waits.
    fn drains_to_resize(&self) -> bool {
        self.inner().is_some_and(|inner| inner.drains_to_resize())
    }

    /// Returns the number of requests that now wait for space on the storage, over all channels.
    fn stalled(&self) -> u64;

    /// Returns the number of read-modify-writes that the storage's larger blocks have caused, over
    /// all channels. 0 for a disk that needs none. Never waits.
    fn small_writes(&self) -> u64 {
        self.inner().map_or(0, |inner| inner.small_writes())
    }

    /// Returns the counts of the layers with a map, over all channels. `None` for a disk without such
    /// a layer. Never waits.
    fn layer_counts(&self) -> Option<LayerCounts> {
        self.inner()?.layer_counts()
    }

    /// Returns the counts of the write layer in memory, if the disk has one. Never waits.
    fn overlay_counts(&self) -> Option<OverlayCounts> {
        self.inner()?.overlay_counts()
    }

    /// Returns the state of the cache of a golden image below. `None` if there is none. Never waits.
    fn cache_state(&self) -> Option<CacheState> {
        self.inner()?.cache_state()
    }

    /// Returns the stored extents and the holes of a range, in order and without gaps. At most
    /// `limit` extents are returned. They begin at `offset` and end at `offset + len` at the
    /// latest. A concurrent write makes the result outdated. May wait for the storage: never call
    /// it on a reactor.
    ///
    /// # Errors
    /// Fails if the range is outside of the disk or the storage fails.
    fn extents(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Extent>, IoError>;

    /// Returns whether the disk never stores data. A reader need not be sent any data then: all of
    /// it is zero. Never waits.
    fn reads_zeroes(&self) -> bool {
        self.inner().is_some_and(|inner| inner.reads_zeroes())
    }

    /// Returns whether writing zeroes moves no data, as far as is known; `unmap` as in
    /// [`RequestKind::WriteZeroes`]. Never waits.
    fn zeroes_fast(&self, unmap: bool) -> bool;
}

/// One reactor's access to a disk.
pub trait Channel {
    /// Starts a request.
    fn submit(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome;

    /// Moves completed requests into `out`.
    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>);

    /// Returns the number of requests that wait for space on the storage, or behind such a request.
    /// None of them is with the kernel.
    fn waiting(&self) -> usize;

    /// Prepares to drain the queue: requests that wait for space on the storage fail now, so that
    /// all submitted requests complete. From then on no request waits for space. A queue that
    /// starts again opens its own channel.
    fn fail_stalled(&mut self, context: &mut Context<'_>);

    /// Abandons the channel, because its guest continues on another queue while requests are in
    /// flight. From then on no step of any request begins, and no data is copied into its buffers.
    /// Operations in the kernel can only be waited for. Every request still completes through
    /// [`Channel::reap`], with a meaningless outcome.
    fn abandon(&mut self);
}

//! Disk in a raw image file or on a block device.

mod channel;
mod dirty;
mod extents;
mod fence;
mod inspect;
mod lock;
mod model;
mod request;
mod schedule;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use reactor::Context;
use rustix::fs::{fdatasync, ftruncate};

use crate::model_device::ModelDevice;
use crate::null::check_growth;
use crate::room_waits::RoomWaits;
use crate::storage::{MetadataOp, StorageDisk};
use crate::{Channel, Disk, DiskError, Extent, Geometry, IoError, Layer};

use channel::FileChannel;
use dirty::DirtyBytes;
use fence::Fence;
pub use fence::fence_byte;
pub(crate) use inspect::ImageInfo;
pub use inspect::{FileIdentity, open_image};
pub use lock::ImageLock;
pub(crate) use lock::range as lock_range;
use model::ModelPlace;

/// Behaviour of a write when the storage is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// The write waits until there is space.
    #[default]
    Wait,
    /// The write fails.
    Error,
}

/// Options for opening an image.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Path of the image or block device, or the name of a descriptor in messages.
    pub path: PathBuf,
    /// True to refuse writes.
    pub read_only: bool,
    /// True for O_DIRECT, false for I/O through the page cache.
    pub direct: bool,
    /// Smallest logical block size in bytes; 512 if `None`. The disk has a larger one if direct I/O
    /// on the storage needs it. [`crate::SmallBlocks`] then serves smaller requests.
    pub block_size: Option<u32>,
    /// Behaviour on full storage.
    pub on_full: OnFull,
}

/// State shared by the channels of one disk. Written only when something unusual happens.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Requests that wait for space.
    pub(crate) waits: Arc<RoomWaits>,
    /// Whether the file system lacks PUNCH_HOLE, and whether it lacks ZERO_RANGE.
    pub(crate) no_punch: AtomicBool,
    pub(crate) no_zero_range: AtomicBool,
    /// True once a flush has failed. The kernel reports a failed flush once and forgets the data
    /// that it could not write, so every later flush on any queue must fail too.
    pub(crate) lost: AtomicBool,
    /// Bytes that only the page cache has.
    pub(crate) dirty: DirtyBytes,
}

/// Disk in a raw image file or on a block device.
#[derive(Debug)]
pub struct FileDisk {
    options: FileOptions,
    file: Arc<OwnedFd>,
    image_info: ImageInfo,
    size: AtomicU64,
    lock: Mutex<Option<ImageLock>>,
    fence: Option<Mutex<Fence>>,
    is_frozen: AtomicBool,
    shared: Arc<Shared>,
    storage_disk: OnceLock<Arc<StorageDisk>>,
    model: OnceLock<ModelPlace>,
}

impl FileDisk {
    /// Opens an image and determines its size and block size. Takes no lock.
    ///
    /// # Errors
    /// Fails if the image is missing, unreadable, empty or odd-sized, if it is neither a file nor a
    /// device, or if it does not support requested direct I/O.
    pub fn open(options: FileOptions) -> Result<Self, DiskError> {
        Self::reopen(options, u64::MAX)
    }

    /// Opens an image that a guest knows with a size of `size` bytes. If the image is larger now,
    /// the rest stays unused until a resize.
    ///
    /// # Errors
    /// Fails as [`Self::open`] does. A smaller image is opened with its current size.
    pub fn reopen(options: FileOptions, size: u64) -> Result<Self, DiskError> {
        let found = inspect::find(&options)?;
        let (file, image_info) = inspect::open(&options, found.as_fd(), size)?;
        Ok(Self::with(options, file, image_info, false))
    }

    /// Opens the file of a descriptor that was handed in, as [`Self::reopen`] opens a path. The disk
    /// has an open file of its own: locks and fence must not be those of all holders of the
    /// descriptor, and its cache mode must not change theirs.
    ///
    /// # Errors
    /// Fails as [`Self::reopen`] does, or if the descriptor is not open for what the disk needs.
    pub fn reopen_fd(
        options: FileOptions,
        fd: BorrowedFd<'_>,
        size: u64,
    ) -> Result<Self, DiskError> {
        inspect::check_access(&options, fd)?;
        let (file, image_info) = inspect::open(&options, fd, size)?;
        Ok(Self::with(options, file, image_info, false))
    }

    /// Opens a file that stores an image with metadata, from its path or from a descriptor that was
    /// handed in. Its size need not be a number of blocks, and requests may go beyond it: the file
    /// grows.
    ///
    /// # Errors
    /// Fails as [`Self::reopen`] and [`Self::reopen_fd`] do.
    pub fn open_container(
        options: FileOptions,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Self, DiskError> {
        let found = match fd {
            Some(fd) => {
                inspect::check_access(&options, fd)?;
                fd.try_clone_to_owned().map_err(DiskError::os("duplicate", &options.path))?
            }
            None => inspect::find(&options)?,
        };
        let whole = inspect::whole_blocks(&options, found.as_fd())?;
        let (file, image_info) = inspect::open(&options, found.as_fd(), whole)?;
        Ok(Self::with(options, file, image_info, false))
    }

    /// Takes over an image that another process has opened with the same options and hands over
    /// ([`Self::handover`]). The locks belong to the open file, so both processes share them.
    /// Activating takes them again without effect, and neither process releases them by closing its
    /// descriptor.
    ///
    /// # Errors
    /// Fails if the descriptor is neither a file nor a device, if the image is smaller than `size`,
    /// or if it does not support requested direct I/O.
    pub fn adopt(
        options: FileOptions,
        file: OwnedFd,
        size: u64,
        lost: bool,
    ) -> Result<Self, DiskError> {
        let image_info = inspect::inspect_fd(&options, file.as_fd(), size)?;
        Ok(Self::with(options, file, image_info, lost))
    }

    fn with(options: FileOptions, file: OwnedFd, image_info: ImageInfo, lost: bool) -> Self {
        let size = AtomicU64::new(image_info.size);
        let shared = Shared { lost: AtomicBool::new(lost), ..Shared::default() };
        let (lock, shared) = (Mutex::new(None), Arc::new(shared));
        let (file, is_frozen) = (Arc::new(file), AtomicBool::new(false));
        let (fence, storage_disk, model) = (None, OnceLock::new(), OnceLock::new());
        Self {
            options,
            file,
            image_info,
            size,
            lock,
            fence,
            is_frozen,
            shared,
            storage_disk,
            model,
        }
    }

    /// Returns the handover state for another process: the open file, and whether a flush has
    /// failed.
    pub fn handover(&self) -> (&Arc<OwnedFd>, bool) {
        (&self.file, self.shared.lost.load(Ordering::Relaxed))
    }

    /// Notes that nothing writes to the file any more, so that other readers may open it: the file
    /// is below the top of a tree from now on.
    pub fn freeze(&self) {
        self.is_frozen.store(true, Ordering::Release);
        if let Some(lock) = &mut *self.lock.lock().unwrap_or_else(PoisonError::into_inner) {
            lock.allow_readers();
        }
    }

    /// Makes every later flush fail: a flush of the file has failed elsewhere.
    pub fn set_lost(&self) {
        self.shared.lost.store(true, Ordering::Relaxed);
    }

    /// Returns the bytes that guests have written to the page cache so far. A sync of the file that begins
    /// now makes them durable.
    pub fn dirty_mark(&self) -> u64 {
        self.shared.dirty.mark()
    }

    /// Notes that a sync of the file which began at `mark` has succeeded ([`Self::dirty_mark`]).
    pub fn set_synced(&self, mark: u64) {
        self.shared.dirty.set_synced(mark);
    }

    /// Adds a fence on `byte` ([`fence_byte`]). The disk can be activated only when no I/O of a
    /// predecessor with the same fence is in flight any more.
    #[must_use]
    pub fn fenced(mut self, byte: u64) -> Self {
        self.fence = Some(Mutex::new(Fence::new(byte)));
        self
    }

    /// Returns whether the file's bytes are in memory: it is on tmpfs or ramfs.
    pub fn is_in_memory(&self) -> bool {
        self.image_info.is_in_memory
    }

    /// Returns the count of requests that wait for space on this storage: those of its own channels, and
    /// those that layers above add.
    pub fn room_waits(&self) -> &Arc<RoomWaits> {
        &self.shared.waits
    }

    /// Lets the scheduler of the storage dispatch the requests of channels that are opened from now on.
    /// Only the first call has an effect.
    pub fn share_storage(&self, disk: Arc<StorageDisk>) {
        let _ = self.storage_disk.set(disk);
    }

    /// Lets requests of channels that are opened from now on take as long as on `device`. The file lies
    /// on it behind those for which this was called before. Only the first call has an effect.
    pub fn delay(&self, device: &Arc<ModelDevice>) {
        let place = || ModelPlace { device: Arc::clone(device), offset: device.place(self.size()) };
        let _ = self.model.get_or_init(place);
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns whether the scheduler of a storage dispatches the requests of new channels.
    pub fn shares_storage(&self) -> bool {
        self.storage_disk().is_some()
    }

    /// Returns the disk on the storage whose scheduler dispatches the requests of new channels.
    pub fn storage_disk(&self) -> Option<&Arc<StorageDisk>> {
        self.storage_disk.get()
    }

    /// Charges the share of the storage for an operation that the file's metadata has needed, if other
    /// disks want the storage. Its channels wait longer for it.
    pub fn charge_metadata(&self, op: MetadataOp) {
        if let Some(disk) = self.storage_disk.get() {
            disk.charge(op);
        }
    }

    fn fence(&self) -> Option<MutexGuard<'_, Fence>> {
        self.fence.as_ref().map(|fence| fence.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fence_error(&self) -> impl FnOnce(nix::errno::Errno) -> DiskError {
        let os = self.os("fence");
        move |errno| os(rustix::io::Errno::from_raw_os_error(errno as i32))
    }

    /// Returns the identity of the open file or device.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn identity(&self) -> Result<FileIdentity, DiskError> {
        inspect::identity(self.file.as_fd()).map_err(self.os("inspect"))
    }

    fn os(&self, action: &'static str) -> impl FnOnce(rustix::io::Errno) -> DiskError {
        let path = self.options.path.clone();
        move |source| DiskError::Os { action, path, source }
    }
}

impl Disk for FileDisk {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.load(Ordering::Relaxed),
            block_size: self.image_info.block_size,
            read_only: self.options.read_only || self.is_frozen.load(Ordering::Relaxed),
            discard: true,
            discard_granularity: self.image_info.discard_granularity,
        }
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        let (file, shared) = (self.file.clone(), self.shared.clone());
        let storage = (self.storage_disk.get(), self.model.get());
        let (options, image_info) = (&self.options, self.image_info);
        match self.model.get() {
            None => Box::new(FileChannel::<false>::new(
                options, image_info, file, shared, storage, context,
            )),
            Some(_) => Box::new(FileChannel::<true>::new(
                options, image_info, file, shared, storage, context,
            )),
        }
    }

    fn open_layer(self: Arc<Self>, context: &mut Context<'_>) -> Layer {
        let size = self.geometry().size;
        Layer::plain(self, size, context)
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        let Some(fence) = self.fence() else { return Ok(()) };
        if fence.is_held() {
            return Ok(());
        }
        // Without the mutex: this may take as long as the storage hangs.
        let byte = fence.byte();
        drop(fence);
        fence::wait(&self.file, byte, !self.options.read_only).map_err(self.fence_error())?;
        if let Some(mut fence) = self.fence() {
            fence.taken();
        }
        Ok(())
    }

    fn activate(&self) -> Result<(), DiskError> {
        // First, since the image marks of a dead process also disappear with its last request.
        if let Some(mut fence) = self.fence()
            && !fence.is_held()
            && !fence.try_take(&self.file).map_err(self.fence_error())?
        {
            return Err(DiskError::Fenced { path: self.options.path.clone() });
        }
        let mut slot = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let (path, writes) = (&self.options.path, !self.options.read_only);
            let lock = ImageLock::take(path, self.file.clone(), writes)?;
            let found = inspect::size(self.file.as_fd()).map_err(self.os("measure"))?;
            let size = self.size.load(Ordering::Relaxed);
            if found < size {
                return Err(DiskError::Shrunk { path: path.clone(), found, size });
            }
            *slot = Some(lock);
        }
        Ok(())
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        let mut slot = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let synced = if slot.is_some() && !self.options.read_only {
            fdatasync(&*self.file).map_err(self.os("flush"))
        } else {
            Ok(())
        };
        *slot = None;
        if let Some(mut fence) = self.fence() {
            fence.release(&self.file);
        }
        if self.shared.lost.load(Ordering::Relaxed) {
            return Err(self.os("flush")(rustix::io::Errno::IO));
        }
        synced
    }

    fn sync(&self) -> Result<(), DiskError> {
        if self.options.read_only {
            return Ok(());
        }
        let mark = self.dirty_mark();
        let synced = fdatasync(&*self.file).map_err(self.os("flush"));
        match &synced {
            Ok(()) => self.set_synced(mark),
            Err(_) => self.set_lost(),
        }
        if self.handover().1 {
            return Err(self.os("flush")(rustix::io::Errno::IO));
        }
        synced
    }

    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError> {
        let now = self.geometry();
        let found = inspect::size(self.file.as_fd()).map_err(self.os("measure"))?;
        let target = match size {
            Some(size) => size,
            None => found - found % u64::from(now.block_size),
        };
        check_growth(now, target)?;
        if target > found {
            if self.image_info.is_block_device {
                let problem = format!("the device has {found} bytes; grow the device first");
                return Err(DiskError::Resize { problem });
            }
            let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            if lock.is_none() {
                let problem =
                    "the disk is not active, so the image is not locked; activate it first";
                return Err(DiskError::Resize { problem: problem.into() });
            }
            if self.options.read_only {
                return Err(DiskError::Resize { problem: "the disk is read-only".into() });
            }
            ftruncate(&*self.file, target).map_err(self.os("grow"))?;
        }
        self.size.store(target, Ordering::Relaxed);
        Ok(self.geometry())
    }

    fn stalled(&self) -> u64 {
        self.shared.waits.count()
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Extent>, IoError> {
        self.geometry().check_inside(offset, len)?;
        extents::map(self.file.as_fd(), offset, len, self.image_info.block_size.into(), limit)
    }

    fn zeroes_fast(&self, unmap: bool) -> bool {
        let refused = if unmap { &self.shared.no_punch } else { &self.shared.no_zero_range };
        !refused.load(Ordering::Relaxed)
    }
}

//! A raw image file or a block device.

mod bounce;
mod channel;
mod extents;
mod fence;
mod inspect;
mod lock;
mod request;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reactor::Context;
use rustix::fs::{fdatasync, ftruncate};

use crate::null::check_growth;
use crate::{Channel, Disk, DiskError, Extent, Geometry, IoError};

use fence::Fence;
pub use fence::fence_byte;
pub use inspect::FileIdentity;
pub(crate) use inspect::ImageInfo;
use lock::ImageLock;

/// What happens to a write when the storage has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// It waits until there is room.
    #[default]
    Wait,
    /// It fails.
    Error,
}

/// How to open a file.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The image or block device.
    pub path: PathBuf,
    /// Refuse writes.
    pub read_only: bool,
    /// O_DIRECT; otherwise through the page cache.
    pub direct: bool,
    /// Logical block size in bytes; what the storage asks of direct I/O when absent.
    pub block_size: Option<u32>,
    /// Behaviour on full storage.
    pub on_full: OnFull,
}

/// What the channels of one disk share. Written only when something unusual happens.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Requests that wait for room.
    pub(crate) waiting: AtomicU64,
    /// The file system has no PUNCH_HOLE, respectively no ZERO_RANGE.
    pub(crate) no_punch: AtomicBool,
    pub(crate) no_zero_range: AtomicBool,
    /// A flush failed. The kernel reports that once to one of us and forgets what it could not
    /// write, so that every later flush, on any queue, must fail too.
    pub(crate) lost: AtomicBool,
}

/// A raw image file or a block device.
#[derive(Debug)]
pub struct FileDisk {
    options: FileOptions,
    file: Arc<OwnedFd>,
    image_info: ImageInfo,
    size: AtomicU64,
    lock: Mutex<Option<ImageLock>>,
    fence: Option<Mutex<Fence>>,
    shared: Arc<Shared>,
}

impl FileDisk {
    /// Opens an image and finds out its size and block size. Takes no lock.
    ///
    /// # Errors
    /// Missing, unreadable, empty, odd-sized, no file or device, or no direct I/O.
    pub fn open(options: FileOptions) -> Result<Self, DiskError> {
        Self::reopen(options, u64::MAX)
    }

    /// Opens an image of which a guest was told that it has `size` bytes. If it is larger now, the
    /// rest is left alone until a resize.
    ///
    /// # Errors
    /// As [`Self::open`]. One that is smaller now is opened as it is.
    pub fn reopen(options: FileOptions, size: u64) -> Result<Self, DiskError> {
        let (file, image_info) = inspect::open(&options, size)?;
        Ok(Self::with(options, file, image_info, false))
    }

    /// Goes on with an image that another process has opened by the same options and hands over
    /// ([`Self::handover`]). Its locks belong to the open file and are shared: activating takes
    /// them again, which changes nothing, and neither process releases them by closing.
    ///
    /// # Errors
    /// No file or device, smaller than `size`, or no direct I/O.
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
        Self { options, file: Arc::new(file), image_info, size, lock, fence: None, shared }
    }

    /// What another process needs to go on with it: the open file, and whether a flush has failed.
    pub fn handover(&self) -> (&Arc<OwnedFd>, bool) {
        (&self.file, self.shared.lost.load(Ordering::Relaxed))
    }

    /// The same behind a fence on `byte` ([`fence_byte`]): it is activated only when no I/O of a
    /// predecessor that had the same fence is under way any more.
    #[must_use]
    pub fn fenced(mut self, byte: u64) -> Self {
        self.fence = Some(Mutex::new(Fence::new(byte)));
        self
    }

    fn fence(&self) -> Option<MutexGuard<'_, Fence>> {
        self.fence.as_ref().map(|fence| fence.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fence_error(&self) -> impl FnOnce(nix::errno::Errno) -> DiskError {
        let os = self.os("fence");
        move |errno| os(rustix::io::Errno::from_raw_os_error(errno as i32))
    }

    /// Which file or device it has open.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn identity(&self) -> Result<FileIdentity, DiskError> {
        inspect::identity(self.file.as_fd()).map_err(self.os("inspect"))
    }

    fn os(&self, action: &'static str) -> impl FnOnce(rustix::io::Errno) -> DiskError {
        let path = self.options.path.clone();
        move |source| DiskError::Os { action, path, source }
    }
}

impl Disk for FileDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.load(Ordering::Relaxed),
            block_size: self.image_info.block_size,
            read_only: self.options.read_only,
            discard: true,
        }
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        let (file, shared) = (self.file.clone(), self.shared.clone());
        Box::new(channel::FileChannel::new(&self.options, self.image_info, file, shared, context))
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        let Some(fence) = self.fence() else { return Ok(()) };
        if fence.is_held() {
            return Ok(());
        }
        // Not under the lock: this may take as long as storage hangs.
        let byte = fence.byte();
        drop(fence);
        fence::wait(&self.file, byte, !self.options.read_only).map_err(self.fence_error())?;
        if let Some(mut fence) = self.fence() {
            fence.taken();
        }
        Ok(())
    }

    fn activate(&self) -> Result<(), DiskError> {
        // First, since the marks of a dead process go with its last request too.
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

    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError> {
        let now = self.geometry();
        let found = inspect::size(self.file.as_fd()).map_err(self.os("measure"))?;
        let target = match size {
            Some(size) => size,
            None => found - found % u64::from(now.block_size),
        };
        check_growth(now, target)?;
        if target > found {
            if self.image_info.device {
                let problem = format!("the device has {found} bytes; grow the device first");
                return Err(DiskError::Resize { problem });
            }
            let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            if lock.is_none() {
                let problem = "the disk is not active, so the image is not ours; activate it first";
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
        self.shared.waiting.load(Ordering::Relaxed)
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

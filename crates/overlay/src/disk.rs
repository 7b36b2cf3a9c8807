//! A disk with a volatile write layer.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ::disk::{
    Channel, Child, Disk, DiskError, Extent, FileDisk, Geometry, IoError, LayerCounts,
    OverlayCounts, RoomWaits,
};
use ::memory::MemoryError;
use reactor::Context;

use crate::channel::OverlayChannel;
use crate::cleaner::Cleaner;
use crate::fill_rate::FillRate;
use crate::memory::{AdoptError, OverlayMemory};
use crate::overflow::Overflow;
use crate::shared::Shared;
use crate::{GRANULE, extents};

/// Properties of an overlay.
#[derive(Clone, Debug)]
pub struct OverlayOptions {
    /// Name of the disk in messages.
    pub name: PathBuf,
    /// Memory for written blocks in bytes: a multiple of [`GRANULE`], not 0.
    pub ram: u64,
    /// Most bytes of the overflow file. `None` for as many as its storage has room for.
    pub overflow_size: Option<u64>,
    /// True to refuse writes.
    pub read_only: bool,
    /// True if writes wait for space that neither memory nor the overflow file has, false if they fail.
    pub waits_for_room: bool,
}

/// Volatile write layer over a read-only disk.
#[derive(Debug)]
pub struct OverlayDisk {
    base: Arc<dyn Disk>,
    options: OverlayOptions,
    size: u64,
    /// The larger one of the base's and the overflow file's.
    block_size: u32,
    shared: Arc<Shared>,
    /// The memory as the keeper gets it.
    file: Arc<OwnedFd>,
    is_active: AtomicBool,
    cleaner: Mutex<Option<Cleaner>>,
    fill_rate: Mutex<FillRate>,
}

impl OverlayDisk {
    /// Creates an overlay over a base that does not change, and whose size the disk has. `preserved`
    /// is the memory of a former process of the same disk, whose writes go on. Changes nothing.
    ///
    /// # Errors
    /// There is no memory, or `preserved` is that of another disk.
    pub fn new(
        base: Arc<dyn Disk>,
        overflow: Option<(Arc<FileDisk>, PathBuf)>,
        options: OverlayOptions,
        preserved: Option<OwnedFd>,
    ) -> Result<Self, DiskError> {
        let Geometry { size, block_size, .. } = base.geometry();
        let of_overflow = overflow.as_ref().map_or(0, |(disk, _)| disk.geometry().block_size);
        let block_size = block_size.max(of_overflow);
        let refuse = |problem: String| DiskError::Image { path: options.name.clone(), problem };
        let memory_error = |source| DiskError::Memory { size: options.ram, source };
        let slots = u32::try_from(options.ram / GRANULE).unwrap_or(u32::MAX);
        if slots == 0 || slots == u32::MAX || !options.ram.is_multiple_of(GRANULE) {
            let ram = options.ram;
            return Err(refuse(format!("{ram} bytes of RAM are not a number of 4 KiB blocks")));
        }
        if u64::from(block_size) > GRANULE {
            return Err(refuse(format!("blocks of {block_size} bytes are larger than {GRANULE}")));
        }
        let granules = size.div_ceil(GRANULE);
        let memory = match preserved {
            None => OverlayMemory::create(granules, slots).map_err(memory_error)?,
            Some(fd) => {
                OverlayMemory::adopt(&fd, granules, slots).map_err(|error| match error {
                    AdoptError::Memory(source) => memory_error(source),
                    AdoptError::Other(problem) => refuse(format!(
                        "the preserved memory is that of another disk: {problem}; detach the disk, \
                     which loses what its guest has written, and attach it again"
                    )),
                })?
            }
        };
        let fd = memory.mapping().fd().map(|fd| fd.as_fd().try_clone_to_owned());
        let source = rustix::io::Errno::MFILE;
        let Some(Ok(file)) = fd else {
            return Err(memory_error(MemoryError::Os { action: "share", source }));
        };
        let size_max = options.overflow_size;
        let overflow = overflow.map(|(disk, path)| Overflow::new(disk, path, size_max));
        let overflow = overflow.transpose()?;
        let shared = Shared::new(memory, overflow).map_err(memory_error)?;
        Ok(Self {
            base,
            options,
            size,
            block_size,
            shared: Arc::new(shared),
            file: Arc::new(file),
            is_active: AtomicBool::new(false),
            cleaner: Mutex::default(),
            fill_rate: Mutex::new(FillRate::new(Instant::now())),
        })
    }

    /// Returns the file with map and written blocks. They exist as long as any process has it open.
    pub fn memory(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Returns the shared state, and the size in bytes.
    pub(crate) fn parts(&self) -> (&Arc<Shared>, u64) {
        (&self.shared, self.size)
    }

    /// Returns the name of the disk in messages.
    pub(crate) fn name(&self) -> &Path {
        &self.options.name
    }

    /// Returns the count of requests that wait for space.
    pub fn room_waits(&self) -> &Arc<RoomWaits> {
        &self.shared.room_waits
    }

    fn cleaner(&self) -> MutexGuard<'_, Option<Cleaner>> {
        self.cleaner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn overflow(&self) -> Option<&Arc<FileDisk>> {
        self.shared.overflow.as_ref().map(|overflow| &overflow.disk)
    }

    fn start_cleaner(&self) {
        let mut cleaner = self.cleaner();
        if cleaner.is_none() && !self.options.read_only {
            match Cleaner::start(&self.shared) {
                Ok(started) => *cleaner = Some(started),
                Err(error) => tracing::error!("the thread of an overlay cannot start: {error}"),
            }
        }
    }

    fn stop_cleaner(&self) {
        let cleaner = self.cleaner().take();
        // Without the lock: it may wait for the storage.
        drop(cleaner);
    }

    fn lock_and_restore(&self) -> Result<(), DiskError> {
        self.base.activate()?;
        if let Some(overflow) = &self.shared.overflow {
            overflow.disk.activate()?;
            overflow.check(self.shared.memory.overflow_id().load(Ordering::Acquire))?;
        }
        self.shared.restore().map_err(|problem| {
            let problem = format!("the memory of the overlay cannot be used: {problem}");
            DiskError::Image { path: self.options.name.clone(), problem }
        })
    }
}

impl Disk for OverlayDisk {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        // It has a base and an overflow file, and calls both.
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size,
            block_size: self.block_size,
            read_only: self.options.read_only,
            discard: true,
            discard_granularity: GRANULE as u32,
        }
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        self.start_cleaner();
        let base = Child::new(Arc::clone(&self.base).open_layer(context).channel);
        let overflow = self.overflow().map(|disk| Child::new(disk.open_channel(context)));
        let (shared, waits) = (Arc::clone(&self.shared), self.options.waits_for_room);
        Box::new(OverlayChannel::new(shared, self.size, (base, overflow), waits, context))
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        if let Some(overflow) = self.overflow() {
            overflow.wait_fence()?;
        }
        self.base.wait_fence()
    }

    fn activate(&self) -> Result<(), DiskError> {
        // Locked while the storage is waited for; no reactor opens channels before.
        let cleaner = self.cleaner();
        if self.is_active.load(Ordering::Acquire) {
            return Ok(());
        }
        self.lock_and_restore()?;
        self.is_active.store(true, Ordering::Release);
        drop(cleaner);
        Ok(())
    }

    fn reads_need_activation(&self) -> bool {
        // A successor must know which slots are in use before it fills one.
        true
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        self.stop_cleaner();
        self.is_active.store(false, Ordering::Release);
        let overflow = self.overflow().map_or(Ok(()), |overflow| overflow.deactivate());
        let base = self.base.deactivate();
        overflow.and(base)
    }

    fn sync(&self) -> Result<(), DiskError> {
        // Nothing outlives the host.
        Ok(())
    }

    fn begin_quiesce(&self) {
        self.base.begin_quiesce();
    }

    fn quiesce(&self) {
        self.stop_cleaner();
        self.base.quiesce();
    }

    fn unquiesce(&self) {
        self.base.unquiesce();
        if self.is_active.load(Ordering::Acquire) {
            self.start_cleaner();
        }
    }

    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError> {
        match size {
            None => Ok(self.geometry()),
            Some(size) if size == self.size => Ok(self.geometry()),
            Some(_) => {
                let problem = "an overlay is as large as its base; detach it and attach it over a \
                               larger base";
                Err(DiskError::Resize { problem: problem.into() })
            }
        }
    }

    fn drains_to_resize(&self) -> bool {
        // The size is fixed.
        false
    }

    fn stalled(&self) -> u64 {
        self.shared.room_waits.count()
    }

    fn small_writes(&self) -> u64 {
        0
    }

    fn layer_counts(&self) -> Option<LayerCounts> {
        self.base.layer_counts()
    }

    fn cache_state(&self) -> Option<::disk::CacheState> {
        self.base.cache_state()
    }

    fn overlay_counts(&self) -> Option<OverlayCounts> {
        let shared = &self.shared;
        let counters = &shared.counters;
        let overflow = shared.overflow.as_ref();
        let pool = shared.pool();
        let (free, places) = (pool.free_slots(), pool.places.count());
        drop(pool);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let grown_bytes = counters.grown.load(Ordering::Relaxed) * GRANULE as i64;
        let mut fill_rate = self.fill_rate.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes_per_second = fill_rate.update(Instant::now(), grown_bytes);
        drop(fill_rate);
        Some(OverlayCounts {
            ram_bytes: self.options.ram,
            ram_used_bytes: self.options.ram.saturating_sub(u64::from(free) * GRANULE),
            has_overflow: overflow.is_some(),
            overflow_limit_bytes: Some(load(&counters.overflow_limit)).filter(|limit| *limit > 0),
            overflow_used_bytes: places * GRANULE,
            overflow_size_bytes: self.options.overflow_size,
            file_limit_bytes: overflow.and_then(Overflow::file_limit_bytes),
            moved_bytes: load(&counters.moved),
            grown_bytes,
            bytes_per_second,
            memory_reads: load(&counters.memory_reads),
            overflow_reads: load(&counters.overflow_reads),
            base_reads: load(&counters.base_reads),
            waiting_bytes: load(&counters.waiting_bytes),
            waits: load(&counters.waits),
            overflow_errors: load(&counters.errors),
            is_full: shared.is_full(),
        })
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Extent>, IoError> {
        self.geometry().check_inside(offset, len)?;
        extents::find(&self.shared.memory, &*self.base, (offset, len), limit)
    }

    fn zeroes_fast(&self, _: bool) -> bool {
        true
    }
}

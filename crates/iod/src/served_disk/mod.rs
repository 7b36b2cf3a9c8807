//! One opened disk behind its socket, if it has one.
//!
//! Three kinds of threads meet here. The disk's session thread serves one front-end at a time.
//! Callers activate, deactivate, pause, resize, export and detach. Other callers read statistics. A
//! lock protects the rings and is held while they drain. Statistics are read without it, so that a
//! disk with hung storage can still be inspected.

#[cfg(test)]
mod broken_rings;
mod caps;
mod error;
mod fence;
mod nbd;
mod new_image;
mod poll;
mod queues;
mod quiesce;
mod replace;
mod restore;
mod session_backend;
mod session_thread;
mod stuck;
#[cfg(test)]
mod tests;
mod verbs;

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blk::{BlkDevice, DeviceOptions};
use disk::{CacheState, Disk, Geometry, LayerCounts, OverlayCounts, Replaceable};
use memory::MemoryShare;
use model::spec::{Caps, DiskSpec};
use vhost_user::{Access, BackendChannel, Listener, SessionHandle, SessionState, StopSignal};

pub use self::error::ServedDiskError;
use self::nbd::NbdExport;
pub use self::nbd::NbdExportError;
use crate::deadline::run_with_deadline;
use crate::open_disk::{OpenTree, Opened, Sources, open_again};
use crate::pool::Pool;
pub(crate) use fence::FenceWaiter;
pub(crate) use poll::{PollOverrides, policy};
use queues::{NotifyMutex, StartedRings};
pub(crate) use quiesce::{DiskFormats, DiskHandoverState, IncomingDisk, QuiescedDisk};
pub(crate) use replace::{Replacement, swap_all};
use session_thread::DiskSessionThread;
pub use session_thread::SocketRole;
use stuck::AbandonedIo;
pub use stuck::{StuckError, StuckStorage};

/// One opened disk behind its socket.
#[derive(Debug)]
pub struct ServedDisk {
    spec: DiskSpec,
    /// The disk of the present tree.
    disk: Arc<dyn Disk>,
    /// Handle on `disk` that replaces the tree behind it.
    replaceable: Arc<Replaceable>,
    /// Present tree. The spec tells the first one.
    tree: Mutex<Arc<OpenTree>>,
    /// Listening socket for front-ends.
    listener: Mutex<Option<Arc<Listener>>>,
    device: Arc<BlkDevice>,
    /// Share of the memory that front-ends may map.
    memory_share: MemoryShare,
    /// Reactors for connections of NBD clients.
    pool: Arc<Pool>,
    exports: Mutex<Vec<NbdExport>>,
    queues: Arc<NotifyMutex<StartedRings>>,
    front_end: Mutex<FrontEnd>,
    disk_status: DiskStatus,
    /// Caps as last requested.
    caps: Mutex<Option<Caps>>,
    poll: Mutex<PollOverrides>,
    /// Deadline and verb of a detach, if the disk is being detached.
    ending: Mutex<Option<(Instant, &'static str)>>,
    /// Thread that waits for the I/O of a dead process.
    waiter: Mutex<Option<Arc<fence::FenceWaiter>>>,
    /// I/O abandoned to hung storage.
    abandoned_io: Mutex<AbandonedIo>,
    /// Ends the session thread between sessions.
    stop: Mutex<StopSignal>,
    /// True if the session thread must end because the disk is being quiesced.
    still: AtomicBool,
    thread: Mutex<Option<DiskSessionThread>>,
}

/// Connected front-end, if any.
#[derive(Debug, Default)]
struct FrontEnd {
    session: Option<SessionHandle>,
    channel: Option<BackendChannel>,
    /// State of a frozen session.
    frozen: Option<Box<SessionState>>,
}

/// When drivers began to use a disk, since its front-end connected.
#[derive(Debug, Clone, Copy)]
pub struct DriverStartTimes {
    /// Number of starts.
    pub count: u64,
    /// First start.
    pub first: Instant,
    /// Last start.
    pub last: Instant,
}

/// Status that can be read without waiting.
#[derive(Debug, Default)]
struct DiskStatus {
    active: AtomicBool,
    paused: AtomicBool,
    connected: AtomicBool,
    queues_started: AtomicU16,
    features: AtomicU64,
    driver_starts: Mutex<Option<DriverStartTimes>>,
    stuck: Mutex<Option<StuckStorage>>,
    fence: Mutex<Option<Instant>>,
}

/// Values behind these locks change in complete steps, so a panic elsewhere cannot leave them
/// inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServedDisk {
    /// Opens the disk from `sources` and the paths of its spec. It has no socket yet and is not
    /// locked.
    ///
    /// # Errors
    /// The image cannot be opened, or no descriptors are left.
    pub fn open(
        mut spec: DiskSpec,
        sources: Sources,
        pool: Arc<Pool>,
    ) -> Result<Arc<Self>, ServedDiskError> {
        let mut opened = Self::open_disk(&spec, sources, None)?;
        if let Some(refusal) = opened.refusal.take() {
            return Err(refusal.into());
        }
        // Successors reopen the disk, so they need no statement.
        spec.format = None;
        Self::with(spec, opened, None, pool)
    }

    fn with(
        spec: DiskSpec,
        opened: Opened,
        listener: Option<Arc<Listener>>,
        pool: Arc<Pool>,
    ) -> Result<Arc<Self>, ServedDiskError> {
        let Opened { disk, tree, .. } = opened;
        let replaceable = Arc::new(Replaceable::new(disk));
        let disk: Arc<dyn Disk> = replaceable.clone();
        let (caps, poll_overrides) = (spec.caps, PollOverrides::of(spec.polling()));
        tree.watch_full(&spec.id, &pool);
        let options = DeviceOptions {
            id: spec.id.clone(),
            queues: spec.queues,
            serial: spec.serial.clone().unwrap_or_default(),
            poll: poll_overrides.policy(),
            record: spec.record,
        };
        let device = Arc::new(BlkDevice::new(Arc::clone(&disk), &options));
        device.set_caps(caps::of(spec.caps));
        let stop = Mutex::new(StopSignal::new().map_err(session_thread::signal)?);
        Ok(Arc::new(Self {
            queues: StartedRings::new(Arc::clone(&device), Arc::clone(&pool)),
            memory_share: pool.memory_budget().join(),
            pool,
            exports: Mutex::default(),
            spec,
            disk,
            replaceable,
            tree: Mutex::new(Arc::new(tree)),
            listener: Mutex::new(listener),
            device,
            front_end: Mutex::default(),
            disk_status: DiskStatus::default(),
            caps: Mutex::new(caps),
            poll: Mutex::new(poll_overrides),
            ending: Mutex::default(),
            waiter: Mutex::default(),
            abandoned_io: Mutex::default(),
            stop,
            still: AtomicBool::new(false),
            thread: Mutex::default(),
        }))
    }

    /// Opens with a deadline, so that hung storage does not block the caller. A late result is
    /// closed.
    fn open_disk(
        spec: &DiskSpec,
        sources: Sources,
        size: Option<u64>,
    ) -> Result<Opened, ServedDiskError> {
        let deadline = Duration::from_millis(spec.stop_deadline_ms);
        let wanted = spec.clone();
        match run_with_deadline(Instant::now() + deadline, move || {
            open_again(&wanted, sources, size)
        }) {
            Ok(opened) => Ok(opened?),
            Err(_) => Err(ServedDiskError::OpenHangs { place: spec.backend.place(), deadline }),
        }
    }

    /// Makes waiting queues read their changed settings. Never waits itself: a thread that is
    /// starting, stopping or moving queues applies the change afterwards.
    fn recheck_queues(&self) {
        self.queues.notify();
    }

    /// Listens on the socket of the spec, if it has one.
    ///
    /// # Errors
    /// [`ServedDiskError::Socket`].
    pub fn listen(&self) -> Result<(), ServedDiskError> {
        let Some(socket) = &self.spec.socket else { return Ok(()) };
        let listener = Listener::bind(socket, &self.access())?;
        *lock(&self.listener) = Some(Arc::new(listener));
        Ok(())
    }

    fn access(&self) -> Access {
        Access { mode: self.spec.socket_mode, group: self.spec.socket_group.clone() }
    }

    /// Returns whether front-ends connect to a socket of this disk.
    pub fn listens(&self) -> bool {
        lock(&self.listener).is_some()
    }

    /// Returns how front-ends connect: they connect to the listener if there is one. Otherwise the
    /// disk connects to them. Returns `None` if the disk has no socket.
    pub fn source(&self) -> Option<SocketRole> {
        match &*lock(&self.listener) {
            Some(listener) => Some(SocketRole::Listen(Arc::clone(listener))),
            None => self.spec.socket.clone().map(SocketRole::Connect),
        }
    }

    /// Returns the present tree.
    pub(crate) fn tree(&self) -> Arc<OpenTree> {
        Arc::clone(&lock(&self.tree))
    }

    /// Returns the requested spec, with the first backend.
    pub fn spec(&self) -> &DiskSpec {
        &self.spec
    }

    /// Returns the present size and limits.
    pub fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    /// Returns whether the disk is locked. Its rings are served then, unless it is paused.
    pub fn is_active(&self) -> bool {
        self.disk_status.active.load(Ordering::Acquire)
    }

    /// Returns whether the disk is paused: locked, but its rings are not served.
    pub fn is_paused(&self) -> bool {
        self.disk_status.paused.load(Ordering::Acquire)
    }

    /// Returns whether a front-end is connected.
    pub fn is_connected(&self) -> bool {
        self.disk_status.connected.load(Ordering::Acquire)
    }

    /// Returns the number of rings that the front-end has started.
    pub fn queues_started(&self) -> u16 {
        self.disk_status.queues_started.load(Ordering::Acquire)
    }

    /// Returns when drivers began to use the disk. `None` if none has.
    pub fn driver_starts(&self) -> Option<DriverStartTimes> {
        *lock(&self.disk_status.driver_starts)
    }

    /// Returns the virtio features that the front-end has acknowledged.
    pub fn features(&self) -> u64 {
        self.disk_status.features.load(Ordering::Acquire)
    }

    /// Returns the number of requests that wait for space on the storage.
    pub fn waiting(&self) -> u64 {
        self.disk.stalled()
    }

    /// Returns the number of read-modify-writes that the blocks of the storage have caused.
    pub fn small_writes(&self) -> u64 {
        self.disk.small_writes()
    }

    /// Returns the counts of layers with a map, if the disk has any.
    pub fn layer_counts(&self) -> Option<LayerCounts> {
        self.disk.layer_counts()
    }

    /// Returns the state of the cache of a golden image below, if there is one.
    pub fn cache_state(&self) -> Option<CacheState> {
        self.disk.cache_state()
    }

    /// Returns the counts of the overlay, if the disk has one.
    pub fn overlay_counts(&self) -> Option<OverlayCounts> {
        self.disk.overlay_counts()
    }

    /// Returns the virtio device with its statistics.
    pub fn device(&self) -> &BlkDevice {
        &self.device
    }
}

//! One disk under its socket.
//!
//! Threads that meet here: the disk's control thread (one session at a time), callers
//! that activate, deactivate, pause, resize, export and detach, and callers that want counts. Rings are under
//! one lock, which is held while they drain; counts are taken without it, so that a disk whose
//! storage hangs can still be looked at.

#[cfg(test)]
mod broken_rings;
mod caps;
mod error;
mod fence;
#[cfg(test)]
mod moving;
mod nbd;
mod poll;
mod queues;
mod quiesce;
mod restore;
mod session_backend;
mod session_thread;
#[cfg(test)]
mod standing;
mod stuck;
mod verbs;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blk::{BlkDevice, DeviceOptions};
use disk::{Disk, FileDisk, Geometry};
use model::spec::{Caps, DiskSpec};
use vhost_user::{Access, BackendChannel, Listener, SessionHandle, SessionState, StopSignal};

pub use self::error::ServedDiskError;
use self::nbd::NbdExport;
pub use self::nbd::NbdExportError;
use crate::deadline::run_with_deadline;
use crate::keeper_client::Identity;
use crate::open_disk::{Opened, open_again};
use crate::pool::Pool;
pub(crate) use fence::FenceWaiter;
pub(crate) use poll::{PollOverrides, policy};
use queues::{NotifyMutex, StartedRings};
pub(crate) use quiesce::{DiskFormats, DiskHandoverState, IncomingDisk, QuiescedDisk};
use session_thread::DiskSessionThread;
pub use session_thread::SocketRole;
use stuck::{AbandonedIo, backend_text};
pub use stuck::{StuckError, StuckStorage};

/// One disk under its socket.
#[derive(Debug)]
pub struct ServedDisk {
    spec: DiskSpec,
    disk: Arc<dyn Disk>,
    /// A memory disk's bytes.
    memory: Option<Arc<OwnedFd>>,
    /// The disk, if it is a file or a block device.
    image: Option<Arc<FileDisk>>,
    /// Which file or device the image is.
    identity: Option<Identity>,
    /// Where front-ends connect.
    listener: Mutex<Option<Arc<Listener>>>,
    device: Arc<BlkDevice>,
    /// What NBD clients' connections run on.
    pool: Arc<Pool>,
    exports: Mutex<Vec<NbdExport>>,
    queues: Arc<NotifyMutex<StartedRings>>,
    front_end: Mutex<FrontEnd>,
    disk_status: DiskStatus,
    /// As they were asked for last.
    caps: Mutex<Option<Caps>>,
    poll: Mutex<PollOverrides>,
    /// When, and for which verb, everything must have ended: the disk is being detached.
    ending: Mutex<Option<(Instant, &'static str)>>,
    /// Waits for the I/O of a dead process.
    waiter: Mutex<Option<Arc<fence::FenceWaiter>>>,
    /// What is left with storage that hangs.
    abandoned_io: Mutex<AbandonedIo>,
    /// Ends the control thread between sessions.
    stop: Mutex<StopSignal>,
    /// The control thread ends because the disk is to stand still.
    still: AtomicBool,
    thread: Mutex<Option<DiskSessionThread>>,
}

/// The front-end that is connected now, if any.
#[derive(Debug, Default)]
struct FrontEnd {
    session: Option<SessionHandle>,
    channel: Option<BackendChannel>,
    /// A session that stands still.
    frozen: Option<Box<SessionState>>,
}

/// What anybody may look at without waiting.
#[derive(Debug, Default)]
struct DiskStatus {
    active: AtomicBool,
    paused: AtomicBool,
    connected: AtomicBool,
    queues_started: AtomicU16,
    features: AtomicU64,
    stuck: Mutex<Option<StuckStorage>>,
    fence: Mutex<Option<Instant>>,
}

/// Every value behind these locks is changed in whole steps, so a panic elsewhere leaves it whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServedDisk {
    /// Opens the disk. It has no socket yet and holds no lock.
    ///
    /// # Errors
    /// The image, or no descriptors.
    pub fn open(spec: DiskSpec, pool: Arc<Pool>) -> Result<Arc<Self>, ServedDiskError> {
        let opened = Self::open_disk(&spec, None, None)?;
        Self::with(spec, opened, None, pool)
    }

    fn with(
        spec: DiskSpec,
        opened: Opened,
        listener: Option<Arc<Listener>>,
        pool: Arc<Pool>,
    ) -> Result<Arc<Self>, ServedDiskError> {
        let Opened { disk, memory, image, identity } = opened;
        let (caps, poll_overrides) = (spec.caps, PollOverrides::of(spec.polling()));
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
            pool,
            exports: Mutex::default(),
            spec,
            disk,
            memory,
            image,
            identity: identity.map(Identity::from),
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

    /// Storage that hangs must not hold up the caller for ever: whatever comes late is closed.
    fn open_disk(
        spec: &DiskSpec,
        memory: Option<OwnedFd>,
        size: Option<u64>,
    ) -> Result<Opened, ServedDiskError> {
        let deadline = Duration::from_millis(spec.stop_deadline_ms);
        let wanted = spec.clone();
        match run_with_deadline(Instant::now() + deadline, move || {
            open_again(&wanted, memory, size)
        }) {
            Ok(opened) => Ok(opened?),
            Err(_) => Err(ServedDiskError::OpenHangs { place: backend_text(spec), deadline }),
        }
    }

    /// What its queues are told has changed: those that wait look. Never waits itself: whoever
    /// starts, stops or moves some of them just now has them look afterwards.
    fn look_again(&self) {
        self.queues.notify();
    }

    /// Listens on the socket of the spec.
    ///
    /// # Errors
    /// [`ServedDiskError::Socket`].
    pub fn listen(&self) -> Result<(), ServedDiskError> {
        let access = Access { mode: self.spec.socket_mode, group: self.spec.socket_group.clone() };
        *lock(&self.listener) = Some(Arc::new(Listener::bind(&self.spec.socket, &access)?));
        Ok(())
    }

    /// Front-ends connect to us.
    pub fn listens(&self) -> bool {
        lock(&self.listener).is_some()
    }

    /// Where front-ends come from: they connect to us if we listen, else we to them.
    pub fn source(&self) -> SocketRole {
        match &*lock(&self.listener) {
            Some(listener) => SocketRole::Listen(Arc::clone(listener)),
            None => SocketRole::Connect(self.spec.socket.clone()),
        }
    }

    /// What was asked for.
    pub fn spec(&self) -> &DiskSpec {
        &self.spec
    }

    /// Size and limits now.
    pub fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    /// The lock is held, and rings are served unless the disk is paused.
    pub fn is_active(&self) -> bool {
        self.disk_status.active.load(Ordering::Acquire)
    }

    /// The lock is held and rings are not served.
    pub fn is_paused(&self) -> bool {
        self.disk_status.paused.load(Ordering::Acquire)
    }

    /// A front-end is connected.
    pub fn is_connected(&self) -> bool {
        self.disk_status.connected.load(Ordering::Acquire)
    }

    /// Rings that the front-end has started.
    pub fn queues_started(&self) -> u16 {
        self.disk_status.queues_started.load(Ordering::Acquire)
    }

    /// Virtio features that the front-end has acknowledged.
    pub fn features(&self) -> u64 {
        self.disk_status.features.load(Ordering::Acquire)
    }

    /// Requests that wait for room on the storage.
    pub fn waiting(&self) -> u64 {
        self.disk.stalled()
    }

    /// The disk as its guest sees it, with what it has counted.
    pub fn device(&self) -> &BlkDevice {
        &self.device
    }
}

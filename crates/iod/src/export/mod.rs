//! One disk under its socket.
//!
//! Threads that meet here: the disk's control thread (one session at a time), callers
//! that activate, deactivate, pause, resize, export and detach, and callers that want counts. Rings are under
//! one lock, which is held while they drain; counts are taken without it, so that a disk whose
//! storage hangs can still be looked at.

mod caps;
mod fence;
mod glue;
mod nbd;
mod queues;
mod restore;
mod serve;
mod still;
mod stuck;
mod visits;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blk::{Device, Options};
use disk::{Disk, DiskError, FileDisk, Geometry};
use model::spec::{Caps, DiskSpec, PollMode};
use vhost_user::{
    Access, BackendChannel, Listener, SessionHandle, SessionState, SocketError, StateError, Stop,
};

pub use self::nbd::NbdError;
use self::nbd::NbdExport;
use crate::held::{HoldError, Identity};
use crate::open::{OpenError, Opened, open_again};
use crate::pool::Pool;
use crate::within::within;
use queues::Queues;
use serve::Control;
pub use serve::Source;
pub(crate) use still::{Still, Taken, WrittenDisk};
use stuck::{Left, place};
pub use stuck::{Stuck, StuckError};

/// Why a disk is not served.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The disk itself.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Its storage hangs.
    #[error(transparent)]
    Stuck(StuckError),
    /// Its storage hangs before anything was begun.
    #[error(
        "{place} cannot be opened: its storage has not answered within {} ms; mend the storage \
         and try again", deadline.as_millis()
    )]
    OpenHangs {
        /// The storage.
        place: String,
        /// How long it was waited for.
        deadline: Duration,
    },
    /// I/O from before has not ended.
    #[error(
        "{place} cannot be served yet: the kernel has not ended all I/O of a process, or of a disk \
         of this name, that served it before, and it was waited for for {seconds} s; mend the \
         storage, and try again"
    )]
    FenceHeld {
        /// The storage.
        place: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Its storage has hung since an earlier verb.
    #[error(
        "{verb}: the disk is stuck: {requests} requests have been with the storage of {place} for \
         {seconds} s after their deadline; mend the storage, and try again when `stats` shows the \
         disk without `stuck`"
    )]
    StillStuck {
        /// What was asked for.
        verb: &'static str,
        /// The storage.
        place: String,
        /// Requests that were left with the kernel.
        requests: u64,
        /// Since the deadline.
        seconds: u64,
    },
    /// Detached, or the process ends.
    #[error("gave up waiting for I/O on {place} of a process that served this disk before")]
    FenceGivenUp {
        /// The storage.
        place: String,
    },
    /// Its NBD exports, or one that is wanted.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// Nothing is known of it any more.
    #[error("the disk is gone")]
    Gone,
    /// Nobody would bring it back.
    #[error(transparent)]
    Hold(Box<HoldError>),
    /// Another file or device is at the image's path.
    #[error(
        "{} is another file than the one that was attached; put that back and activate the disk, \
         or detach it and attach this one", path.display()
    )]
    Replaced {
        /// The image's path.
        path: std::path::PathBuf,
    },
    /// The image became smaller while nobody served it.
    #[error(
        "the image has {found} bytes, and guests were told {size}; give it back its size and \
         activate the disk, or detach and attach it again"
    )]
    Shrunk {
        /// Its size now, in bytes.
        found: u64,
        /// The size that guests were told, in bytes.
        size: u64,
    },
    /// It cannot stand still: storage takes too long.
    #[error(
        "the storage of {place} has not ended the requests in flight in time, and nobody else may \
         go on before it has; `stats` shows them"
    )]
    NotDrained {
        /// Where the bytes are.
        place: String,
    },
    /// It does not stand still.
    #[error("{reason}")]
    NoStand {
        /// Why.
        reason: String,
    },
    /// A session cannot go on from its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// The process can have no more threads or descriptors.
    #[error("cannot {action}")]
    Os {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
}

impl ExportError {
    /// It ends by itself, when storage answers or the process has room again.
    pub(crate) fn is_passing(&self) -> bool {
        use rustix::io::Errno;
        match self {
            Self::OpenHangs { .. }
            | Self::Stuck(_)
            | Self::StillStuck { .. }
            | Self::FenceHeld { .. }
            | Self::Hold(_)
            | Self::Os { .. } => true,
            Self::Open(error) => matches!(
                error.errno(),
                Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO | Errno::STALE)
            ),
            _ => false,
        }
    }
}

/// One disk under its socket.
#[derive(Debug)]
pub struct Export {
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
    device: Arc<Device>,
    /// What NBD clients' connections run on.
    pool: Arc<Pool>,
    exports: Mutex<Vec<NbdExport>>,
    queues: Mutex<Queues>,
    front_end: Mutex<FrontEnd>,
    board: Board,
    /// As they were asked for last.
    caps: Mutex<Option<Caps>>,
    /// When, and for which verb, everything must have ended: the disk is being detached.
    ending: Mutex<Option<(Instant, &'static str)>>,
    /// Waits for the I/O of a dead process.
    waiter: Mutex<Option<Arc<fence::Waiter>>>,
    /// What is left with storage that hangs.
    left: Mutex<Left>,
    /// Ends the control thread between sessions.
    stop: Mutex<Stop>,
    /// The control thread ends because the disk is to stand still.
    still: AtomicBool,
    thread: Mutex<Option<Control>>,
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
struct Board {
    active: AtomicBool,
    paused: AtomicBool,
    connected: AtomicBool,
    queues_started: AtomicU16,
    features: AtomicU64,
    stuck: Mutex<Option<Stuck>>,
    fence: Mutex<Option<Instant>>,
}

/// Every value behind these locks is changed in whole steps, so a panic elsewhere leaves it whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Export {
    /// Opens the disk. It has no socket yet and holds no lock.
    ///
    /// # Errors
    /// The image, or no descriptors.
    pub fn open(spec: DiskSpec, pool: Arc<Pool>) -> Result<Arc<Self>, ExportError> {
        let opened = Self::open_disk(&spec, None, None)?;
        Self::with(spec, opened, None, pool)
    }

    fn with(
        spec: DiskSpec,
        opened: Opened,
        listener: Option<Arc<Listener>>,
        pool: Arc<Pool>,
    ) -> Result<Arc<Self>, ExportError> {
        let Opened { disk, memory, image, identity } = opened;
        let caps = spec.caps;
        let options = Options {
            id: spec.id.clone(),
            queues: spec.queues,
            serial: spec.serial.clone().unwrap_or_default(),
            spin: spec.poll == PollMode::Always,
            record: spec.record,
        };
        let device = Arc::new(Device::new(Arc::clone(&disk), &options));
        device.set_caps(caps::of(spec.caps));
        let stop = Mutex::new(Stop::new().map_err(serve::signal)?);
        Ok(Arc::new(Self {
            queues: Mutex::new(Queues::new(Arc::clone(&device), Arc::clone(&pool))),
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
            board: Board::default(),
            caps: Mutex::new(caps),
            ending: Mutex::default(),
            waiter: Mutex::default(),
            left: Mutex::default(),
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
    ) -> Result<Opened, ExportError> {
        let deadline = Duration::from_millis(spec.stop_deadline_ms);
        let wanted = spec.clone();
        match within(Instant::now() + deadline, move || open_again(&wanted, memory, size)) {
            Ok(opened) => Ok(opened?),
            Err(_) => Err(ExportError::OpenHangs { place: place(spec), deadline }),
        }
    }

    /// Listens on the socket of the spec.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn listen(&self) -> Result<(), ExportError> {
        let access = Access { mode: self.spec.socket_mode, group: self.spec.socket_group.clone() };
        *lock(&self.listener) = Some(Arc::new(Listener::bind(&self.spec.socket, &access)?));
        Ok(())
    }

    /// Front-ends connect to us.
    pub fn listens(&self) -> bool {
        lock(&self.listener).is_some()
    }

    /// Where front-ends come from: they connect to us if we listen, else we to them.
    pub fn source(&self) -> Source {
        match &*lock(&self.listener) {
            Some(listener) => Source::Listen(Arc::clone(listener)),
            None => Source::Connect(self.spec.socket.clone()),
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
        self.board.active.load(Ordering::Acquire)
    }

    /// The lock is held and rings are not served.
    pub fn is_paused(&self) -> bool {
        self.board.paused.load(Ordering::Acquire)
    }

    /// A front-end is connected.
    pub fn is_connected(&self) -> bool {
        self.board.connected.load(Ordering::Acquire)
    }

    /// Rings that the front-end has started.
    pub fn queues_started(&self) -> u16 {
        self.board.queues_started.load(Ordering::Acquire)
    }

    /// Virtio features that the front-end has acknowledged.
    pub fn features(&self) -> u64 {
        self.board.features.load(Ordering::Acquire)
    }

    /// Requests that wait for room on the storage.
    pub fn waiting(&self) -> u64 {
        self.disk.waiting()
    }

    /// The disk as its guest sees it, with what it has counted.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Takes the lock and serves what the front-end has started. Twice is once.
    ///
    /// # Errors
    /// Somebody else uses the image, or its storage does not answer.
    pub fn activate(self: &Arc<Self>) -> Result<(), ExportError> {
        self.activate_until(None)
    }

    /// The same for somebody who waits for the answer: for storage only until the disk's deadline.
    ///
    /// # Errors
    /// As [`Self::activate`], or I/O from before that has not ended in time.
    pub fn activate_in_time(self: &Arc<Self>) -> Result<(), ExportError> {
        self.activate_until(Some(self.deadline()))
    }

    fn activate_until(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), ExportError> {
        self.refuse_stuck("disk.activate")?;
        self.refuse_writable()?;
        self.take_lock("disk.activate", deadline)?;
        let mut queues = lock(&self.queues);
        self.board.active.store(true, Ordering::Release);
        if !self.is_paused() {
            queues.serve();
        }
        Ok(())
    }

    /// Waits for what a dead process still writes, until `deadline` if there is one, then takes
    /// the lock.
    fn take_lock(
        self: &Arc<Self>,
        verb: &'static str,
        deadline: Option<Instant>,
    ) -> Result<(), ExportError> {
        self.await_predecessor(deadline)?;
        let disk = Arc::clone(&self.disk);
        let taken =
            self.in_time(self.deadline(), verb, "to take the lock", move || disk.activate());
        if let Err(error) = taken {
            // It may have it later, when nobody wants it any more; or since just now.
            if matches!(error, ExportError::Stuck(_)) && !self.release_late() {
                self.release(self.deadline(), verb)?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Takes no more requests, waits for those in flight, and holds: the lock is kept, the
    /// front-end stays connected, and whatever it does, nothing is served before
    /// [`Self::resume`]. Twice is once. The disk must be active.
    ///
    /// # Errors
    /// Storage did not end what is in flight. Nothing is served all the same, but what was left
    /// may still be written.
    pub fn pause(self: &Arc<Self>) -> Result<(), ExportError> {
        self.refuse_stuck("disk.pause")?;
        let mut queues = lock(&self.queues);
        self.board.paused.store(true, Ordering::Release);
        let left = queues.hold(self.deadline());
        drop(queues);
        let requests = left.requests();
        if self.leave(left, "disk.pause") {
            return Err(self.stuck_error("disk.pause", format!("{requests} requests")));
        }
        tracing::info!(disk = self.spec.id, "paused");
        Ok(())
    }

    /// Ends a pause: serves what the front-end has started. Twice is once.
    ///
    /// # Errors
    /// Storage has not ended yet what was in flight before the pause.
    pub fn resume(&self) -> Result<(), ExportError> {
        self.refuse_stuck("disk.resume")?;
        let mut queues = lock(&self.queues);
        self.board.paused.store(false, Ordering::Release);
        if self.is_active() {
            queues.serve();
        }
        tracing::info!(disk = self.spec.id, "resumed");
        Ok(())
    }

    /// Drains all rings, makes everything durable and releases the lock. The front-end stays
    /// connected and waits. A pause is over then.
    ///
    /// # Errors
    /// The flush failed; the lock is released all the same. Or storage did not answer in time;
    /// then the lock is released when it does.
    pub fn deactivate(self: &Arc<Self>) -> Result<(), ExportError> {
        let verb = self.ending_verb().unwrap_or("disk.deactivate");
        let deadline = self.deadline();
        let mut queues = lock(&self.queues);
        let left = queues.hold(deadline);
        self.board.active.store(false, Ordering::Release);
        self.board.paused.store(false, Ordering::Release);
        drop(queues);
        self.leave(left, verb);
        self.release(deadline, verb)
    }

    /// Grows the disk to `size` bytes, or takes the size that its storage has now, and tells the
    /// front-end.
    ///
    /// # Errors
    /// A size that the disk cannot have, or storage that does not answer.
    pub fn resize(self: &Arc<Self>, size: Option<u64>) -> Result<(), ExportError> {
        self.refuse_stuck("disk.resize")?;
        let disk = Arc::clone(&self.disk);
        let work = move || disk.resize(size);
        let geometry = self.in_time(self.deadline(), "disk.resize", "a change of size", work)?;
        self.device.resized();
        tracing::info!(disk = self.spec.id, bytes = geometry.size, "resized");
        let channel = lock(&self.front_end).channel.clone();
        if let Some(Err(error)) = channel.map(|channel| channel.config_changed()) {
            // It has gone, or will look when it comes back.
            tracing::debug!(disk = self.spec.id, "front-end not told of the new size: {error}");
        }
        Ok(())
    }

    /// Sends the front-end away and takes no other. Does not wait.
    pub fn hang_up(&self) {
        let ends_by = self.deadline();
        lock(&self.ending).get_or_insert((ends_by, "disk.detach"));
        lock(&self.stop).stop();
        if let Some(session) = &lock(&self.front_end).session {
            session.close();
        }
        self.hang_up_exports();
    }

    /// Sends the front-end and all clients away, closes the sockets, drains, flushes, and releases
    /// the lock.
    ///
    /// # Errors
    /// The flush failed, or storage does not answer; everything is closed all the same.
    pub fn detach(self: &Arc<Self>) -> Result<(), ExportError> {
        self.hang_up();
        // Its failure has been told to whoever waited for it, or logged.
        let _ = self.served();
        *lock(&self.listener) = None;
        // What wrote had the lock, so no guest has written anything that was left out.
        self.end_exports()?;
        if self.is_active() { self.deactivate() } else { self.refuse_stuck("disk.detach") }
    }
}

//! One disk under its socket.
//!
//! Threads that meet here: the disk's control thread (one session at a time), callers
//! that activate, deactivate, pause, resize and detach, and callers that want counts. Rings are under
//! one lock, which is held while they drain; counts are taken without it, so that a disk whose
//! storage hangs can still be looked at.

mod glue;
mod queues;
mod serve;
mod visits;

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use blk::{Device, Options};
use disk::{Disk, DiskError, Geometry};
use model::spec::{DiskSpec, PollMode};
use vhost_user::{Access, BackendChannel, Listener, SessionHandle, SocketError, Stop};

use crate::open::OpenError;
use crate::pool::Pool;
use queues::Queues;
pub use serve::Source;

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

/// One disk under its socket.
#[derive(Debug)]
pub struct Export {
    spec: DiskSpec,
    disk: Arc<dyn Disk>,
    device: Arc<Device>,
    queues: Mutex<Queues>,
    front_end: Mutex<FrontEnd>,
    board: Board,
    /// Ends the control thread between sessions.
    stop: Stop,
    thread: Mutex<Option<JoinHandle<Result<(), SocketError>>>>,
}

/// The front-end that is connected now, if any.
#[derive(Debug, Default)]
struct FrontEnd {
    session: Option<SessionHandle>,
    channel: Option<BackendChannel>,
}

/// What anybody may look at without waiting.
#[derive(Debug, Default)]
struct Board {
    active: AtomicBool,
    paused: AtomicBool,
    connected: AtomicBool,
    queues_started: AtomicU16,
    features: AtomicU64,
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
        let disk = crate::open::open(&spec)?;
        let options = Options {
            id: spec.id.clone(),
            queues: spec.queues,
            serial: spec.serial.clone().unwrap_or_default(),
            spin: spec.poll == PollMode::Always,
            record: spec.record,
        };
        let device = Arc::new(Device::new(Arc::clone(&disk), &options));
        let stop = Stop::new();
        let stop = stop.map_err(|source| ExportError::Os { action: "make a signal", source })?;
        Ok(Arc::new(Self {
            queues: Mutex::new(Queues::new(Arc::clone(&device), pool)),
            spec,
            disk,
            device,
            front_end: Mutex::default(),
            board: Board::default(),
            stop,
            thread: Mutex::default(),
        }))
    }

    /// Opens the disk, activates it if its spec says so, and listens on its socket.
    ///
    /// # Errors
    /// The image, its lock or the socket; nothing is left behind.
    pub fn attach(spec: DiskSpec, pool: Arc<Pool>) -> Result<Arc<Self>, ExportError> {
        let export = Self::open(spec, pool)?;
        if export.spec.activate {
            export.activate()?;
        }
        let listening = export.listen().and_then(|listener| export.serve(listener, None));
        if let Err(error) = listening {
            // Nothing was written, so there is nothing to flush.
            let _ = export.deactivate();
            return Err(error);
        }
        Ok(export)
    }

    /// Listens on the socket of the spec.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn listen(&self) -> Result<Source, ExportError> {
        let access = Access { mode: self.spec.socket_mode, group: self.spec.socket_group.clone() };
        Ok(Source::Listen(Listener::bind(&self.spec.socket, &access)?))
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
    /// Somebody else uses the image.
    pub fn activate(&self) -> Result<(), ExportError> {
        let mut queues = lock(&self.queues);
        self.disk.activate()?;
        self.board.active.store(true, Ordering::Release);
        if !self.is_paused() {
            queues.serve();
        }
        Ok(())
    }

    /// Takes no more requests, waits for those in flight, and holds: the lock is kept, the
    /// front-end stays connected, and whatever it does, nothing is served before
    /// [`Self::resume`]. Twice is once. The disk must be active.
    ///
    /// # Errors
    /// None now.
    pub fn pause(&self) -> Result<(), ExportError> {
        let mut queues = lock(&self.queues);
        self.board.paused.store(true, Ordering::Release);
        queues.hold();
        tracing::info!(disk = self.spec.id, "paused");
        Ok(())
    }

    /// Ends a pause: serves what the front-end has started. Twice is once.
    ///
    /// # Errors
    /// None now.
    pub fn resume(&self) -> Result<(), ExportError> {
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
    /// The flush failed; the lock is released all the same.
    pub fn deactivate(&self) -> Result<(), ExportError> {
        let mut queues = lock(&self.queues);
        queues.hold();
        self.board.active.store(false, Ordering::Release);
        self.board.paused.store(false, Ordering::Release);
        Ok(self.disk.deactivate()?)
    }

    /// Grows the disk to `size` bytes, or takes the size that its storage has now, and tells the
    /// front-end.
    ///
    /// # Errors
    /// A size that the disk cannot have.
    pub fn resize(&self, size: Option<u64>) -> Result<(), ExportError> {
        let geometry = self.disk.resize(size)?;
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
        self.stop.stop();
        if let Some(session) = &lock(&self.front_end).session {
            session.close();
        }
    }

    /// Sends the front-end away, closes the socket, drains, flushes, and releases the lock.
    ///
    /// # Errors
    /// The flush failed; everything is closed all the same.
    pub fn detach(&self) -> Result<(), ExportError> {
        self.hang_up();
        // Its failure has been told to whoever waited for it, or logged.
        let _ = self.served();
        if self.is_active() { self.deactivate() } else { Ok(()) }
    }
}

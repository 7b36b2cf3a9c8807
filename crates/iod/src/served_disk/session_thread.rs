//! Session thread of a disk, which serves one front-end after the other.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use vhost_user::{Listener, Session, SessionEnd, SocketError, StopSignal, Woken, connect};

use super::session_backend::DiskSessionBackend;
use super::{ServedDisk, ServedDiskError, lock};

/// Pause before reconnecting to a front-end that has disconnected. A front-end that rejects
/// connections at once must not keep a CPU busy.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Session thread of a disk.
#[derive(Debug)]
pub(super) struct DiskSessionThread {
    thread: JoinHandle<Result<(), SocketError>>,
    /// Signalled when the thread ends.
    pub(super) done: StopSignal,
}

/// Returns the error for a signal that needs more descriptors than are left.
pub(super) fn signal(source: std::io::Error) -> ServedDiskError {
    ServedDiskError::Os { action: "make a signal", source }
}

/// Way in which front-ends connect.
#[derive(Debug)]
pub enum SocketRole {
    /// Front-ends connect to this listener.
    Listen(Arc<Listener>),
    /// The process connects to a front-end that listens here.
    Connect(PathBuf),
    /// The front-end is connected already, and no other follows.
    Connected(UnixStream),
}

impl ServedDisk {
    /// Starts the session thread. It signals `ended` when it ends, because no more front-ends can
    /// connect or because the disk is detached. [`Self::join_session_thread`] then returns the
    /// reason. Without `ended`, a failure is logged. Without `source`, no front-end connects, and
    /// there is no thread.
    ///
    /// # Errors
    /// The process cannot start more threads.
    pub fn serve(
        self: &Arc<Self>,
        source: Option<SocketRole>,
        ended: Option<StopSignal>,
    ) -> Result<(), ServedDiskError> {
        self.serve_on(source, ended, None)
    }

    /// Starts the session thread like [`Self::serve`], and first continues `session`.
    pub(super) fn serve_on(
        self: &Arc<Self>,
        source: Option<SocketRole>,
        ended: Option<StopSignal>,
        session: Option<Session>,
    ) -> Result<(), ServedDiskError> {
        let Some(source) = source else { return Ok(()) };
        let served_disk = Arc::clone(self);
        let (stop, done) = (lock(&self.stop).clone(), StopSignal::new().map_err(signal)?);
        let gone = done.clone();
        let work = move || {
            let served = served_disk.serve_all(source, &stop, session);
            match (&served, ended) {
                (_, Some(ended)) => ended.stop(),
                (Err(error), None) => {
                    let disk = &served_disk.spec.id;
                    let cause = crate::error::error_chain(error);
                    tracing::error!(disk, "no further front-ends are accepted: {cause}");
                }
                (Ok(()), None) => {}
            }
            gone.stop();
            served
        };
        let thread = std::thread::Builder::new().name("session".into()).spawn(work);
        let thread = thread
            .map_err(|source| ServedDiskError::Os { action: "start a control thread", source })?;
        *lock(&self.thread) = Some(DiskSessionThread { thread, done });
        Ok(())
    }

    /// Waits for the session thread once, and returns why it has ended.
    ///
    /// # Errors
    /// No front-end could connect any more.
    pub fn join_session_thread(&self) -> Result<(), SocketError> {
        let control = lock(&self.thread).take();
        // A panic of the thread was reported already.
        control.map_or(Ok(()), |control| control.thread.join().unwrap_or(Ok(())))
    }

    fn serve_all(
        self: &Arc<Self>,
        source: SocketRole,
        stop: &StopSignal,
        session: Option<Session>,
    ) -> Result<(), SocketError> {
        if let Some(session) = session {
            self.converse(session, stop, "front-end stays connected");
        }
        match source {
            SocketRole::Connected(stream) => self.session(stream, stop),
            SocketRole::Listen(listener) => {
                while let Some(stream) = listener.accept(stop)? {
                    self.session(stream, stop);
                }
            }
            SocketRole::Connect(path) => {
                while let Some(stream) = connect(&path, stop)? {
                    self.session(stream, stop);
                    if let Ok(Woken::Stopped) = stop.wait(None, Some(RECONNECT_PAUSE)) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn session(self: &Arc<Self>, stream: UnixStream, stop: &StopSignal) {
        match Session::new(stream) {
            Ok(session) => self.converse(session, stop, "front-end connected"),
            Err(error) => tracing::warn!(disk = self.spec.id, "front-end rejected: {error}"),
        }
    }

    fn converse(self: &Arc<Self>, session: Session, stop: &StopSignal, hello: &str) {
        let handle = session.handle();
        lock(&self.front_end).session = Some(handle.clone());
        // The stop may have been signalled before the handle was visible.
        if let Ok(Woken::Stopped) = stop.wait(None, Some(Duration::ZERO)) {
            if self.is_quiescing() { handle.freeze() } else { handle.close() }
        }
        self.disk_status.connected.store(true, Ordering::Release);
        tracing::info!(disk = self.spec.id, "{hello}");
        let mut disk_session_backend =
            DiskSessionBackend { served_disk: self, session: handle, first: true };
        let end = session.run(&mut disk_session_backend);
        lock(&self.front_end).session = None;
        let disk = &self.spec.id;
        let end = match end {
            Ok(SessionEnd::Frozen(state)) => {
                lock(&self.front_end).frozen = Some(state);
                return;
            }
            Ok(SessionEnd::HungUp) => Ok("front-end left"),
            Ok(SessionEnd::Closed) => Ok("front-end disconnected"),
            Err(error) => Err(crate::error::error_chain(&error)),
        };
        self.disk_status.connected.store(false, Ordering::Release);
        match end {
            Ok(how) => tracing::info!(disk, "{how}"),
            Err(cause) => tracing::warn!(disk, "front-end disconnected: {cause}"),
        }
    }
}

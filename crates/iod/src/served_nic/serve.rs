//! Session thread of a NIC, which serves one front-end after the other.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use vhost_user::{
    Listener, Session, SessionEnd, SessionHandle, SocketError, StopSignal, Woken, connect,
};

use super::quiesce::{FrozenSession, ResumedSession};
use super::session_backend::NicSessionBackend;
use super::{NicError, ServedNic};
use crate::served_disk::SocketRole;

/// Pause before reconnecting to a front-end that has disconnected. A front-end that rejects
/// connections at once must not keep a CPU busy.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Session thread of a NIC. It ends after [`ServedNic::hang_up`], or when no front-end can connect
/// any more. Then its socket is closed, and the files of a listening socket are removed.
#[derive(Debug)]
pub struct NicSessionThread {
    pub(super) thread: JoinHandle<Result<(), SocketError>>,
    /// Signalled when the thread ends.
    pub(super) done: StopSignal,
    pub(super) listener: Option<Arc<Listener>>,
}

impl NicSessionThread {
    /// Returns the listening socket, if there is one.
    pub(crate) fn listener(&self) -> Option<&Listener> {
        self.listener.as_deref()
    }

    /// Waits until the thread ends.
    ///
    /// # Errors
    /// No front-end could connect any more.
    pub fn wait(self) -> Result<(), SocketError> {
        // A panic of the thread was reported already.
        self.thread.join().unwrap_or(Ok(()))
    }
}

impl ServedNic {
    /// Starts the session thread. It signals `ended` when it ends. Without `ended`, a failure is
    /// logged.
    ///
    /// # Errors
    /// The process cannot start more threads.
    pub fn serve(
        self: &Arc<Self>,
        source: SocketRole,
        ended: Option<StopSignal>,
    ) -> Result<NicSessionThread, NicError> {
        self.serve_on(source, ended, None)
    }

    /// Starts the session thread like [`Self::serve`], and first continues `session`.
    pub(super) fn serve_on(
        self: &Arc<Self>,
        source: SocketRole,
        ended: Option<StopSignal>,
        session: Option<ResumedSession>,
    ) -> Result<NicSessionThread, NicError> {
        let refused = |action| move |source| NicError::Os { action, source };
        let listener = match &source {
            SocketRole::Listen(listener) => Some(Arc::clone(listener)),
            _ => None,
        };
        let (nic, stop) = (Arc::clone(self), self.stop().clone());
        let done = StopSignal::new().map_err(refused("make a signal"))?;
        let gone = done.clone();
        let work = move || {
            let served = nic.serve_all(source, &stop, session);
            gone.stop();
            match (&ended, &served) {
                (Some(ended), _) => ended.stop(),
                (None, Err(error)) => {
                    let (nic, cause) =
                        (nic.spec.socket.display(), crate::error::error_chain(error));
                    tracing::error!(%nic, "no further front-ends are accepted: {cause}");
                }
                (None, Ok(())) => {}
            }
            served
        };
        let thread = std::thread::Builder::new().name("session".into()).spawn(work);
        let thread = thread.map_err(refused("start a control thread"))?;
        Ok(NicSessionThread { thread, done, listener })
    }

    fn serve_all(
        &self,
        source: SocketRole,
        stop: &StopSignal,
        session: Option<ResumedSession>,
    ) -> Result<(), SocketError> {
        if let Some(ResumedSession { session, control_settings, barrier_ticket }) = session {
            let glue = |handle| {
                NicSessionBackend::new(self, handle)
                    .resuming(control_settings, Some(barrier_ticket))
            };
            self.converse(session, stop, "front-end stays connected", glue);
        }
        match source {
            SocketRole::Connected(stream) => self.visit(stream, stop),
            SocketRole::Listen(listener) => {
                while let Some(stream) = listener.accept(stop)? {
                    self.visit(stream, stop);
                }
            }
            SocketRole::Connect(path) => {
                while let Some(stream) = connect(&path, stop)? {
                    self.visit(stream, stop);
                    if let Ok(Woken::Stopped) = stop.wait(None, Some(RECONNECT_PAUSE)) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn visit(&self, stream: UnixStream, stop: &StopSignal) {
        let glue = |handle| NicSessionBackend::new(self, handle);
        let nic = self.spec.socket.display();
        match Session::new(stream) {
            Ok(session) => self.converse(session, stop, "front-end connected", glue),
            Err(error) => tracing::warn!(%nic, "front-end rejected: {error}"),
        }
    }

    fn converse<'a>(
        &'a self,
        session: Session,
        stop: &StopSignal,
        hello: &str,
        glue: impl FnOnce(SessionHandle) -> NicSessionBackend<'a>,
    ) {
        let nic = self.spec.socket.display();
        let handle = session.handle();
        *self.session() = Some(handle.clone());
        // The stop may have been signalled before the handle was visible.
        if let Ok(Woken::Stopped) = stop.wait(None, Some(Duration::ZERO)) {
            if self.still.load(Ordering::Acquire) { handle.freeze() } else { handle.close() }
        }
        tracing::info!(%nic, "{hello}");
        let mut nic_session_backend = glue(handle);
        let end = session.run(&mut nic_session_backend);
        *self.session() = None;
        match end {
            Ok(SessionEnd::Frozen(state)) => {
                let (queues, control_settings) = nic_session_backend.freeze();
                *self.frozen() = Some(FrozenSession { state, queues, control_settings });
            }
            Ok(SessionEnd::HungUp) => tracing::info!(%nic, "front-end left"),
            Ok(SessionEnd::Closed) => tracing::info!(%nic, "front-end disconnected"),
            Err(error) => {
                let cause = crate::error::error_chain(&error);
                tracing::warn!(%nic, "front-end disconnected: {cause}");
            }
        }
    }
}

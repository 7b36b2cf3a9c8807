//! A NIC's control thread: one front-end after the other.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vhost_user::{
    Listener, Session, SessionEnd, SessionHandle, SocketError, StopSignal, Woken, connect,
};

use super::glue::Glue;
use super::still::{Frozen, Resumed};
use super::{Nic, NicError};
use crate::export::Source;
use crate::visits::{Told, Visits};

/// Pause before connecting again to a front-end that has left: one that turns us away at once
/// must not keep a CPU busy.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// A NIC's control thread. It ends after [`Nic::hang_up`], or when no front-end can come any more. With
/// this the socket is closed and its files are removed, if it listens on one.
#[derive(Debug)]
pub struct Serving {
    pub(super) thread: JoinHandle<Result<(), SocketError>>,
    /// Given when it ends.
    pub(super) done: StopSignal,
    pub(super) listener: Option<Arc<Listener>>,
}

impl Serving {
    /// Waits for its end.
    ///
    /// # Errors
    /// No front-end could come any more.
    pub fn wait(self) -> Result<(), SocketError> {
        // A thread that panicked has said so.
        self.thread.join().unwrap_or(Ok(()))
    }
}

impl Nic {
    /// Starts the control thread. Gives `ended` when it ends; without anybody to be told, a failure
    /// is logged.
    ///
    /// # Errors
    /// The process can have no more threads.
    pub fn serve(
        self: &Arc<Self>,
        source: Source,
        ended: Option<StopSignal>,
    ) -> Result<Serving, NicError> {
        self.serve_on(source, ended, None)
    }

    /// As [`Self::serve`], with a session that goes on first.
    pub(super) fn serve_on(
        self: &Arc<Self>,
        source: Source,
        ended: Option<StopSignal>,
        session: Option<Resumed>,
    ) -> Result<Serving, NicError> {
        let refused = |action| move |source| NicError::Os { action, source };
        let listener = match &source {
            Source::Listen(listener) => Some(Arc::clone(listener)),
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
                    let (nic, cause) = (nic.spec.socket.display(), crate::error::text(error));
                    tracing::error!(%nic, "no front-end can come any more: {cause}");
                }
                (None, Ok(())) => {}
            }
            served
        };
        let thread = std::thread::Builder::new().name("session".into()).spawn(work);
        let thread = thread.map_err(refused("start a control thread"))?;
        Ok(Serving { thread, done, listener })
    }

    fn serve_all(
        &self,
        source: Source,
        stop: &StopSignal,
        session: Option<Resumed>,
    ) -> Result<(), SocketError> {
        let mut visits = Visits::default();
        if let Some(Resumed { session, asked, arrival }) = session {
            let glue = |handle| Glue::new(self, handle).resuming(asked, Some(arrival));
            self.converse(session, stop, Told::Loud, "front-end stays connected", glue);
        }
        match source {
            Source::Connected(stream) => self.visit(stream, stop, &mut visits),
            Source::Listen(listener) => {
                while let Some(stream) = listener.accept(stop)? {
                    self.visit(stream, stop, &mut visits);
                }
            }
            Source::Connect(path) => {
                while let Some(stream) = connect(&path, stop)? {
                    self.visit(stream, stop, &mut visits);
                    if let Ok(Woken::Stopped) = stop.wait(None, Some(RECONNECT_PAUSE)) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn visit(&self, stream: UnixStream, stop: &StopSignal, visits: &mut Visits) {
        let told = visits.begin(Instant::now());
        let mut session = match Session::new(stream) {
            Ok(session) => session,
            Err(error) => {
                let nic = self.spec.socket.display();
                return tracing::warn!(%nic, "front-end turned away: {error}");
            }
        };
        if told == Told::Quiet {
            session.log_refusals_at_debug();
        }
        self.converse(session, stop, told, "front-end connected", |handle| Glue::new(self, handle));
        if told == Told::Last {
            self.tell(told, "front-ends come and go; level debug tells more");
        }
    }

    fn converse<'a>(
        &'a self,
        session: Session,
        stop: &StopSignal,
        told: Told,
        hello: &str,
        glue: impl FnOnce(SessionHandle) -> Glue<'a>,
    ) {
        let nic = self.spec.socket.display();
        let handle = session.handle();
        *self.session() = Some(handle.clone());
        // Told to stop before the handle could be seen.
        if let Ok(Woken::Stopped) = stop.wait(None, Some(Duration::ZERO)) {
            if self.still.load(Ordering::Acquire) { handle.freeze() } else { handle.close() }
        }
        self.tell(told, hello);
        let mut glue = glue(handle);
        let end = session.run(&mut glue);
        *self.session() = None;
        match end {
            Ok(SessionEnd::Frozen(state)) => {
                let (queues, asked) = glue.freeze();
                *self.frozen() = Some(Frozen { state, queues, asked });
            }
            Ok(SessionEnd::HungUp) => self.tell(told, "front-end left"),
            Ok(SessionEnd::Closed) => self.tell(told, "front-end sent away"),
            Err(error) => {
                let cause = crate::error::text(&error);
                match told {
                    Told::Quiet => tracing::debug!(%nic, "front-end sent away: {cause}"),
                    _ => tracing::warn!(%nic, "front-end sent away: {cause}"),
                }
            }
        }
    }

    /// Says something about a front-end, unless there is too much of that.
    fn tell(&self, told: Told, what: &str) {
        let nic = self.spec.socket.display();
        match told {
            Told::Loud | Told::Last => tracing::info!(%nic, "{what}"),
            Told::Quiet => tracing::debug!(%nic, "{what}"),
        }
    }
}

//! A disk's control thread: one front-end after the other.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vhost_user::{Listener, Session, SessionEnd, SocketError, StopSignal, Woken, connect};

use super::glue::Glue;
use super::{Export, ExportError, lock};
use crate::visits::{Told, Visits};

/// Pause before connecting again to a front-end that has left: one that turns us away at once
/// must not keep a CPU busy.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// A disk's control thread.
#[derive(Debug)]
pub(super) struct Control {
    thread: JoinHandle<Result<(), SocketError>>,
    /// Given when it ends.
    pub(super) done: StopSignal,
}

/// There are no descriptors left for a signal.
pub(super) fn signal(source: std::io::Error) -> ExportError {
    ExportError::Os { action: "make a signal", source }
}

/// Where front-ends come from.
#[derive(Debug)]
pub enum Source {
    /// They connect to our socket.
    Listen(Arc<Listener>),
    /// We connect to theirs.
    Connect(PathBuf),
    /// One is connected already, and no other comes.
    Connected(UnixStream),
}

impl Export {
    /// Starts the control thread. Gives `ended` when it has ended, be it that no more front-ends
    /// come or that the disk is detached; [`Self::served`] then tells which. Without anybody to
    /// ask, a failure is logged.
    ///
    /// # Errors
    /// The process can have no more threads.
    pub fn serve(
        self: &Arc<Self>,
        source: Source,
        ended: Option<StopSignal>,
    ) -> Result<(), ExportError> {
        self.serve_on(source, ended, None)
    }

    /// As [`Self::serve`], with a session that goes on first.
    pub(super) fn serve_on(
        self: &Arc<Self>,
        source: Source,
        ended: Option<StopSignal>,
        session: Option<Session>,
    ) -> Result<(), ExportError> {
        let export = Arc::clone(self);
        let (stop, done) = (lock(&self.stop).clone(), StopSignal::new().map_err(signal)?);
        let gone = done.clone();
        let work = move || {
            let served = export.serve_all(source, &stop, session);
            match (&served, ended) {
                (_, Some(ended)) => ended.stop(),
                (Err(error), None) => {
                    let disk = &export.spec.id;
                    let cause = crate::error::text(error);
                    tracing::error!(disk, "no front-end can come any more: {cause}");
                }
                (Ok(()), None) => {}
            }
            gone.stop();
            served
        };
        let thread = std::thread::Builder::new().name("session".into()).spawn(work);
        let thread = thread
            .map_err(|source| ExportError::Os { action: "start a control thread", source })?;
        *lock(&self.thread) = Some(Control { thread, done });
        Ok(())
    }

    /// Waits for the control thread, once, and tells why it has ended.
    ///
    /// # Errors
    /// No front-end could come any more.
    pub fn served(&self) -> Result<(), SocketError> {
        let control = lock(&self.thread).take();
        // A thread that panicked has said so.
        control.map_or(Ok(()), |control| control.thread.join().unwrap_or(Ok(())))
    }

    fn serve_all(
        self: &Arc<Self>,
        source: Source,
        stop: &StopSignal,
        session: Option<Session>,
    ) -> Result<(), SocketError> {
        let mut visits = Visits::default();
        if let Some(session) = session {
            self.converse(session, stop, Told::Loud, "front-end stays connected");
        }
        match source {
            Source::Connected(stream) => self.session(stream, stop, &mut visits),
            Source::Listen(listener) => {
                while let Some(stream) = listener.accept(stop)? {
                    self.session(stream, stop, &mut visits);
                }
            }
            Source::Connect(path) => {
                while let Some(stream) = connect(&path, stop)? {
                    self.session(stream, stop, &mut visits);
                    if let Ok(Woken::Stopped) = stop.wait(None, Some(RECONNECT_PAUSE)) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn session(self: &Arc<Self>, stream: UnixStream, stop: &StopSignal, visits: &mut Visits) {
        let told = visits.begin(Instant::now());
        match Session::new(stream) {
            Ok(mut session) => {
                if told == Told::Quiet {
                    session.log_refusals_at_debug();
                }
                self.converse(session, stop, told, "front-end connected");
            }
            Err(error) => {
                tracing::warn!(disk = self.spec.id, "front-end turned away: {error}");
            }
        }
        if told == Told::Last {
            let more = "front-ends come and go; until a minute is over, level debug tells more";
            tracing::warn!(disk = self.spec.id, "{more}");
        }
    }

    fn converse(self: &Arc<Self>, session: Session, stop: &StopSignal, told: Told, hello: &str) {
        let handle = session.handle();
        lock(&self.front_end).session = Some(handle.clone());
        // Told to stop before the handle could be seen.
        if let Ok(Woken::Stopped) = stop.wait(None, Some(Duration::ZERO)) {
            if self.standing_still() { handle.freeze() } else { handle.close() }
        }
        self.board.connected.store(true, Ordering::Release);
        self.tell(told, hello);
        let mut glue = Glue { export: self, session: handle, told, first: true };
        let end = session.run(&mut glue);
        lock(&self.front_end).session = None;
        let disk = &self.spec.id;
        let end = match end {
            Ok(SessionEnd::Frozen(state)) => {
                lock(&self.front_end).frozen = Some(state);
                return;
            }
            Ok(SessionEnd::HungUp) => Ok("front-end left"),
            Ok(SessionEnd::Closed) => Ok("front-end sent away"),
            Err(error) => Err(crate::error::text(&error)),
        };
        self.board.connected.store(false, Ordering::Release);
        match end {
            Ok(how) => self.tell(told, how),
            Err(cause) if told == Told::Quiet => {
                tracing::debug!(disk, "front-end sent away: {cause}");
            }
            Err(cause) => tracing::warn!(disk, "front-end sent away: {cause}"),
        }
    }

    /// Says something about a front-end, unless there is too much of that.
    pub(super) fn tell(&self, told: Told, what: &str) {
        match told {
            Told::Loud | Told::Last => tracing::info!(disk = self.spec.id, "{what}"),
            Told::Quiet => tracing::debug!(disk = self.spec.id, "{what}"),
        }
    }
}

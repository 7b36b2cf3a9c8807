//! A disk's control thread: one front-end after the other.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vhost_user::{Listener, Session, SessionEnd, SocketError, Stop, Woken, connect};

use super::glue::Glue;
use super::visits::{Told, Visits};
use super::{Export, ExportError, lock};

/// Pause before connecting again to a front-end that has left: one that turns us away at once
/// must not keep a CPU busy.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

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
    pub fn serve(self: &Arc<Self>, source: Source, ended: Option<Stop>) -> Result<(), ExportError> {
        let export = Arc::clone(self);
        let work = move || {
            let served = export.serve_all(source);
            match (&served, ended) {
                (_, Some(ended)) => ended.stop(),
                (Err(error), None) => {
                    let disk = &export.spec.id;
                    let cause = crate::error::text(error);
                    tracing::error!(disk, "no front-end can come any more: {cause}");
                }
                (Ok(()), None) => {}
            }
            served
        };
        let thread = std::thread::Builder::new().name("session".into()).spawn(work);
        let thread = thread
            .map_err(|source| ExportError::Os { action: "start a control thread", source })?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Waits for the control thread, once, and tells why it has ended.
    ///
    /// # Errors
    /// No front-end could come any more.
    pub fn served(&self) -> Result<(), SocketError> {
        let thread = lock(&self.thread).take();
        // A thread that panicked has said so.
        thread.map_or(Ok(()), |thread| thread.join().unwrap_or(Ok(())))
    }

    fn serve_all(self: &Arc<Self>, source: Source) -> Result<(), SocketError> {
        let mut visits = Visits::default();
        match source {
            Source::Connected(stream) => self.session(stream, &mut visits),
            Source::Listen(listener) => {
                while let Some(stream) = listener.accept(&self.stop)? {
                    self.session(stream, &mut visits);
                }
            }
            Source::Connect(path) => {
                while let Some(stream) = connect(&path, &self.stop)? {
                    self.session(stream, &mut visits);
                    if let Ok(Woken::Stopped) = self.stop.wait(None, Some(RECONNECT_PAUSE)) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn session(self: &Arc<Self>, stream: UnixStream, visits: &mut Visits) {
        let told = visits.begin(Instant::now());
        let mut session = match Session::new(stream) {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(disk = self.spec.id, "front-end turned away: {error}");
                return;
            }
        };
        if told == Told::Quiet {
            session.hush();
        }
        let handle = session.handle();
        lock(&self.front_end).session = Some(handle.clone());
        // Told to hang up before the handle could be seen.
        if let Ok(Woken::Stopped) = self.stop.wait(None, Some(Duration::ZERO)) {
            handle.close();
        }
        self.board.connected.store(true, Ordering::Release);
        self.tell(told, "front-end connected");
        let end = session.run(&mut Glue { export: self, session: handle, told, first: true });
        self.board.connected.store(false, Ordering::Release);
        lock(&self.front_end).session = None;
        let disk = &self.spec.id;
        match end {
            Ok(SessionEnd::HungUp) => self.tell(told, "front-end left"),
            // Nobody freezes it yet.
            Ok(SessionEnd::Closed | SessionEnd::Frozen(_)) => {
                self.tell(told, "front-end sent away")
            }
            Err(error) => {
                let cause = crate::error::text(&error);
                if told == Told::Quiet {
                    tracing::debug!(disk, "front-end sent away: {cause}");
                } else {
                    tracing::warn!(disk, "front-end sent away: {cause}");
                }
            }
        }
        if told == Told::Last {
            let more = "front-ends come and go; until a minute is over, level debug tells more";
            tracing::warn!(disk, "{more}");
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

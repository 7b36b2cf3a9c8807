//! A NIC's control thread: one front-end after the other.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vhost_user::{Session, SessionEnd, SocketError, Stop, Woken, connect};

use super::glue::Glue;
use super::{Nic, NicError};
use crate::export::Source;
use crate::visits::{Told, Visits};

/// Pause before connecting again to a front-end that has left: one that turns us away at once
/// must not keep a CPU busy.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// A NIC's control thread. It ends after [`Nic::hang_up`], or when no front-end can come any more.
#[derive(Debug)]
pub struct Serving(JoinHandle<Result<(), SocketError>>);

impl Serving {
    /// Waits for its end.
    ///
    /// # Errors
    /// No front-end could come any more.
    pub fn wait(self) -> Result<(), SocketError> {
        // A thread that panicked has said so.
        self.0.join().unwrap_or(Ok(()))
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
        ended: Option<Stop>,
    ) -> Result<Serving, NicError> {
        let nic = Arc::clone(self);
        let work = move || {
            let served = nic.serve_all(source);
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
        let refused = |source| NicError::Os { action: "start a control thread", source };
        Ok(Serving(thread.map_err(refused)?))
    }

    fn serve_all(&self, source: Source) -> Result<(), SocketError> {
        let mut visits = Visits::default();
        match source {
            Source::Connected(stream) => self.visit(stream, &mut visits),
            Source::Listen(listener) => {
                while let Some(stream) = listener.accept(&self.stop)? {
                    self.visit(stream, &mut visits);
                }
            }
            Source::Connect(path) => {
                while let Some(stream) = connect(&path, &self.stop)? {
                    self.visit(stream, &mut visits);
                    if let Ok(Woken::Stopped) = self.stop.wait(None, Some(RECONNECT_PAUSE)) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn visit(&self, stream: UnixStream, visits: &mut Visits) {
        let nic = self.spec.socket.display();
        let told = visits.begin(Instant::now());
        let mut session = match Session::new(stream) {
            Ok(session) => session,
            Err(error) => return tracing::warn!(%nic, "front-end turned away: {error}"),
        };
        if told == Told::Quiet {
            session.hush();
        }
        let handle = session.handle();
        *self.session() = Some(handle.clone());
        // Told to stop before the handle could be seen.
        if let Ok(Woken::Stopped) = self.stop.wait(None, Some(Duration::ZERO)) {
            handle.close();
        }
        self.tell(told, "front-end connected");
        let end = session.run(&mut Glue::new(self, handle));
        *self.session() = None;
        match end {
            Ok(SessionEnd::HungUp) => self.tell(told, "front-end left"),
            Ok(SessionEnd::Closed | SessionEnd::Frozen(_)) => {
                self.tell(told, "front-end sent away");
            }
            Err(error) => {
                let cause = crate::error::text(&error);
                match told {
                    Told::Quiet => tracing::debug!(%nic, "front-end sent away: {cause}"),
                    _ => tracing::warn!(%nic, "front-end sent away: {cause}"),
                }
            }
        }
        if told == Told::Last {
            self.tell(told, "front-ends come and go; level debug tells more");
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

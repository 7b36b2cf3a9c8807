//! A NIC that stands still, so that another process goes on with it, or this one.
//!
//! ```text
//!   serving --session between messages--> frozen --queues end: senders, then receivers--> still
//!      ^                                                                                   |
//!      +--------------------------------------go on----------------------------------------+
//! ```
//! A session stands still while its queues are served on. Where each of them is to go on is known
//! when it has ended, and all of them end together ([`crate::nic_registry`]): a frame that has left its
//! sender's ring is in its receiver's by then, if that has buffers: what waits for some is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use net::control::ControlSettings;
use nic::RunningQueue;
use vhost_user::{Listener, Session, SessionHandle, SessionState, StopSignal};

use super::session_backend::NicSessionBackend;
use super::start_barrier::{BarrierTicket, StartBarrier};
use super::{NicError, NicSessionThread, ServedNic};
use crate::message_boundary::{missed_deadline, wait_message_boundary};
use crate::served_disk::SocketRole;

/// A session that stands still, with what its control thread had of it.
#[derive(Debug)]
pub(crate) struct FrozenSession {
    pub(super) state: Box<SessionState>,
    /// Those that are still served.
    pub(super) queues: Vec<RunningQueue>,
    /// What its driver has asked for over its control queue, if it has one.
    pub(super) control_settings: Option<ControlSettings>,
}

/// A session that goes on.
#[derive(Debug)]
pub(super) struct ResumedSession {
    pub(super) session: Session,
    pub(super) control_settings: Option<ControlSettings>,
    /// It is there when it has a ring to receive by.
    pub(super) barrier_ticket: BarrierTicket,
}

/// A NIC that stands still, until somebody goes on with it.
#[derive(Debug)]
pub(crate) struct QuiescedNic {
    pub(super) frozen: Option<FrozenSession>,
    pub(super) listener: Arc<Listener>,
}

impl ServedNic {
    /// Waits until its front-end is within no message; one that still is at `until` is sent away: it
    /// must not hold up the others. Everything is served meanwhile.
    pub(crate) fn settle(&self, until: Instant) {
        let session = self.session().clone();
        if let Some(session) = session.filter(|session| !wait_message_boundary(session, until)) {
            self.send_away(&session);
        }
    }

    fn send_away(&self, session: &SessionHandle) {
        let nic = self.spec.socket.display();
        tracing::warn!(%nic, "front-end is sent away: an upgrade waited too long for its message");
        session.close();
    }

    /// Lets its session stand still, and takes no other one; does not wait. [`NicSessionThread::wait_quiesced`] does.
    pub(crate) fn freeze(&self) {
        self.still.store(true, Ordering::Release);
        self.stop().stop();
        if let Some(session) = &*self.session() {
            session.freeze();
        }
    }

    /// Goes on where it stands. It sends when all others of the muster receive.
    ///
    /// # Errors
    /// The process can have no more threads or descriptors.
    pub(crate) fn go_on(
        self: &Arc<Self>,
        quiesced_nic: QuiescedNic,
        start_barrier: &Arc<StartBarrier>,
    ) -> Result<NicSessionThread, NicError> {
        let make = |source| NicError::Os { action: "make a signal", source };
        *self.stop() = StopSignal::new().map_err(make)?;
        self.still.store(false, Ordering::Release);
        let QuiescedNic { frozen, listener } = quiesced_nic;
        let session = frozen.and_then(|frozen| self.resumed(frozen, start_barrier));
        self.serve_on(SocketRole::Listen(listener), None, session)
    }

    /// The session, unless it cannot go on: its front-end is sent away then.
    fn resumed(
        &self,
        frozen: FrozenSession,
        start_barrier: &Arc<StartBarrier>,
    ) -> Option<ResumedSession> {
        let FrozenSession { state, queues: _, control_settings: asked } = frozen;
        let session =
            Session::restore(*state, &NicSessionBackend::new(self, SessionHandle::default()));
        let barrier_ticket = start_barrier.expect();
        let resumed = session.map(|session| ResumedSession {
            session,
            control_settings: asked,
            barrier_ticket,
        });
        resumed
            .inspect_err(|error| {
                let (nic, cause) = (self.spec.socket.display(), crate::error::error_chain(error));
                tracing::error!(%nic, "front-end sent away: {cause}");
            })
            .ok()
    }
}

impl NicSessionThread {
    /// Waits for the end of a NIC's control thread after [`ServedNic::freeze`], which was `asked` for then. A
    /// front-end that has begun a message since [`ServedNic::wait_message_boundary`] and does not end it is sent away.
    /// `None`: it does not listen, so nobody could come to it again.
    pub(crate) fn wait_quiesced(self, nic: &ServedNic, asked: Instant) -> Option<QuiescedNic> {
        let session = || nic.session().clone();
        if missed_deadline(&self.done, asked, session)
            && let Some(session) = session()
        {
            nic.send_away(&session);
        }
        // Ends now. One that panicked has said so.
        let _ = self.thread.join();
        let frozen = nic.frozen().take();
        self.listener.map(|listener| QuiescedNic { frozen, listener })
    }
}

impl QuiescedNic {
    /// Takes nothing more from its guest.
    pub(crate) fn drain_tx(&mut self) {
        self.end(RunningQueue::sends);
    }

    /// Gives its guest nothing more.
    pub(crate) fn drain_rx(&mut self) {
        self.end(|_| true);
    }

    fn end(&mut self, which: impl Fn(&RunningQueue) -> bool) {
        let Some(FrozenSession { state, queues, .. }) = &mut self.frozen else { return };
        for queue in queues.extract_if(.., |queue| which(queue)) {
            let index = queue.index();
            match queue.stop() {
                Ok(next) => state.stopped_at(index, next),
                Err(error) => tracing::error!(queue = index, "where it stands is lost: {error}"),
            }
        }
    }

    /// Another process goes on with it: closes what is left here of its front-end's connection, and
    /// leaves its socket's files.
    pub(crate) fn part(self) {
        drop(self.frozen);
        if let Some(listener) = Arc::into_inner(self.listener) {
            listener.leave();
        }
    }
}

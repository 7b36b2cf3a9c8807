//! Quiescing of a NIC, so that another process or this one can continue with it.
//!
//! ```text
//!   serving --session between messages--> frozen --drain: senders, then receivers--> quiesced
//!      ^                                                                                 |
//!      +------------------------------------unquiesce------------------------------------+
//! ```
//! A frozen session's queues are still served. Their positions are known when the session's thread
//! has ended, and all queues of all NICs drain together ([`crate::nic_registry`]). By then each
//! sent frame is in its receiver's ring, if that has buffers. A frame that waits for buffers is
//! lost. A front-end whose memory no other process can map is disconnected then, as that of a disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use net::control::ControlSettings;
use nic::RunningQueue;
use vhost_user::{Listener, Session, SessionHandle, SessionState, StateError, StopSignal};

use super::session_backend::NicSessionBackend;
use super::start_barrier::{BarrierTicket, StartBarrier};
use super::{NicError, NicSessionThread, ServedNic};
use crate::message_boundary::{missed_deadline, wait_message_boundary};
use crate::served_disk::SocketRole;

/// Frozen session, with the state that its session thread had.
#[derive(Debug)]
pub(crate) struct FrozenSession {
    pub(super) state: Box<SessionState>,
    /// Queues that are still served.
    pub(super) queues: Vec<RunningQueue>,
    /// Control-queue settings of the driver, if it has a control queue.
    pub(super) control_settings: Option<ControlSettings>,
}

/// Session that continues.
#[derive(Debug)]
pub(super) struct ResumedSession {
    pub(super) session: Session,
    pub(super) control_settings: Option<ControlSettings>,
    /// Ticket that is used when the session has a receive ring.
    pub(super) barrier_ticket: BarrierTicket,
}

/// Quiesced NIC. It stays so until it is unquiesced or handed over.
#[derive(Debug)]
pub(crate) struct QuiescedNic {
    pub(super) frozen: Option<FrozenSession>,
    pub(super) listener: Arc<Listener>,
}

impl ServedNic {
    /// Waits until the front-end is between messages. If it still is not at `until`, it is
    /// disconnected, because it must not delay the others. Everything is served meanwhile.
    pub(crate) fn wait_message_boundary(&self, until: Instant) {
        let session = self.session().clone();
        if let Some(session) = session.filter(|session| !wait_message_boundary(session, until)) {
            self.send_away(&session);
        }
    }

    fn send_away(&self, session: &SessionHandle) {
        let nic = self.spec.socket.display();
        tracing::warn!(%nic, "front-end disconnected: an upgrade waited too long for its message");
        session.close();
    }

    /// Freezes the session and accepts no other. Does not wait; [`NicSessionThread::wait_quiesced`]
    /// does.
    pub(crate) fn freeze(&self) {
        self.still.store(true, Ordering::Release);
        self.stop().stop();
        if let Some(session) = &*self.session() {
            session.freeze();
        }
    }

    /// Serves the NIC again from its present position. It sends when all others of the barrier
    /// receive.
    ///
    /// # Errors
    /// The process cannot create more threads or descriptors.
    pub(crate) fn unquiesce(
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

    /// Returns the session. If it cannot continue, its front-end is disconnected instead.
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
        resumed.inspect_err(|error| self.end_frozen(error)).ok()
    }

    /// Ends the session of a quiesced NIC if no other process could continue with it. Its connection
    /// closes with its state.
    pub(crate) fn end_unmappable(&self, quiesced_nic: &mut QuiescedNic) {
        let checked = quiesced_nic.frozen.as_ref().map(|frozen| frozen.state.check_mappable());
        if let Some(Err(error)) = checked
            && error.is_front_end_fault()
        {
            quiesced_nic.frozen = None;
            self.end_frozen(&error);
        }
    }

    /// Logs why a frozen session cannot continue, and forgets its driver.
    pub(super) fn end_frozen(&self, error: &StateError) {
        let (nic, cause) = (self.spec.socket.display(), crate::error::error_chain(error));
        tracing::error!(%nic, "front-end disconnected: {cause}");
        let (fabric, port) = (&self.switch_network.fabric, self.spec.port);
        fabric.clear_broken_rings(port, None);
        if let Err(error) = fabric.set_control_settings(port, None) {
            tracing::error!(%nic, "settings of the former driver not reset: {error}");
        }
    }
}

impl NicSessionThread {
    /// Waits for the end of the session thread after [`ServedNic::freeze`] was called at `asked`.
    /// Disconnects a front-end that has begun a message since [`ServedNic::wait_message_boundary`]
    /// and does not finish it. Returns `None` if the NIC does not listen, so that no front-end could
    /// reconnect.
    pub(crate) fn wait_quiesced(self, nic: &ServedNic, asked: Instant) -> Option<QuiescedNic> {
        let session = || nic.session().clone();
        if missed_deadline(&self.done, asked, session)
            && let Some(session) = session()
        {
            nic.send_away(&session);
        }
        // The thread ends now. A panic was reported already.
        let _ = self.thread.join();
        let frozen = nic.frozen().take();
        self.listener.map(|listener| QuiescedNic { frozen, listener })
    }
}

impl QuiescedNic {
    /// Drains the queues that take frames from its guest.
    pub(crate) fn drain_tx(&mut self) {
        self.end(RunningQueue::sends);
    }

    /// Drains the queues that deliver frames to its guest.
    pub(crate) fn drain_rx(&mut self) {
        self.end(|_| true);
    }

    fn end(&mut self, which: impl Fn(&RunningQueue) -> bool) {
        let Some(FrozenSession { state, queues, .. }) = &mut self.frozen else { return };
        for queue in queues.extract_if(.., |queue| which(queue)) {
            let (index, broken_ring) = (queue.index(), queue.broken_ring());
            match queue.stop() {
                Ok(next) => {
                    state.stopped_at(index, next);
                    if broken_ring.get().is_some() {
                        state.mark_broken(index);
                    }
                }
                Err(error) => tracing::error!(queue = index, "position of the ring lost: {error}"),
            }
        }
    }

    /// Closes the rest of the front-end's connection, because another process serves the NIC.
    /// Leaves the socket's files.
    pub(crate) fn close_handed_over(self) {
        drop(self.frozen);
        if let Some(listener) = Arc::into_inner(self.listener) {
            listener.close_keep_files();
        }
    }
}

//! A disk that stands still, so that another process goes on with it, or this one.
//!
//! ```text
//!   serving --drain in time--> drained --session between messages--> still
//!      ^             |                                                 |
//!      +--too late---+                 (another process) <--handed-----+
//!      +----------------------------------------------go on------------+
//! ```
//! Nothing is lost on any of these ways: what waits for room goes on waiting, no message is cut,
//! locks stay, and the front-end sees nothing but the time that it takes. A front-end that stops
//! in the middle of a message is sent away: it must not hold up the others ([`crate::message_boundary`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blk::TokenBalance;
use model::export::ExportSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vhost_user::{Listener, ListenerParts, Session, SessionHandle, SessionState, StopSignal};

use super::session_backend::DiskSessionBackend;
use super::session_thread::signal;
use super::{FrontEnd, ServedDisk, ServedDiskError, lock};
use crate::keeper_client::{PreservedDisk, PreservedFds};
use crate::message_boundary::{missed_deadline, wait_message_boundary};
use crate::pool::Pool;
use crate::session_log::SessionLogLevel;

/// A request that storage has for longer is no reason to keep other guests waiting.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// A disk that stands still, until somebody goes on with it.
#[derive(Debug)]
pub(crate) struct QuiescedDisk {
    session: Option<Box<SessionState>>,
}

/// Formats to write a disk in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskFormats {
    /// Of the record itself.
    pub(crate) record: u32,
    /// Of the session in it.
    pub(crate) session: u32,
}

/// A disk as data; its descriptors follow: the image's, then those of the session.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskHandoverState {
    /// Its format; the first one did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    /// Its id; everything else about it is held by the keeper.
    pub(crate) id: String,
    /// The first descriptor is that of its image.
    image: bool,
    /// Bytes that the guest was told.
    size: u64,
    block_size: u32,
    /// A flush has failed, so that every later one fails.
    lost: bool,
    session: Option<Value>,
    /// What is saved up under its caps, or owed; the first format did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    saved: Option<TokenBalance>,
}

impl ServedDisk {
    /// The control thread ends because the disk is to stand still.
    pub(super) fn is_quiescing(&self) -> bool {
        self.still.load(Ordering::Acquire)
    }

    /// Refuses where it is known already that storage does not end what it has: to find that out
    /// by waiting would cost all other disks that time.
    ///
    /// # Errors
    /// Storage is full, hangs, or has hung.
    pub(crate) fn check_can_quiesce(&self) -> Result<(), ServedDiskError> {
        self.refuse_stuck("upgrade")?;
        // A client's writes would be cut off, and it has no record of them as a guest has.
        self.refuse_writable()?;
        if self.hangs() {
            // It may have answered just now: a guest sees that before it is counted here.
            if let Some(queues) = self.queues.lock_until(Instant::now() + HANGS_AFTER) {
                queues.wait_turns();
            }
            if self.hangs() {
                return Err(ServedDiskError::NotDrained { place: self.backend_text() });
            }
        }
        if self.waiting() > 0 {
            return Err(ServedDiskError::NotDrained { place: self.backend_text() });
        }
        Ok(())
    }

    /// Storage has had a request for so long that it is no reason to wait for it.
    fn hangs(&self) -> bool {
        let since = self.device.oldest_in_disk_ns();
        let age = since.map(|since| blk::clock_ns().saturating_sub(since));
        age.is_some_and(|age| Duration::from_nanos(age) > HANGS_AFTER)
    }

    /// Waits until its front-end is within no message; one that still is at `until` is sent away: it
    /// must not hold up the others. Everything is served meanwhile.
    pub(crate) fn wait_message_boundary(&self, until: Instant) {
        let session = lock(&self.front_end).session.clone();
        if let Some(session) = session.filter(|session| !wait_message_boundary(session, until)) {
            self.send_away(&session);
        }
    }

    fn send_away(&self, session: &SessionHandle) {
        tracing::warn!(
            disk = self.spec.id,
            "front-end is sent away: an upgrade waited too long for its message"
        );
        session.close();
    }

    /// Lets everything stand still by `deadline`. Whatever comes of it, [`Self::unquiesce`] undoes it.
    ///
    /// # Errors
    /// Storage does not end what is in flight; everything is as it was.
    pub(crate) fn quiesce(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<QuiescedDisk, ServedDiskError> {
        self.refuse_stuck("upgrade")?;
        // Whoever has the lock may wait for this disk's storage, longer than the others can.
        let drained = self.queues.lock_until(deadline).is_some_and(|mut it| it.quiesce(deadline));
        if !drained {
            return Err(ServedDiskError::NotDrained { place: self.backend_text() });
        }
        self.still.store(true, Ordering::Release);
        lock(&self.stop).stop();
        if let Some(session) = &lock(&self.front_end).session {
            session.freeze();
        }
        let done = lock(&self.thread).as_ref().map(|control| control.done.clone());
        if let Some(done) = done {
            let session = || lock(&self.front_end).session.clone();
            if missed_deadline(&done, Instant::now(), session)
                && let Some(session) = session()
            {
                self.send_away(&session);
            }
        }
        // Ends now: whatever it waited for in the front-end's socket is over.
        let _ = self.join_session_thread();
        let mut session = lock(&self.front_end).frozen.take();
        if let Some(state) = &mut session {
            let queues = self.queues.lock();
            for (index, next, goes_on) in queues.positions() {
                state.stopped_at(index, next);
                if !goes_on {
                    state.mark_broken(index);
                }
            }
        }
        Ok(QuiescedDisk { session })
    }

    /// Goes on where the disk stands, as if nothing had happened.
    ///
    /// # Errors
    /// The process can have no more threads or descriptors.
    pub(crate) fn unquiesce(
        self: &Arc<Self>,
        quiesced_disk: QuiescedDisk,
    ) -> Result<(), ServedDiskError> {
        *lock(&self.stop) = StopSignal::new().map_err(signal)?;
        self.still.store(false, Ordering::Release);
        let serving = self.is_active() && !self.is_paused();
        let restored = quiesced_disk.session.map(|state| self.resumed(*state)).transpose();
        {
            let mut queues = self.queues.lock();
            // A session starts its rings anew; without one, there are none.
            queues.forget_unserved(serving);
        }
        let session = restored.unwrap_or_else(|error| {
            let cause = crate::error::error_chain(&error);
            tracing::error!(disk = self.spec.id, "front-end sent away: {cause}");
            self.disk_status.connected.store(false, Ordering::Release);
            None
        });
        self.serve_on(self.source(), None, session)
    }

    fn resumed(self: &Arc<Self>, state: SessionState) -> Result<Session, ServedDiskError> {
        let (session, session_log_level) = (SessionHandle::default(), SessionLogLevel::Loud);
        Ok(Session::restore(
            state,
            &DiskSessionBackend { served_disk: self, session, session_log_level, first: true },
        )?)
    }

    /// Another process goes on with it: closes what is left here of the connections of its
    /// front-end and its NBD clients.
    pub(crate) fn close_handed_over(&self, quiesced_disk: Option<QuiescedDisk>) {
        drop(quiesced_disk);
        self.hang_up_exports();
        *lock(&self.front_end) = FrontEnd::default();
    }

    /// A disk that stands still, as data of these formats and the descriptors beside it.
    ///
    /// # Errors
    /// A format that is not known.
    pub(crate) fn to_handover_state<'a>(
        &'a self,
        quiesced_disk: &'a QuiescedDisk,
        formats: DiskFormats,
    ) -> Result<(DiskHandoverState, Vec<BorrowedFd<'a>>), ServedDiskError> {
        let geometry = self.geometry();
        let image = self.image.as_ref().map(|disk| disk.handover());
        let mut fds: Vec<_> = image.map(|(file, _)| file.as_fd()).into_iter().collect();
        let session = match &quiesced_disk.session {
            Some(state) => {
                let (data, more) = state.encode(formats.session)?;
                fds.extend(more);
                Some(data)
            }
            None => None,
        };
        let written = DiskHandoverState {
            version: (formats.record > 1).then_some(formats.record),
            id: self.spec.id.clone(),
            image: image.is_some(),
            size: geometry.size,
            block_size: geometry.block_size,
            lost: image.is_some_and(|(_, lost)| lost),
            session,
            saved: (formats.record > 1).then(|| self.device.saved()),
        };
        Ok((written, fds))
    }

    /// The disk that another process has written. It stands still there, and nothing is ours yet:
    /// neither its lock nor its socket's files.
    ///
    /// # Errors
    /// What came does not fit together, or not to what is held.
    pub(crate) fn from_handover_state(
        preserved_disk: PreservedDisk,
        preserved_fds: PreservedFds,
        written: DiskHandoverState,
        fds: Vec<OwnedFd>,
        pool: Arc<Pool>,
    ) -> Result<IncomingDisk, ServedDiskError> {
        let DiskHandoverState { version: _, id: _, image, size, block_size, lost, session, saved } =
            written;
        // All of it: sockets that are forgotten here nobody accepts on after the upgrade. Those of
        // NBD exports go to `IncomingDisk`, and `IncomingDisk::take_over` brings the exports back.
        let PreservedFds { listener, memory, exports: sockets } = preserved_fds;
        let mut fds = fds.into_iter();
        let opened = if image {
            let image = fds.next().ok_or(ServedDiskError::Gone)?;
            crate::open_disk::adopt(&preserved_disk.spec, image, (size, block_size), lost)?
        } else {
            crate::open_disk::open(&preserved_disk.spec, memory)?
        };
        if opened.disk.geometry().size != size {
            opened.disk.resize(Some(size))?;
        }
        let served_disk = Self::with(preserved_disk.spec.clone(), opened, None, pool)?;
        // An upgrade gives nobody a new burst.
        served_disk.device.set_saved(saved.unwrap_or_default());
        served_disk.disk_status.paused.store(preserved_disk.paused, Ordering::Release);
        let fds = fds.collect();
        let state = session.map(|data| SessionState::decode(data, fds)).transpose()?;
        if let Some(state) = &state {
            let (session, session_log_level) = (SessionHandle::default(), SessionLogLevel::Loud);
            state.check_compatible(&DiskSessionBackend {
                served_disk: &served_disk,
                session,
                session_log_level,
                first: true,
            })?;
        }
        let quiesced_disk = QuiescedDisk { session: state.map(Box::new) };
        let PreservedDisk { active, exports, .. } = preserved_disk;
        Ok(IncomingDisk { served_disk, quiesced_disk, listener, active, exports, sockets })
    }
}

/// A disk of another process, ready to be gone on with.
#[derive(Debug)]
pub(crate) struct IncomingDisk {
    pub(crate) served_disk: Arc<ServedDisk>,
    quiesced_disk: QuiescedDisk,
    /// Where front-ends connect. No listener yet: one that is dropped removes its files.
    listener: Option<ListenerParts>,
    active: bool,
    /// Its exports, which begin anew, and their sockets.
    exports: Vec<ExportSpec>,
    sockets: Vec<ListenerParts>,
}

impl IncomingDisk {
    /// Goes on with it: the other process never will.
    ///
    /// # Errors
    /// The image cannot be locked, or the process can have no more threads or descriptors.
    pub(crate) fn take_over(self) -> Result<(), ServedDiskError> {
        let Self { served_disk, quiesced_disk, listener, active, exports, sockets } = self;
        let listener = listener.map(Listener::adopt).transpose()?;
        *lock(&served_disk.listener) = listener.map(Arc::new);
        if active {
            // By the same open file the lock is ours already.
            served_disk.disk.activate()?;
            served_disk.disk_status.active.store(true, Ordering::Release);
        }
        served_disk.unquiesce(quiesced_disk)?;
        // None of them writes: that is refused before a disk stands still.
        served_disk.restore_exports(&exports, sockets, false)
    }
}

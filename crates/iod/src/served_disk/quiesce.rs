//! Quiescing of a disk, so that another process or this one can continue with it.
//!
//! ```text
//!   serving --drained in time--> drained --session between messages--> quiesced
//!      ^             |                                                   |
//!      +--too late---+                   (another process) <--handover---+
//!      +---------------------------------------------unquiesce-----------+
//! ```
//! No path loses anything. No message is cut, and locks stay. The front-end only sees a pause.
//! Requests that wait for space stay in an in-flight region, and the next process submits them
//! again. If the front-end has no region, its session goes on with one that is made here.
//!
//! Two kinds of front-ends are disconnected, because they must not delay the others. One stops in
//! the middle of a message ([`crate::message_boundary`]). The other has truncated, sealed or
//! overwritten memory that it shares, so that no other process can map it. This process checks that
//! before it sends the session, and the next one leaves out a session that has changed since.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blk::TokenBalance;
use disk::{Disk as _, Geometry};
use model::export::ExportSpec;
use model::report::RingKind;
use model::share::DiskShare;
use model::spec::{BlockSize, DiskSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vhost_user::{
    Backend as _, Listener, ListenerParts, Session, SessionHandle, SessionState, StateError,
    StopSignal,
};

use super::session_backend::DiskSessionBackend;
use super::session_thread::signal;
use super::{FrontEnd, ServedDisk, ServedDiskError, lock};
use crate::deadline::run_with_deadline;
use crate::handover::BrokenRingState;
use crate::keeper_client::{PreservedDisk, PreservedFds};
use crate::message_boundary::{missed_deadline, wait_message_boundary};
use crate::open_disk::{self, FileState, OpenTree, TreeFile};
use crate::pool::Pool;

/// Age of a request above which its storage counts as hung. Other guests must not wait for it.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// Quiesced disk. It stays so until it is unquiesced or handed over.
#[derive(Debug)]
pub(crate) struct QuiescedDisk {
    session: Option<Box<SessionState>>,
    /// Tree that is handed over.
    tree: Arc<OpenTree>,
}

/// Formats of a disk's handover data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskFormats {
    /// Format of the record itself.
    pub(crate) record: u32,
    /// Format of the session in it.
    pub(crate) session: u32,
}

/// First format that lists the files of a tree. Its readers know disks without a socket, too.
const TREE_FORMAT: u32 = 4;

/// Handover record of a disk. Its descriptors follow: those of the files, then those of the session.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskHandoverState {
    /// Format of the record. The first format omits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    /// Id of the disk. The keeper has all else about it.
    pub(crate) id: String,
    /// True if the first descriptor is the image. The formats from the fourth on omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<bool>,
    /// Files of the tree, top first, with a descriptor each. The formats before the fourth omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    files: Option<Vec<FileState>>,
    /// Size in bytes that the guest was told.
    size: u64,
    block_size: u32,
    /// True if a flush of the image has failed, so that every later flush fails. The formats from
    /// the fourth on omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lost: Option<bool>,
    session: Option<Value>,
    /// Token balance of the caps, which can be negative (debt). The first format omits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    saved: Option<TokenBalance>,
    /// Broken rings. The formats before the third omit them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    broken: Option<Vec<BrokenRingState>>,
}

impl DiskHandoverState {
    /// Returns the files that have a descriptor each, top first.
    fn files(&self) -> Vec<FileState> {
        let (size, block_size) = (self.size, self.block_size);
        let image = self.image == Some(true);
        let lost = self.lost == Some(true);
        let images = || image.then_some(FileState { size, block_size, lost });
        self.files.clone().unwrap_or_else(|| images().into_iter().collect())
    }
}

impl ServedDisk {
    /// Returns whether the session thread ends because the disk is being quiesced.
    pub(super) fn is_quiescing(&self) -> bool {
        self.still.load(Ordering::Acquire)
    }

    /// Checks that the storage is not known to hang. A drain that is known to fail would cost all
    /// other disks the waiting time. Requests that wait for space do not count.
    ///
    /// # Errors
    /// Storage hangs, or has hung.
    pub(crate) fn check_can_quiesce(&self) -> Result<(), ServedDiskError> {
        self.refuse_stuck("upgrade")?;
        // An NBD client's writes would be lost, because unlike a guest it has no record of them.
        self.refuse_writable()?;
        if self.hangs() {
            // Storage may have answered just now: the guest sees a completion before it is counted
            // here.
            if let Some(queues) = self.queues.lock_until(Instant::now() + HANGS_AFTER) {
                queues.wait_turns();
            }
            if self.hangs() {
                return Err(ServedDiskError::NotDrained { place: self.backend_text() });
            }
        }
        Ok(())
    }

    /// Checks that a process that reads disk records of this format can continue with the disk.
    ///
    /// # Errors
    /// The backend is a tree that this format cannot tell, or the disk has no socket, or a share.
    pub(crate) fn check_handover_format(&self, record: u32) -> Result<(), ServedDiskError> {
        let backend = &self.tree().backend;
        if record >= TREE_FORMAT {
            return Ok(());
        }
        if self.spec.socket.is_none() {
            return Err(ServedDiskError::NoSocketUnknown { record });
        }
        if self.tree().storage_disks.share() != DiskShare::default() {
            return Err(ServedDiskError::ShareUnknown { record });
        }
        if backend.is_plain() {
            return Ok(());
        }
        Err(ServedDiskError::TreeUnknown { backend: backend.to_string(), record })
    }

    /// Returns whether storage has had a request for so long that waiting for it makes no sense.
    /// While requests wait for space or for their share of the storage, only the drain can tell.
    fn hangs(&self) -> bool {
        let waits_for_share = || self.share_report().is_some_and(|share| share.waiting > 0);
        if self.waiting() > 0 || waits_for_share() {
            return false;
        }
        let since = self.device.oldest_in_disk_ns();
        let age = since.map(|since| blk::clock_ns().saturating_sub(since));
        age.is_some_and(|age| Duration::from_nanos(age) > HANGS_AFTER)
    }

    /// Waits until the front-end is between messages. If it still is not at `until`, it is
    /// disconnected, because it must not delay the others. Everything is served meanwhile.
    pub(crate) fn wait_message_boundary(&self, until: Instant) {
        let session = lock(&self.front_end).session.clone();
        if let Some(session) = session.filter(|session| !wait_message_boundary(session, until)) {
            self.send_away(&session);
        }
    }

    fn send_away(&self, session: &SessionHandle) {
        tracing::warn!(
            disk = self.spec.id,
            "front-end is disconnected: an upgrade waited too long for its message"
        );
        session.close();
    }

    /// Quiesces the disk by `deadline`. [`Self::unquiesce`] undoes it.
    ///
    /// # Errors
    /// Storage does not complete I/O in flight. Nothing has changed then.
    pub(crate) fn quiesce(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<QuiescedDisk, ServedDiskError> {
        self.refuse_stuck("upgrade")?;
        // The owner of the lock may wait for this disk's storage, longer than the other disks can
        // wait.
        let drained = self.queues.lock_until(deadline).is_some_and(|mut it| it.quiesce(deadline));
        if !drained {
            return Err(ServedDiskError::NotDrained { place: self.backend_text() });
        }
        if let Err(error) = self.quiesce_tree(deadline) {
            self.serve_again(&mut self.queues.lock());
            return Err(error);
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
        // The thread ends now, because its wait on the front-end's socket is over.
        let _ = self.join_session_thread();
        let frozen = lock(&self.front_end).frozen.take();
        let session = frozen.and_then(|state| self.resting(state));
        Ok(QuiescedDisk { session, tree: self.tree() })
    }

    /// Stops what the tree does in the background by `deadline`.
    ///
    /// # Errors
    /// Its storage is late. The tree goes on when the storage answers.
    pub(super) fn quiesce_tree(&self, deadline: Instant) -> Result<(), ServedDiskError> {
        let disk = self.replaceable.current();
        // Here and not on the thread, which may come late: `unquiesce` holds then.
        disk.begin_quiesce();
        run_with_deadline(deadline, move || disk.quiesce()).map_err(|_| {
            self.disk.unquiesce();
            ServedDiskError::NotDrained { place: self.backend_text() }
        })
    }

    /// Completes the state of a frozen session with the positions of its rings. Returns `None` and
    /// disconnects the front-end if no other process could continue with it.
    fn resting(self: &Arc<Self>, mut state: Box<SessionState>) -> Option<Box<SessionState>> {
        if let Err(error) = state.check_mappable()
            && error.is_front_end_fault()
        {
            self.end_frozen(&error);
            return None;
        }
        let queues = self.queues.lock();
        for (index, next, goes_on) in queues.positions() {
            state.stopped_at(index, next);
            if !goes_on {
                state.mark_broken(index);
            }
        }
        if let Some(region) = queues.spare_records() {
            state.record_in(region);
        }
        Some(state)
    }

    /// Ends a frozen session that cannot continue. Its connection closes with its state.
    fn end_frozen(self: &Arc<Self>, error: &impl std::error::Error) {
        let cause = crate::error::error_chain(error);
        tracing::error!(disk = self.spec.id, "front-end disconnected: {cause}");
        let serving = self.is_active() && !self.is_paused();
        self.queues.lock().forget_unserved(serving);
        let session = SessionHandle::default();
        let mut backend = DiskSessionBackend { served_disk: self, session, first: true };
        backend.count(0);
        backend.disconnected();
        self.disk_status.connected.store(false, Ordering::Release);
    }

    /// Serves the disk again from its present position, as if nothing had happened.
    ///
    /// # Errors
    /// The process cannot create more threads or descriptors.
    pub(crate) fn unquiesce(
        self: &Arc<Self>,
        quiesced_disk: QuiescedDisk,
    ) -> Result<(), ServedDiskError> {
        *lock(&self.stop) = StopSignal::new().map_err(signal)?;
        self.disk.unquiesce();
        self.still.store(false, Ordering::Release);
        let serving = self.is_active() && !self.is_paused();
        let restored = quiesced_disk.session.map(|state| self.resumed(*state)).transpose();
        {
            let mut queues = self.queues.lock();
            // A session restarts its rings. Without a session there are none.
            queues.forget_unserved(serving);
        }
        let session = restored.unwrap_or_else(|error| {
            self.end_frozen(&error);
            None
        });
        self.serve_on(self.source(), None, session)
    }

    fn resumed(self: &Arc<Self>, state: SessionState) -> Result<Session, ServedDiskError> {
        let session = SessionHandle::default();
        Ok(Session::restore(
            state,
            &DiskSessionBackend { served_disk: self, session, first: true },
        )?)
    }

    /// Closes the remaining connections of front-end and NBD clients, because another process
    /// serves the disk.
    pub(crate) fn close_handed_over(&self, quiesced_disk: Option<QuiescedDisk>) {
        drop(quiesced_disk);
        self.hang_up_exports();
        *lock(&self.front_end) = FrontEnd::default();
    }

    /// Returns the handover record of a quiesced disk in these formats, and its descriptors.
    ///
    /// # Errors
    /// The format is unknown, or cannot tell the disk's tree.
    pub(crate) fn to_handover_state<'a>(
        &'a self,
        quiesced_disk: &'a QuiescedDisk,
        formats: DiskFormats,
    ) -> Result<(DiskHandoverState, Vec<BorrowedFd<'a>>), ServedDiskError> {
        self.check_handover_format(formats.record)?;
        let geometry = self.geometry();
        let state_of = |file: &TreeFile| {
            let Geometry { size, block_size, .. } = file.disk.geometry();
            FileState { size, block_size, lost: file.disk.handover().1 }
        };
        let files: Vec<_> = quiesced_disk.tree.files.iter().map(state_of).collect();
        let mut fds: Vec<_> =
            quiesced_disk.tree.files.iter().map(|file| file.disk.handover().0.as_fd()).collect();
        let lists_files = formats.record >= TREE_FORMAT;
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
            image: (!lists_files).then_some(!files.is_empty()),
            size: geometry.size,
            block_size: geometry.block_size,
            lost: (!lists_files).then(|| files.iter().any(|file| file.lost)),
            files: lists_files.then_some(files),
            session,
            saved: (formats.record > 1).then(|| self.device.token_balance()),
            broken: (formats.record > 2).then(|| self.broken_rings()),
        };
        Ok((written, fds))
    }

    fn broken_rings(&self) -> Vec<BrokenRingState> {
        let all = self.device.broken_rings().into_iter();
        all.map(|(queue, one)| BrokenRingState::new(queue, RingKind::Request, one)).collect()
    }

    /// Rebuilds a disk from the handover record of another process. The disk is quiesced there.
    /// This process owns nothing of it yet, neither its lock nor its socket's files.
    ///
    /// # Errors
    /// The data is inconsistent, or contradicts the preserved record.
    pub(crate) fn from_handover_state(
        preserved_disk: PreservedDisk,
        preserved_fds: PreservedFds,
        written: DiskHandoverState,
        fds: Vec<OwnedFd>,
        pool: Arc<Pool>,
    ) -> Result<IncomingDisk, ServedDiskError> {
        let states = written.files();
        let DiskHandoverState { size, block_size, session, saved, broken, .. } = written;
        // Use all of them: no process would accept on a forgotten socket after the upgrade. Sockets
        // of NBD exports go to `IncomingDisk`, and `IncomingDisk::take_over` restores the exports.
        let PreservedFds { listener, sources, exports: sockets } = preserved_fds;
        let mut fds = fds.into_iter();
        let open_files = states.into_iter().zip(fds.by_ref()).map(|(state, fd)| (fd, state));
        let open_files = open_files.collect();
        // The guest goes on with the blocks that it was told.
        let block_size = Some(BlockSize::Bytes(block_size));
        let told = DiskSpec { block_size, ..preserved_disk.spec.clone() };
        let opened = open_disk::adopt(&told, sources, open_files)?;
        if opened.disk.geometry().size != size {
            opened.disk.resize(Some(size))?;
        }
        let served_disk = Self::with(preserved_disk.spec.clone(), opened, None, pool)?;
        // An upgrade must not grant a new burst.
        served_disk.device.set_token_balance(saved.unwrap_or_default());
        served_disk.disk_status.paused.store(preserved_disk.paused, Ordering::Release);
        let fds = fds.collect();
        let state = session.map(|data| served_disk.decoded(data, fds)).transpose()?.flatten();
        if state.is_some() {
            for one in broken.unwrap_or_default() {
                served_disk.device.restore_broken_ring(one.queue, one.into_broken_ring());
            }
        }
        let quiesced_disk = QuiescedDisk { session: state, tree: served_disk.tree() };
        let PreservedDisk { active, exports, .. } = preserved_disk;
        Ok(IncomingDisk { served_disk, quiesced_disk, listener, active, exports, sockets })
    }
}

impl ServedDisk {
    /// Returns the session of another process. Returns `None` if its front-end has changed its
    /// memory so that the session cannot continue. Its connection then closes with the other
    /// process.
    fn decoded(
        self: &Arc<Self>,
        data: Value,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Box<SessionState>>, StateError> {
        let session = SessionHandle::default();
        let backend = DiskSessionBackend { served_disk: self, session, first: true };
        let state = SessionState::decode(data, fds);
        match state.and_then(|state| state.check_compatible(&backend).map(|()| state)) {
            Ok(state) => Ok(Some(Box::new(state))),
            Err(error) if error.is_front_end_fault() => {
                let cause = crate::error::error_chain(&error);
                tracing::error!(disk = self.spec.id, "front-end disconnected: {cause}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Disk of another process, ready to be taken over.
#[derive(Debug)]
pub(crate) struct IncomingDisk {
    pub(crate) served_disk: Arc<ServedDisk>,
    quiesced_disk: QuiescedDisk,
    /// Listening socket for front-ends. It is not a `Listener` yet, because dropping that removes
    /// its files.
    listener: Option<ListenerParts>,
    active: bool,
    /// Exports of the disk, which start again, and their sockets.
    exports: Vec<ExportSpec>,
    sockets: Vec<ListenerParts>,
}

impl IncomingDisk {
    #[cfg(test)]
    pub(super) fn has_session(&self) -> bool {
        self.quiesced_disk.session.is_some()
    }

    /// Serves the disk. The other process never will again.
    ///
    /// # Errors
    /// The image cannot be locked, or the process cannot create more threads or descriptors.
    pub(crate) fn take_over(self) -> Result<(), ServedDiskError> {
        let Self { served_disk, quiesced_disk, listener, active, exports, sockets } = self;
        let listener = listener.map(Listener::adopt).transpose()?;
        *lock(&served_disk.listener) = listener.map(Arc::new);
        if active {
            // The lock belongs to the shared open file, so this process has it already.
            served_disk.disk.activate()?;
            served_disk.disk_status.active.store(true, Ordering::Release);
        }
        served_disk.unquiesce(quiesced_disk)?;
        // None of them is writable: those are refused before a disk is quiesced.
        served_disk.restore_exports(&exports, sockets, false)
    }
}

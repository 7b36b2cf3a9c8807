//! Disks of a former worker: restored, or refused with a reason.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use model::rpc::{DiskReply, RpcError};

use super::{DiskEntry, DiskRegistry, Disks, refusal, reply, wrong_state};
use crate::error::{error_chain, failed};
use crate::keeper_client::{PreserveError, PreservedDisk, PreservedDiskRecord, PreservedFds};
use crate::keeper_link::PreservedEntry;
use crate::lifecycle::{Phase, StableState, Verb, VerbDecision};
use crate::served_disk::{ServedDisk, ServedDiskError};

/// Reason shown for a disk until its storage has answered.
const BEING_OPENED: &str = "the disk is being restored, and its storage has not answered yet";

/// First pause before a failed restore is retried. The pause doubles each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest pause.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Longest wait for the I/O of a dead worker.
#[derive(Clone, Copy, Debug)]
pub(super) enum FencePatience {
    /// Wait without a deadline, because only the guest waits.
    Endless,
    /// Wait until the deadline, because a caller waits for the reply.
    UntilDeadline,
}

impl FencePatience {
    /// Activates a disk that a former worker had active.
    pub(super) fn activate(self, served_disk: &Arc<ServedDisk>) -> Result<(), ServedDiskError> {
        match self {
            Self::Endless => served_disk.activate(),
            Self::UntilDeadline => served_disk.activate_in_time(),
        }
    }
}

/// Preserved disk that cannot be reopened in the state its guest saw. Its front-end waits in the
/// socket's backlog.
#[derive(Debug)]
pub(crate) struct RefusedDisk {
    /// Preserved state of the disk.
    pub(crate) preserved_disk: PreservedDisk,
    /// Reason for the refusal, and the remedy.
    pub(crate) reason: String,
    /// True if the preserved record has an unknown format. The disk is not retried then.
    pub(crate) novel: bool,
}

impl DiskRegistry {
    /// Restores every preserved NIC and disk, all disks in parallel. Does not wait for disks: each
    /// disk is busy until it is restored or refused.
    pub fn restore(self: &Arc<Self>) {
        self.nics.restore();
        let uplinks = Arc::clone(self);
        let work = move || uplinks.nics.restore_uplinks();
        if let Err(error) = std::thread::Builder::new().name("restore".into()).spawn(work) {
            tracing::error!("cannot restore the uplinks: {error}");
        }
        for preserved_disk_record in self.keeper_client.disks() {
            if self.disks().by_id.contains_key(&preserved_disk_record.held().spec.id) {
                // The disk was taken over from a serving worker.
                continue;
            }
            let preserved_disk = match preserved_disk_record {
                PreservedDiskRecord::Known(preserved_disk) => preserved_disk,
                PreservedDiskRecord::Novel { preserved_disk, reason } => {
                    self.show_novel(preserved_disk, reason);
                    continue;
                }
            };
            let phase = Phase::Busy(Verb::Restore, goal(&preserved_disk));
            let id = preserved_disk.spec.id.clone();
            // From here on, `stats` shows a disk whose storage hangs.
            let reason = BEING_OPENED.into();
            let refused = Some(Arc::new(RefusedDisk {
                preserved_disk: preserved_disk.clone(),
                reason,
                novel: false,
            }));
            let entry = DiskEntry { refused, ..DiskEntry::new(phase, &preserved_disk.spec) };
            self.disks().by_id.insert(id.clone(), entry);
            let (disk_registry, twin) = (Arc::clone(self), preserved_disk.clone());
            let work = move || disk_registry.restore_with_retries(twin);
            let thread = std::thread::Builder::new().name("restore".into()).spawn(work);
            if let Err(source) = thread {
                let error = ServedDiskError::Os { action: "start a thread for this disk", source };
                tracing::error!(
                    disk = id,
                    "disk refused, guest I/O is blocked: {}",
                    error_chain(&error)
                );
                let _ = self.settle(preserved_disk, Err(error));
            }
        }
        self.limit_memory_files();
    }

    /// Publishes a disk whose record has an unknown format.
    fn show_novel(&self, preserved_disk: PreservedDisk, reason: String) {
        let id = preserved_disk.spec.id.clone();
        tracing::error!(disk = id, "disk refused, guest I/O is blocked: {reason}");
        let entry = DiskEntry::new(Phase::At(StableState::Refused), &preserved_disk.spec);
        let refused = Some(Arc::new(RefusedDisk { preserved_disk, reason, novel: true }));
        let entry = DiskEntry { refused, ..entry };
        self.disks().by_id.insert(id, entry);
    }

    /// Restores a disk. Retries errors that pass by themselves, so that an outage that killed the
    /// worker does not outlast its cause.
    fn restore_with_retries(&self, preserved_disk: PreservedDisk) {
        let id = preserved_disk.spec.id.clone();
        let mut next = Some(preserved_disk);
        let mut pause = FIRST_RETRY;
        while let Some(preserved_disk) = next.take() {
            let spec = preserved_disk.spec.clone();
            let Err(error) = self.restore_disk(preserved_disk, FencePatience::Endless) else {
                return;
            };
            tracing::error!(
                disk = id,
                "disk refused, guest I/O is blocked: {}",
                error_chain(&error)
            );
            if !error.is_passing() {
                return;
            }
            // This returns when the storage answers, with any result. Only this thread blocks on
            // hung storage.
            let sources = self.kept(&id).map(|kept| kept.sources).unwrap_or_default();
            drop(crate::open_disk::open(&spec, sources));
            next = self.once_more(&id, pause);
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// Restores a refused disk once the cause of the refusal has passed.
    pub(super) fn schedule_restore(self: &Arc<Self>, id: String) {
        let (disk_registry, name) = (Arc::clone(self), id.clone());
        let work = move || {
            if let Some(preserved_disk) = disk_registry.once_more(&id, FIRST_RETRY) {
                disk_registry.restore_with_retries(preserved_disk);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("restore".into()).spawn(work) {
            tracing::error!(
                disk = name,
                "cannot start a thread to retry the restore, activate the disk: {error}"
            );
        }
    }

    /// Waits for `pause` and begins to restore a disk again. Returns `None` if the disk no longer
    /// needs a restore, or if another thread restores it.
    fn once_more(&self, id: &str, pause: Duration) -> Option<PreservedDisk> {
        let ours = |disks: &Disks| !disks.closing && !disks.handed_over;
        let waits = |disks: &mut Disks| ours(disks) && disks.by_id.contains_key(id);
        let waited = self.ended.wait_timeout_while(self.disks(), pause, waits);
        let (disks, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // After a cancelled upgrade or a failed verb, this thread must retry.
        let busy = |disks: &mut Disks| {
            let entry = disks.by_id.get(id);
            ours(disks)
                && (disks.upgrading || entry.is_some_and(|it| matches!(it.phase, Phase::Busy(..))))
        };
        let mut disks = self.ended.wait_while(disks, busy).unwrap_or_else(PoisonError::into_inner);
        if !ours(&disks) {
            return None;
        }
        let entry = disks.by_id.get_mut(id)?;
        let preserved_disk = entry.refused.as_ref()?.preserved_disk.clone();
        match entry.phase {
            Phase::At(StableState::Refused) => {
                entry.phase = Phase::Busy(Verb::Restore, goal(&preserved_disk))
            }
            _ => return None,
        }
        Some(preserved_disk)
    }

    /// Retries a refused disk that must become active, because its image may be back. A disk without
    /// a socket becomes what it was. Returns `None` if the disk is not refused.
    pub(super) fn retry_refused(&self, id: &str) -> Option<Result<DiskReply, RpcError>> {
        let mut disks = self.disks();
        let entry = disks.by_id.get(id)?;
        let (refused, phase) = (entry.refused.clone()?, entry.phase);
        if let Err(closing) = disks.open() {
            return Some(Err(closing));
        }
        if refused.novel {
            return Some(Err(wrong_state(&refused.reason)));
        }
        let has_socket = refused.preserved_disk.spec.socket.is_some();
        let exported = refused.preserved_disk.is_exported_for_writing();
        let activates = has_socket && !exported;
        let preserved_disk = match activates {
            true => PreservedDisk { active: true, paused: false, ..refused.preserved_disk.clone() },
            // The disk is restored in its former state, which does not include activation.
            false => refused.preserved_disk.clone(),
        };
        match phase.begin(Verb::Activate) {
            Err(refused) => return Some(Err(refusal(refused))),
            Ok(VerbDecision::Nothing) => return None,
            Ok(VerbDecision::Work(phase)) => {
                if let Some(entry) = disks.by_id.get_mut(id) {
                    let back = Phase::Busy(Verb::Restore, goal(&preserved_disk));
                    entry.phase = if activates { phase } else { back };
                }
            }
        }
        drop(disks);
        let brought = self.restore_disk(preserved_disk, FencePatience::UntilDeadline);
        let brought = brought
            .and_then(|served_disk| served_disk.ok_or(ServedDiskError::Gone))
            .map_err(failed);
        Some(brought.and_then(|served_disk| {
            if has_socket && exported {
                served_disk.refuse_writable().map_err(wrong_state)?;
            }
            Ok(reply(&served_disk))
        }))
    }

    /// Restores a disk, or completes its detach. Returns `None` if it is detached.
    fn restore_disk(
        &self,
        preserved_disk: PreservedDisk,
        patience: FencePatience,
    ) -> Result<Option<Arc<ServedDisk>>, ServedDiskError> {
        let brought = if preserved_disk.leaving {
            self.finish_detach(&preserved_disk, patience).map(|()| None)
        } else {
            self.serve_held(&preserved_disk, patience).map(Some)
        };
        self.settle(preserved_disk, brought)
    }

    /// Records the result of a restore.
    fn settle(
        &self,
        preserved_disk: PreservedDisk,
        brought: Result<Option<Arc<ServedDisk>>, ServedDiskError>,
    ) -> Result<Option<Arc<ServedDisk>>, ServedDiskError> {
        let id = preserved_disk.spec.id.clone();
        let mut disks = self.disks();
        if let Ok(None) = &brought {
            disks.by_id.remove(&id);
        } else if let Some(entry) = disks.by_id.get_mut(&id) {
            (entry.served_disk, entry.refused) = match &brought {
                Ok(served_disk) => (served_disk.clone(), None),
                Err(error) => (
                    None,
                    Some(Arc::new(RefusedDisk {
                        preserved_disk,
                        reason: error_chain(error),
                        novel: false,
                    })),
                ),
            };
        }
        self.end(&mut disks, &id, brought.is_ok());
        brought
    }

    fn serve_held(
        &self,
        preserved_disk: &PreservedDisk,
        patience: FencePatience,
    ) -> Result<Arc<ServedDisk>, ServedDiskError> {
        let id = &preserved_disk.spec.id;
        let mut preserved_fds = self.kept(id)?;
        let sockets = std::mem::take(&mut preserved_fds.exports);
        let served_disk =
            ServedDisk::restore(preserved_disk, preserved_fds, Arc::clone(&self.pool))?;
        self.show(id, &served_disk);
        self.join_fence(&served_disk);
        let serving = if preserved_disk.active { patience.activate(&served_disk) } else { Ok(()) };
        let in_time = matches!(patience, FencePatience::UntilDeadline);
        let serving = serving
            .and_then(|()| served_disk.restore_exports(&preserved_disk.exports, sockets, in_time));
        // Let no front-end in before the disk is in the state its guest saw.
        let serving = serving.and_then(|()| self.hold(&served_disk));
        let serving = serving.and_then(|()| served_disk.serve(served_disk.source(), None));
        match serving {
            Ok(()) => {
                tracing::info!(disk = id, "taken over");
                Ok(served_disk)
            }
            Err(error) => {
                self.leave_fence(&served_disk);
                // The keeper keeps the socket open, so front-ends wait in its backlog.
                served_disk.release_keep_files();
                Err(error)
            }
        }
    }

    pub(super) fn kept(&self, id: &str) -> Result<PreservedFds, ServedDiskError> {
        PreservedFds::read(self.kept_entry(id)?).map_err(os)
    }

    /// Returns the keeper's entry of a disk, which may have an unknown format.
    pub(super) fn kept_entry(&self, id: &str) -> Result<PreservedEntry, ServedDiskError> {
        self.keeper_client.disk(id).ok_or(ServedDiskError::Gone)?.map_err(os)
    }
}

fn os(source: std::io::Error) -> ServedDiskError {
    ServedDiskError::Os { action: "share sockets", source }
}

/// Returns the stable state that a disk has after its restore.
fn goal(preserved_disk: &PreservedDisk) -> StableState {
    match preserved_disk {
        PreservedDisk { leaving: true, .. } | PreservedDisk { active: false, .. } => {
            StableState::Attached
        }
        PreservedDisk { paused: true, .. } => StableState::Paused,
        PreservedDisk { .. } => StableState::Active,
    }
}

impl From<PreserveError> for ServedDiskError {
    fn from(error: PreserveError) -> Self {
        Self::Hold(Box::new(error))
    }
}

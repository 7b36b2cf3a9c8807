//! Disks that a worker before us had: brought back, or refused with a reason.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use model::rpc::{DiskReply, RpcError};

use super::{DiskEntry, DiskRegistry, Disks, refusal, reply, wrong_state};
use crate::error::{error_chain, failed};
use crate::keeper_client::{PreserveError, PreservedDisk, PreservedDiskRecord, PreservedFds};
use crate::lifecycle::{Phase, StableState, Verb, VerbDecision};
use crate::served_disk::{ServedDisk, ServedDiskError};

/// What is told of a disk until its storage has answered.
const BEING_OPENED: &str = "it is being taken over, and its storage has not answered yet";

/// Pause before a disk that could not be brought back is tried again, the first time; it doubles.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// How long the I/O of a dead worker is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum FencePatience {
    /// Nobody but the guest waits for it.
    Endless,
    /// A caller waits for the answer.
    UntilDeadline,
}

impl FencePatience {
    /// Activates a disk as a worker before us had it.
    pub(super) fn activate(self, export: &Arc<ServedDisk>) -> Result<(), ServedDiskError> {
        match self {
            Self::Endless => export.activate(),
            Self::UntilDeadline => export.activate_in_time(),
        }
    }
}

/// A disk that is held and cannot be had again as it was. Its guest waits in the backlog.
#[derive(Debug)]
pub(crate) struct RefusedDisk {
    /// As it was.
    pub(crate) held: PreservedDisk,
    /// Why it is not so any more, and what can be done.
    pub(crate) reason: String,
    /// What is held is not understood: it is not tried again.
    pub(crate) novel: bool,
}

impl DiskRegistry {
    /// Brings back every NIC that is held, and every disk, all of these at once. Does not wait for
    /// disks: each is busy until it is there, or refused.
    pub fn restore(self: &Arc<Self>) {
        self.nics.restore();
        let uplinks = Arc::clone(self);
        let work = move || uplinks.nics.restore_uplinks();
        if let Err(error) = std::thread::Builder::new().name("restore".into()).spawn(work) {
            tracing::error!("no uplink is brought back: {error}");
        }
        for found in self.door.disks() {
            if self.disks().by_id.contains_key(&found.held().spec.id) {
                // Taken over from a worker that served it.
                continue;
            }
            let held = match found {
                PreservedDiskRecord::Known(held) => held,
                PreservedDiskRecord::Novel { held, reason } => {
                    self.show_novel(held, reason);
                    continue;
                }
            };
            let phase = Phase::Busy(Verb::Restore, goal(&held));
            let (id, queues) = (held.spec.id.clone(), held.spec.queues);
            // Storage that hangs is seen from here on.
            let reason = BEING_OPENED.into();
            let refused = Some(Arc::new(RefusedDisk { held: held.clone(), reason, novel: false }));
            let entry = DiskEntry { phase, queues, export: None, refused, unheld: false };
            self.disks().by_id.insert(id.clone(), entry);
            let (table, twin) = (Arc::clone(self), held.clone());
            let work = move || table.bring_back_at_last(twin);
            let thread = std::thread::Builder::new().name("restore".into()).spawn(work);
            if let Err(source) = thread {
                let error = ServedDiskError::Os { action: "start a thread for this disk", source };
                tracing::error!(disk = id, "its guest waits: {}", error_chain(&error));
                let _ = self.settle(held, Err(error));
            }
        }
    }

    /// Shows a disk that is not understood.
    fn show_novel(&self, held: PreservedDisk, reason: String) {
        let (id, queues) = (held.spec.id.clone(), held.spec.queues);
        tracing::error!(disk = id, "its guest waits: {reason}");
        let refused = Some(Arc::new(RefusedDisk { held, reason, novel: true }));
        let phase = Phase::At(StableState::Refused);
        let entry = DiskEntry { phase, queues, export: None, refused, unheld: false };
        self.disks().by_id.insert(id, entry);
    }

    /// Brings a disk back. What ends by itself is waited for: an outage that took the worker with
    /// it must not last longer for that.
    fn bring_back_at_last(&self, held: PreservedDisk) {
        let id = held.spec.id.clone();
        let mut next = Some(held);
        let mut pause = FIRST_RETRY;
        while let Some(held) = next.take() {
            let spec = held.spec.clone();
            let Err(error) = self.bring_back(held, FencePatience::Endless) else { return };
            tracing::error!(disk = id, "its guest waits: {}", error_chain(&error));
            if !error.is_passing() {
                return;
            }
            // Answers when the storage does, whatever it says; only this thread is left with it.
            drop(crate::open_disk::open(&spec, None));
            next = self.once_more(&id, pause);
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// Brings a refused disk back when what keeps it away has passed.
    pub(super) fn bring_back_later(self: &Arc<Self>, id: String) {
        let (table, name) = (Arc::clone(self), id.clone());
        let work = move || {
            if let Some(held) = table.once_more(&id, FIRST_RETRY) {
                table.bring_back_at_last(held);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("restore".into()).spawn(work) {
            tracing::error!(disk = name, "activate it to try again; nobody else does: {error}");
        }
    }

    /// Waits for `pause` and begins to bring a disk back again; `None`: there is nothing to bring
    /// back any more, or somebody else is at it.
    fn once_more(&self, id: &str, pause: Duration) -> Option<PreservedDisk> {
        let ours = |disks: &Disks| !disks.closing && !disks.handed_over;
        let waits = |disks: &mut Disks| ours(disks) && disks.by_id.contains_key(id);
        let waited = self.ended.wait_timeout_while(self.disks(), pause, waits);
        let (disks, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // An upgrade that comes to nothing leaves it to us, and so does a verb that fails.
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
        let held = entry.refused.as_ref()?.held.clone();
        match entry.phase {
            Phase::At(StableState::Refused) => {
                entry.phase = Phase::Busy(Verb::Restore, goal(&held))
            }
            _ => return None,
        }
        Some(held)
    }

    /// A disk is to be active and may be one that was refused: perhaps its image is back. `None`:
    /// it is not refused.
    pub(super) fn try_again(&self, id: &str) -> Option<Result<DiskReply, RpcError>> {
        let mut disks = self.disks();
        let entry = disks.by_id.get(id)?;
        let (refused, phase) = (entry.refused.clone()?, entry.phase);
        if let Err(closing) = disks.open() {
            return Some(Err(closing));
        }
        if refused.novel {
            return Some(Err(wrong_state(&refused.reason)));
        }
        let exported = refused.held.is_exported_for_writing();
        let held = match exported {
            // It comes back as it was, and as such it is not activated.
            true => refused.held.clone(),
            false => PreservedDisk { active: true, paused: false, ..refused.held.clone() },
        };
        match phase.begin(Verb::Activate) {
            Err(refused) => return Some(Err(refusal(refused))),
            Ok(VerbDecision::Nothing) => return None,
            Ok(VerbDecision::Work(phase)) => {
                if let Some(entry) = disks.by_id.get_mut(id) {
                    let back = Phase::Busy(Verb::Restore, goal(&held));
                    entry.phase = if exported { back } else { phase };
                }
            }
        }
        drop(disks);
        let brought = self.bring_back(held, FencePatience::UntilDeadline);
        let brought =
            brought.and_then(|export| export.ok_or(ServedDiskError::Gone)).map_err(failed);
        Some(brought.and_then(|export| {
            if exported {
                export.refuse_writable().map_err(wrong_state)?;
            }
            Ok(reply(&export))
        }))
    }

    /// Brings a disk back, or ends its detach; `None`: it is detached.
    fn bring_back(
        &self,
        held: PreservedDisk,
        patience: FencePatience,
    ) -> Result<Option<Arc<ServedDisk>>, ServedDiskError> {
        let brought = if held.leaving {
            self.finish_detach(&held, patience).map(|()| None)
        } else {
            self.serve_held(&held, patience).map(Some)
        };
        self.settle(held, brought)
    }

    /// Writes down how it went.
    fn settle(
        &self,
        held: PreservedDisk,
        brought: Result<Option<Arc<ServedDisk>>, ServedDiskError>,
    ) -> Result<Option<Arc<ServedDisk>>, ServedDiskError> {
        let id = held.spec.id.clone();
        let mut disks = self.disks();
        if let Ok(None) = &brought {
            disks.by_id.remove(&id);
        } else if let Some(entry) = disks.by_id.get_mut(&id) {
            (entry.export, entry.refused) = match &brought {
                Ok(export) => (export.clone(), None),
                Err(error) => (
                    None,
                    Some(Arc::new(RefusedDisk { held, reason: error_chain(error), novel: false })),
                ),
            };
        }
        self.end(&mut disks, &id, brought.is_ok());
        brought
    }

    fn serve_held(
        &self,
        held: &PreservedDisk,
        patience: FencePatience,
    ) -> Result<Arc<ServedDisk>, ServedDiskError> {
        let id = &held.spec.id;
        let mut kept = self.kept(id)?;
        let sockets = std::mem::take(&mut kept.exports);
        let export = ServedDisk::restore(held, kept, Arc::clone(&self.pool))?;
        self.show(id, &export);
        self.join_fence(&export);
        let serving = if held.active { patience.activate(&export) } else { Ok(()) };
        let in_time = matches!(patience, FencePatience::UntilDeadline);
        let serving =
            serving.and_then(|()| export.restore_exports(&held.exports, sockets, in_time));
        // Nobody is let in before the disk is as its guest left it.
        let serving = serving.and_then(|()| self.hold(&export));
        let serving = serving.and_then(|()| export.serve(export.source(), None));
        match serving {
            Ok(()) => {
                tracing::info!(disk = id, "taken over");
                Ok(export)
            }
            Err(error) => {
                self.leave_fence(&export);
                // The socket is held on: front-ends wait in its backlog.
                export.release_keep_files();
                Err(error)
            }
        }
    }

    pub(super) fn kept(&self, id: &str) -> Result<PreservedFds, ServedDiskError> {
        let os = |source| ServedDiskError::Os { action: "share sockets", source };
        let holding = self.door.disk(id).ok_or(ServedDiskError::Gone)?.map_err(os)?;
        Ok(PreservedFds::from(holding))
    }
}

/// Where a disk is to rest when it is there again.
fn goal(held: &PreservedDisk) -> StableState {
    match held {
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

//! The registry during an upgrade: before and after another process takes over.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::rpc::RpcError;

use super::{CLOSING, DiskEntry, DiskRegistry, Disks, RefusedDisk, busy, wrong_state};
use crate::error::error_chain;
use crate::handover::{HandoverState, ReceivedDisk};
use crate::keeper_client::PreservedDisk;
use crate::lifecycle::{Phase, StableState};
use crate::served_disk::{ServedDisk, ServedDiskError};

/// Longest wait for running verbs before an upgrade. Verbs on storage that answers take less.
const VERB_DEADLINE: Duration = Duration::from_secs(2);
/// Reply to every verb during an upgrade.
const UPGRADING: &str = "an upgrade is under way; try again when it has ended";

impl Disks {
    /// Checks that verbs may run now.
    pub(super) fn open(&self) -> Result<(), RpcError> {
        if self.closing {
            return Err(wrong_state(CLOSING));
        }
        if self.upgrading { Err(busy(UPGRADING)) } else { Ok(()) }
    }
}

impl DiskRegistry {
    /// Refuses a call during an upgrade, because another process could serve when the call is done.
    pub(crate) fn refuse_while_upgrading(&self) -> Result<(), RpcError> {
        if self.disks().upgrading { Err(busy(UPGRADING)) } else { Ok(()) }
    }

    /// Begins an upgrade. From here on no verb changes anything, until [`Self::end_upgrade`]. Waits
    /// for running verbs, for example for disks that a new worker restores, at most
    /// [`VERB_DEADLINE`].
    ///
    /// # Errors
    /// A verb is still running, another upgrade is running, the keeper's records are outdated, or
    /// the process is about to end.
    pub(crate) fn begin_upgrade(&self) -> Result<Vec<Arc<ServedDisk>>, RpcError> {
        let mut disks = self.wait_verbs(Instant::now() + VERB_DEADLINE);
        disks.open()?;
        if disks.poll.busy() {
            return Err(busy("another poll.defaults call is running; try again when it has ended"));
        }
        if disks.poll.unheld() {
            return Err(wrong_state(
                "the keeper's polling defaults may differ from those in force, and the new \
                 worker would use them; repeat poll.defaults, then try again",
            ));
        }
        for (id, entry) in &disks.by_id {
            if let Phase::Busy(..) = entry.phase {
                return Err(busy(format!(
                    "a verb is running on disk {id:?}; try again when it has ended"
                )));
            }
            if entry.is_record_outdated {
                return Err(wrong_state(format!(
                    "the keeper's record of disk {id:?} is outdated, and the new worker would \
                     use it; repeat the last verb on the disk, then try again"
                )));
            }
        }
        self.nics.begin_upgrade()?;
        disks.upgrading = true;
        self.pool.full_watch().set_paused(true);
        Ok(disks.by_id.values().filter_map(|entry| entry.served_disk.clone()).collect())
    }

    /// Waits until no verb is running, at most until `until`. Returns the locked disks.
    fn wait_verbs(&self, until: Instant) -> MutexGuard<'_, Disks> {
        self.nics.wait_verbs(until);
        let is_busy = |disks: &mut Disks| {
            let mut entries = disks.by_id.values();
            disks.poll.busy() || entries.any(|entry| matches!(entry.phase, Phase::Busy(..)))
        };
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.ended.wait_timeout_while(self.disks(), left, is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends a cancelled upgrade.
    pub(crate) fn end_upgrade(&self) {
        self.disks().upgrading = false;
        self.pool.full_watch().set_paused(false);
        self.nics.end_upgrade();
        self.ended.notify_all();
    }

    /// Records that another process serves all devices.
    pub(crate) fn handed_over(&self) {
        self.disks().handed_over = true;
        self.pool.full_watch().close();
        self.ended.notify_all();
    }

    /// Returns whether another process owns all devices.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.disks().handed_over
    }

    /// Begins the shutdown: verbs are refused from here on. Waits for a running upgrade. Returns
    /// false if another process owns all devices.
    pub fn begin_end(&self) -> bool {
        let mut disks = self.disks();
        disks.closing = true;
        self.pool.full_watch().close();
        self.nics.begin_end();
        while disks.upgrading && !disks.handed_over {
            disks = self.ended.wait(disks).unwrap_or_else(PoisonError::into_inner);
        }
        !disks.handed_over
    }

    /// Continues with the disks and NICs of another process.
    pub(crate) fn take_over(self: &Arc<Self>, arrived: HandoverState) {
        // NICs first: a disk that waits for its storage must not delay frames.
        self.nics.take_over(arrived.nics);
        for ReceivedDisk { preserved_disk, incoming_disk } in arrived.disks {
            let id = preserved_disk.spec.id.clone();
            let served_disk = Arc::clone(&incoming_disk.served_disk);
            let entry = DiskEntry::new(Phase::At(rest(&preserved_disk)), &preserved_disk.spec);
            let entry = DiskEntry { served_disk: Some(Arc::clone(&served_disk)), ..entry };
            let mut disks = self.disks();
            served_disk.set_poll_defaults(disks.poll.spec());
            disks.by_id.insert(id, entry);
            drop(disks);
            match incoming_disk.take_over() {
                Ok(()) => served_disk.watch_sockets(&self.keeper_client),
                Err(error) => self.mark_refused(&served_disk, preserved_disk, &error),
            }
        }
    }

    /// Marks a disk refused that neither this process nor another one can continue. It is retried
    /// if that may help. Its front-end is disconnected and waits in the backlog.
    pub(crate) fn mark_refused(
        self: &Arc<Self>,
        served_disk: &Arc<ServedDisk>,
        preserved_disk: PreservedDisk,
        error: &ServedDiskError,
    ) {
        let (id, reason) = (preserved_disk.spec.id.clone(), error_chain(error));
        tracing::error!(disk = id, "disk refused, guest I/O is blocked: {reason}");
        // The socket stays.
        served_disk.release_keep_files();
        if let Some(entry) = self.disks().by_id.get_mut(&id) {
            entry.phase = Phase::At(StableState::Refused);
            (entry.served_disk, entry.refused) =
                (None, Some(Arc::new(RefusedDisk { preserved_disk, reason, novel: false })));
        }
        if error.is_passing() {
            self.schedule_restore(id);
        }
    }
}

fn rest(preserved_disk: &PreservedDisk) -> StableState {
    match preserved_disk {
        PreservedDisk { active: false, .. } => StableState::Attached,
        PreservedDisk { paused: true, .. } => StableState::Paused,
        PreservedDisk { .. } => StableState::Active,
    }
}

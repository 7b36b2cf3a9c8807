//! Users of each volume, over all machines.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::id::{VbdId, VdiId};
use model::vdi::automaton::{VolumeState, superstate};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::attach_times::AttachTimes;

/// Volumes that slots use, or may use. The start of a call sets the state that it leads to. The end
/// of a call clears the state that it leaves.
#[derive(Debug, Default)]
pub(super) struct VolumeUsers {
    used: Mutex<HashMap<VdiId, Volume>>,
    /// Durations of all volumes that were used.
    pub(super) attach_times: AttachTimes,
}

#[derive(Debug, Default)]
struct Volume {
    /// Lock of the storage calls for this volume. An abandoned call keeps it until it ends, so that
    /// the storage never runs two calls for a volume.
    turn: Arc<Turn<()>>,
    users: BTreeMap<VbdId, VolumeState>,
}

impl VolumeUsers {
    /// Waits until no other call for this volume runs.
    pub(super) async fn lock_storage_calls(&self, vdi: VdiId) -> OwnedMutexGuard<()> {
        let turn = Arc::clone(&self.lock().entry(vdi).or_default().turn);
        turn.lock_owned().await
    }

    pub(super) fn set(&self, vdi: VdiId, vbd: VbdId, state: VolumeState) {
        let mut all = self.lock();
        let volume = all.entry(vdi).or_default();
        match state {
            VolumeState::Detached => volume.users.remove(&vbd),
            _ => volume.users.insert(vbd, state),
        };
    }

    pub(super) fn state(&self, vdi: VdiId, vbd: VbdId) -> VolumeState {
        let all = self.lock();
        all.get(&vdi).and_then(|volume| volume.users.get(&vbd)).copied().unwrap_or_default()
    }

    /// Returns the users of a volume.
    pub(super) fn users(&self, vdi: VdiId) -> Vec<(VbdId, VolumeState)> {
        let all = self.lock();
        let users = all.get(&vdi).into_iter().flat_map(|volume| &volume.users);
        users.map(|(vbd, state)| (*vbd, *state)).collect()
    }

    /// Returns the combined state of the other slots.
    pub(super) fn others(&self, vdi: VdiId, vbd: VbdId) -> VolumeState {
        let all = self.lock();
        let users = all.get(&vdi).into_iter().flat_map(|volume| &volume.users);
        superstate(users.filter(|(of, _)| **of != vbd).map(|(_, state)| state))
    }

    pub(super) fn is_used(&self, vdi: VdiId) -> bool {
        self.lock().get(&vdi).is_some_and(|volume| !volume.users.is_empty())
    }

    /// Locks the volume if no slot uses it and no call for it runs.
    pub(super) fn alone(&self, vdi: VdiId) -> Option<OwnedMutexGuard<()>> {
        let mut all = self.lock();
        let volume = all.entry(vdi).or_default();
        let turn = Arc::clone(&volume.turn).try_lock_owned().ok();
        turn.filter(|_| volume.users.is_empty())
    }

    /// Removes the entry of a volume without users and waiters.
    pub(super) fn tidy(&self, vdi: VdiId) {
        let mut all = self.lock();
        let idle =
            |volume: &Volume| volume.users.is_empty() && Arc::strong_count(&volume.turn) == 1;
        if all.get(&vdi).is_some_and(idle) {
            all.remove(&vdi);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VdiId, Volume>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

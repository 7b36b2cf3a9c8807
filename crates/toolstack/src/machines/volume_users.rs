//! Which slots use which volume, over all machines.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::id::{VbdId, VdiId};
use model::vdi::automaton::{VolumeState, superstate};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::attach_times::AttachTimes;

/// Volumes that somebody uses, or may use: a state is set when the call begins that leads to it,
/// and taken back when one has ended that leads away from it.
#[derive(Debug, Default)]
pub(super) struct VolumeUsers {
    used: Mutex<HashMap<VdiId, Volume>>,
    /// Of all that were used.
    pub(super) attach_times: AttachTimes,
}

#[derive(Debug, Default)]
struct Volume {
    /// Whoever calls the storage for this volume holds it: a call that was left behind keeps the
    /// next one waiting, and the storage is never asked for two things at once.
    turn: Arc<Turn<()>>,
    users: BTreeMap<VbdId, VolumeState>,
}

impl VolumeUsers {
    /// Waits until nobody else calls the storage for this volume.
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

    /// What the other slots make of it.
    pub(super) fn others(&self, vdi: VdiId, vbd: VbdId) -> VolumeState {
        let all = self.lock();
        let users = all.get(&vdi).into_iter().flat_map(|volume| &volume.users);
        superstate(users.filter(|(of, _)| **of != vbd).map(|(_, state)| state))
    }

    pub(super) fn is_used(&self, vdi: VdiId) -> bool {
        self.lock().get(&vdi).is_some_and(|volume| !volume.users.is_empty())
    }

    /// The volume's turn, if nobody uses it and nobody calls the storage for it.
    pub(super) fn alone(&self, vdi: VdiId) -> Option<OwnedMutexGuard<()>> {
        let mut all = self.lock();
        let volume = all.entry(vdi).or_default();
        let turn = Arc::clone(&volume.turn).try_lock_owned().ok();
        turn.filter(|_| volume.users.is_empty())
    }

    /// Forgets volumes that nobody uses and nobody waits for.
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

//! Detach of one disk or of all disks.

use std::sync::{Arc, MutexGuard, PoisonError};

use model::rpc::{RpcError, code};

use super::{DiskRegistry, Disks, no_such_disk, refusal, wrong_state};
use crate::error::failed;
use crate::keeper_client::{PreserveError, PreservedDisk};
use crate::lifecycle::{Phase, Verb, VerbDecision};
use crate::served_disk::{ServedDisk, ServedDiskError};

impl DiskRegistry {
    /// Deactivates a disk, closes its socket and removes it from the registry.
    ///
    /// # Errors
    /// No such disk, another verb is running, or a flush failed. After a failed flush, the disk is
    /// detached all the same. Without `force`, also if a front-end is connected.
    pub fn detach(&self, id: &str, force: bool) -> Result<(), RpcError> {
        let disks = self.disks();
        disks.open()?;
        let served_disk = disks.by_id.get(id).and_then(|entry| entry.served_disk.as_ref());
        if !force && served_disk.is_some_and(|served_disk| served_disk.is_connected()) {
            return Err(wrong_state(format!(
                "the front-end of disk {id:?} is connected, and its guest would wait for the disk \
                 in vain: remove the disk from the VM first, or detach it with force=true"
            )));
        }
        self.carry_out_detach(disks, id)
    }

    fn carry_out_detach(&self, mut disks: MutexGuard<'_, Disks>, id: &str) -> Result<(), RpcError> {
        let mut given_up = false;
        let closing = disks.closing;
        let (served_disk, before) = loop {
            let Some(entry) = disks.by_id.get_mut(id) else {
                // The entry existed while the disk was being attached, and that has ended.
                return if given_up { Ok(()) } else { Err(no_such_disk(id)) };
            };
            match (entry.phase.begin(Verb::Detach), &entry.served_disk) {
                (Ok(VerbDecision::Work(phase)), served_disk) => {
                    let before = std::mem::replace(&mut entry.phase, phase);
                    break (served_disk.clone(), before);
                }
                (Ok(VerbDecision::Nothing), _) => return Ok(()),
                // The running verb waits for the I/O of a dead process. Cancel that wait.
                (Err(_), Some(served_disk)) if given_up || served_disk.fence_since().is_some() => {
                    served_disk.disconnect_front_end();
                    given_up = true;
                }
                (Err(_), None) if given_up => {}
                (Err(refused), _) => return Err(refusal(refused)),
            }
            disks = self.ended.wait(disks).unwrap_or_else(PoisonError::into_inner);
        };
        drop(disks);
        match self.begin_leaving(id, served_disk.as_ref()) {
            Ok(()) => {}
            // The whole process ends, and the keeper with it.
            Err(error) if closing => {
                tracing::error!(disk = id, "{}", crate::error::error_chain(&error));
            }
            Err(error) => {
                // A successor would serve the disk as before, so restore the former phase.
                if let Some(entry) = self.disks().by_id.get_mut(id) {
                    entry.phase = before;
                    // A late keeper may still have stored the change. The next verb preserves the
                    // disk again.
                    entry.is_record_outdated = served_disk.is_some();
                }
                self.ended.notify_all();
                return Err(failed(error));
            }
        }
        let outcome = match &served_disk {
            Some(served_disk) => {
                let detached = served_disk.detach();
                self.forget(id);
                detached
            }
            None => self.detach_refused(id),
        };
        self.end(&mut self.disks(), id, true);
        outcome.map_err(failed)
    }

    /// Preserves the fact that a disk is being detached. If the worker dies during the detach, its
    /// successor completes it, and no worker serves the disk again.
    fn begin_leaving(
        &self,
        id: &str,
        served_disk: Option<&Arc<ServedDisk>>,
    ) -> Result<(), ServedDiskError> {
        let _fixed = self.keeper_client.fix_sockets();
        let now = served_disk.map(|served_disk| {
            let preserved_disk = PreservedDisk { leaving: true, ..served_disk.to_preserved() };
            served_disk.preserved_fds().map_err(PreserveError::from).and_then(|preserved_fds| {
                self.keeper_client.preserve_disk(&preserved_disk, preserved_fds)
            })
        });
        match now {
            Some(Ok(())) => Ok(()),
            // The entry that is preserved already suffices for that, and sending it takes no new
            // descriptors.
            Some(Err(PreserveError::Os(_))) | None => {
                Ok(self.keeper_client.preserve_detaching(id)?)
            }
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Detaches everything. Waits for running verbs and refuses new ones. Does nothing if another
    /// process has taken over.
    pub fn shut_down(&self) {
        if !self.begin_end() {
            return;
        }
        let disks = self.disks();
        let ids: Vec<_> = disks.by_id.keys().cloned().collect();
        for entry in disks.by_id.values() {
            // All disks drain from now on, whichever the loop below waits for first.
            if let Some(served_disk) = &entry.served_disk {
                served_disk.disconnect_front_end();
            }
        }
        drop(disks);
        std::thread::scope(|scope| {
            let nics = || self.nics.shut_down();
            if std::thread::Builder::new().spawn_scoped(scope, nics).is_err() {
                self.nics.shut_down();
            }
            for id in &ids {
                // Use one thread per disk. A disk with hung storage waits until its deadline, and
                // must not delay the others.
                let work = || self.detach_at_last(id);
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    self.detach_at_last(id);
                }
            }
        });
    }

    fn detach_at_last(&self, id: &str) {
        let mut disks = self.disks();
        while let Some(Phase::Busy(..)) = disks.by_id.get(id).map(|entry| entry.phase) {
            disks = self.ended.wait(disks).unwrap_or_else(PoisonError::into_inner);
        }
        // Keep the lock, so that no other verb can start in between.
        if let Err(error) = self.carry_out_detach(disks, id)
            && error.code != code::NO_SUCH_DISK
        {
            tracing::error!(disk = id, "detached with an error: {}", error.message);
        }
    }
}

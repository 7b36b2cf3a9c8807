//! Verbs on existing disks.

use std::sync::{Arc, MutexGuard};

use model::image::ImageFormat;
use model::poll::PollChange;
use model::rpc::{DiskReply, Replace, ReplaceReply, RpcError, Snapshot, SnapshotDisk};
use model::share::DiskShare;
use model::spec::{Backend, Caps};
use overlay::OverlayDisk;

use super::{DiskRegistry, Disks, no_such_disk, refusal, reply, wrong_state};
use crate::error::failed;
use crate::lifecycle::{Phase, Verb, VerbDecision};
use crate::limits::of_tree;
use crate::served_disk::{Replacement, ServedDisk, ServedDiskError, swap_all};

/// Note on a weight or a floor that has no effect.
const NOT_MEASURED: &str = "the storage of the disk was not measured, so that weight and floors have \
                            no effect; `ringway calibrate FOLDER --store` measures it";

impl DiskRegistry {
    /// Locks a disk's image and serves the disk.
    ///
    /// # Errors
    /// No such disk, another verb is running, another program uses the image, or the disk has no
    /// socket.
    pub fn activate(&self, id: &str) -> Result<DiskReply, RpcError> {
        if let Some(outcome) = self.retry_refused(id) {
            return outcome;
        }
        self.verb(id, Verb::Activate, ServedDisk::activate_in_time)
    }

    /// Drains a disk, flushes it and releases its lock.
    ///
    /// # Errors
    /// No such disk, another verb is running, or a flush failed. After a failed flush, the lock is
    /// released all the same.
    pub fn deactivate(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Deactivate, ServedDisk::deactivate)
    }

    /// Drains a disk and pauses it. The lock is kept, and the front-end stays connected and waits.
    ///
    /// # Errors
    /// No such disk, another verb is running, or the disk is not active.
    pub fn pause(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Pause, ServedDisk::pause)
    }

    /// Serves a paused disk again.
    ///
    /// # Errors
    /// No such disk, another verb is running, or the disk is not active.
    pub fn resume(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Resume, |served_disk| served_disk.resume())
    }

    /// Sets a new size and notifies the guest.
    ///
    /// # Errors
    /// No such disk, another verb is running, the disk is not active, or the size is not possible.
    pub fn resize(&self, id: &str, size: Option<u64>) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Resize, |served_disk| served_disk.resize(size))
    }

    /// Replaces the backend of a disk by another one with the same content.
    ///
    /// # Errors
    /// No such disk, another verb is running, the disk has another backend than expected, the new
    /// one cannot be used, or the disk does not drain in time. The disk goes on as before then.
    pub fn replace(&self, replace: &Replace) -> Result<ReplaceReply, RpcError> {
        self.replace_all(&[replace.id.as_str()], |served_disk| {
            served_disk.prepare_replacement(replace.backend.clone(), &replace.expect)
        })
    }

    /// Puts a new image over each of several disks, all at one instant.
    ///
    /// # Errors
    /// As [`Self::replace`]; all disks go on as before then.
    pub fn snapshot(&self, snapshot: &Snapshot) -> Result<ReplaceReply, RpcError> {
        let ids: Vec<_> = snapshot.disks.iter().map(|disk| disk.id.as_str()).collect();
        self.replace_all(&ids, |served_disk| {
            let is_it = |disk: &&SnapshotDisk| disk.id == served_disk.spec().id;
            let disk = snapshot.disks.iter().find(is_it);
            let file = disk.map(|disk| disk.file.clone()).unwrap_or_default();
            let format = disk.map_or(ImageFormat::Qcow2, |disk| disk.format);
            served_disk.prepare_snapshot(file, format)
        })
    }

    /// Discards all writes of an overlay: the disk reads as its base from then on.
    ///
    /// # Errors
    /// The disk has no overlay; as [`Self::replace`] otherwise, and the disk goes on as before then.
    pub fn reset(&self, id: &str) -> Result<ReplaceReply, RpcError> {
        self.replace_all(&[id], ServedDisk::prepare_reset)
    }

    /// Runs `work` on the overlay of a disk and the backend below it. The disk is paused or inactive, and
    /// stays so meanwhile.
    ///
    /// # Errors
    /// No such disk, it is active or has no overlay, another verb is running; or those of `work`.
    pub(crate) fn commit<E: From<RpcError>>(
        &self,
        id: &str,
        work: impl FnOnce(&OverlayDisk, &Backend) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut outcome = Ok(());
        self.verb(id, Verb::Commit, |served_disk| {
            served_disk.refuse_writable()?;
            let tree = served_disk.tree();
            match (&tree.overlay, &tree.backend) {
                (Some(overlay), Backend::Overlay { base, .. }) => {
                    outcome = work(overlay, base);
                    Ok(())
                }
                _ => Err(ServedDiskError::NoOverlay { place: tree.backend.to_string() }),
            }
        })?;
        outcome
    }

    fn replace_all(
        &self,
        ids: &[&str],
        prepare: impl Fn(&Arc<ServedDisk>) -> Result<Replacement, ServedDiskError>,
    ) -> Result<ReplaceReply, RpcError> {
        let served_disks = self.begin_all(ids, Verb::Replace)?;
        let replacements: Result<Vec<_>, _> = served_disks.iter().map(prepare).collect();
        let swapped = replacements
            .and_then(|replacements| swap_all(replacements, |served_disk| self.hold(served_disk)));
        let mut disks = self.disks();
        for served_disk in &served_disks {
            let id = &served_disk.spec().id;
            if let Some(entry) = disks.by_id.get_mut(id) {
                entry.tree_files = of_tree(&served_disk.tree().backend);
            }
            self.end(&mut disks, id, swapped.is_ok());
        }
        drop(disks);
        let pause = swapped.map_err(failed)?;
        let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        let disks = served_disks.iter().map(|served_disk| reply(served_disk)).collect();
        Ok(ReplaceReply { disks, pause_us })
    }

    /// Begins a verb on several disks, or on none.
    fn begin_all(&self, ids: &[&str], verb: Verb) -> Result<Vec<Arc<ServedDisk>>, RpcError> {
        let mut disks = self.disks();
        disks.open()?;
        let mut begun = Vec::new();
        for id in ids {
            let entry = disks.by_id.get(*id).ok_or_else(|| no_such_disk(id))?;
            let decision = entry.phase.begin(verb).map_err(refusal)?;
            let served_disk = entry.served_disk.clone().ok_or_else(|| no_such_disk(id))?;
            begun.push((served_disk, decision));
        }
        for (id, (_, decision)) in ids.iter().zip(&begun) {
            if let (Some(entry), VerbDecision::Work(phase)) = (disks.by_id.get_mut(*id), decision) {
                entry.phase = *phase;
            }
        }
        Ok(begun.into_iter().map(|(served_disk, _)| served_disk).collect())
    }

    /// Sets the caps of a disk.
    ///
    /// # Errors
    /// No such disk, or another verb is running.
    pub fn caps(&self, id: &str, caps: Option<Caps>) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Caps, |served_disk| {
            served_disk.set_caps(caps);
            Ok(())
        })
    }

    /// Sets the share of a disk in its storage. The reply has a note if that has no effect.
    ///
    /// # Errors
    /// No such disk, or another verb is running.
    pub fn set_share(&self, id: &str, share: DiskShare) -> Result<DiskReply, RpcError> {
        let mut notes = Vec::new();
        let reply = self.verb(id, Verb::Weight, |served_disk| {
            served_disk.set_share(share);
            if share != DiskShare::default() && served_disk.share_report().is_none() {
                notes.push(NOT_MEASURED.to_owned());
            }
            Ok(())
        })?;
        Ok(DiskReply { notes, ..reply })
    }

    /// Changes the polling of a disk.
    ///
    /// # Errors
    /// No such disk, or another verb is running.
    pub fn poll(&self, id: &str, change: PollChange) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Poll, |served_disk| {
            served_disk.set_poll(change);
            Ok(())
        })
    }

    pub(super) fn verb(
        &self,
        id: &str,
        verb: Verb,
        work: impl FnOnce(&Arc<ServedDisk>) -> Result<(), ServedDiskError>,
    ) -> Result<DiskReply, RpcError> {
        let disks = self.disks();
        disks.open()?;
        self.run_verb(disks, id, verb, work)
    }

    /// Runs a verb. It starts under the lock under which its caller has checked the disk.
    pub(super) fn run_verb(
        &self,
        mut disks: MutexGuard<'_, Disks>,
        id: &str,
        verb: Verb,
        work: impl FnOnce(&Arc<ServedDisk>) -> Result<(), ServedDiskError>,
    ) -> Result<DiskReply, RpcError> {
        let entry = disks.by_id.get_mut(id).ok_or_else(|| no_such_disk(id))?;
        if entry.served_disk.as_ref().is_some_and(|disk| disk.spec().socket.is_none()) {
            verb.check_without_socket().map_err(refusal)?;
        }
        let verb_decision = entry.phase.begin(verb).map_err(refusal)?;
        let served_disk = entry.served_disk.clone().ok_or_else(|| no_such_disk(id))?;
        // The verb is repeated because its effect could not be preserved. Only that is left to do.
        let again = verb_decision == VerbDecision::Nothing && entry.is_record_outdated;
        let phase = match (verb_decision, entry.phase) {
            (VerbDecision::Work(phase), _) => phase,
            (VerbDecision::Nothing, Phase::At(stable_state)) if again => {
                Phase::Busy(verb, stable_state)
            }
            (VerbDecision::Nothing, _) => {
                drop(disks);
                // The disk has the requested state already, but abandoned I/O may still be written
                // to its storage.
                let free = served_disk.refuse_stuck(verb.method());
                return free.map(|()| reply(&served_disk)).map_err(failed);
            }
        };
        entry.phase = phase;
        drop(disks);
        let worked =
            if again { served_disk.refuse_stuck(verb.method()) } else { work(&served_disk) };
        // A verb that releases something has released it even if it failed.
        let held = self.hold(&served_disk);
        let mut disks = self.disks();
        if let Some(entry) = disks.by_id.get_mut(id) {
            entry.is_record_outdated = held.is_err();
        }
        // The phase follows what was done to the disk, whether or not the keeper knows.
        self.end(&mut disks, id, worked.is_ok());
        drop(disks);
        worked.and(held).map(|()| reply(&served_disk)).map_err(|error| match error {
            ServedDiskError::Nbd(refused) => wrong_state(refused),
            error => failed(error),
        })
    }
}

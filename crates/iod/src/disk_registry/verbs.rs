//! What is done to a disk that is there.

use std::sync::{Arc, MutexGuard};

use model::poll::PollChange;
use model::rpc::{DiskReply, RpcError};
use model::spec::Caps;

use super::{DiskRegistry, Disks, no_such_disk, refusal, reply, wrong_state};
use crate::error::failed;
use crate::lifecycle::{Phase, Verb, VerbDecision};
use crate::served_disk::{ServedDisk, ServedDiskError};

impl DiskRegistry {
    /// Takes the lock of a disk and serves it.
    ///
    /// # Errors
    /// No such disk, a verb at work, or an image that somebody else uses.
    pub fn activate(&self, id: &str) -> Result<DiskReply, RpcError> {
        if let Some(outcome) = self.try_again(id) {
            return outcome;
        }
        self.verb(id, Verb::Activate, ServedDisk::activate_in_time)
    }

    /// Drains a disk, flushes it and releases its lock.
    ///
    /// # Errors
    /// No such disk, a verb at work, or a flush that failed; the lock is released all the same.
    pub fn deactivate(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Deactivate, ServedDisk::deactivate)
    }

    /// Drains a disk and holds it: its lock is kept, its front-end stays and waits.
    ///
    /// # Errors
    /// No such disk, a verb at work, a disk that is not active.
    pub fn pause(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Pause, ServedDisk::pause)
    }

    /// Serves a paused disk again.
    ///
    /// # Errors
    /// No such disk, a verb at work, a disk that is not active.
    pub fn resume(&self, id: &str) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Resume, |served_disk| served_disk.resume())
    }

    /// Takes a new size and tells the guest.
    ///
    /// # Errors
    /// No such disk, a verb at work, a disk that is not active, or a size that the disk cannot have.
    pub fn resize(&self, id: &str, size: Option<u64>) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Resize, |served_disk| served_disk.resize(size))
    }

    /// Caps what the guest may do with a disk from now on.
    ///
    /// # Errors
    /// No such disk, or a verb at work.
    pub fn caps(&self, id: &str, caps: Option<Caps>) -> Result<DiskReply, RpcError> {
        self.verb(id, Verb::Caps, |served_disk| {
            served_disk.set_caps(caps);
            Ok(())
        })
    }

    /// Polls a disk otherwise from now on.
    ///
    /// # Errors
    /// No such disk, or a verb at work.
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

    /// Begins a verb under the lock that its caller has looked under, and ends it.
    pub(super) fn run_verb(
        &self,
        mut disks: MutexGuard<'_, Disks>,
        id: &str,
        verb: Verb,
        work: impl FnOnce(&Arc<ServedDisk>) -> Result<(), ServedDiskError>,
    ) -> Result<DiskReply, RpcError> {
        let entry = disks.by_id.get_mut(id).ok_or_else(|| no_such_disk(id))?;
        let verb_decision = entry.phase.begin(verb).map_err(refusal)?;
        let served_disk = entry.served_disk.clone().ok_or_else(|| no_such_disk(id))?;
        // Asked again because it could not be held: that is left to be done.
        let again = verb_decision == VerbDecision::Nothing && entry.unheld;
        let phase = match (verb_decision, entry.phase) {
            (VerbDecision::Work(phase), _) => phase,
            (VerbDecision::Nothing, Phase::At(stable_state)) if again => {
                Phase::Busy(verb, stable_state)
            }
            (VerbDecision::Nothing, _) => {
                drop(disks);
                // It is where it was to be, but what was left with the storage may still be
                // written.
                let free = served_disk.refuse_stuck(verb.method());
                return free.map(|()| reply(&served_disk)).map_err(failed);
            }
        };
        entry.phase = phase;
        drop(disks);
        let worked =
            if again { served_disk.refuse_stuck(verb.method()) } else { work(&served_disk) };
        // What a verb took away it has taken away, even if it failed.
        let held = self.hold(&served_disk);
        let mut disks = self.disks();
        if let Some(entry) = disks.by_id.get_mut(id) {
            entry.unheld = held.is_err();
        }
        // Where the disk rests is what has been done to it, whoever knows of that.
        self.end(&mut disks, id, worked.is_ok());
        drop(disks);
        worked.and(held).map(|()| reply(&served_disk)).map_err(|error| match error {
            ServedDiskError::Nbd(refused) => wrong_state(refused),
            error => failed(error),
        })
    }
}

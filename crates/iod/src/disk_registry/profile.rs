//! Use of a storage's profile by the disks on it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use model::calibration::ProfileReply;
use model::rpc::{RpcError, code};

use super::{DiskRegistry, Disks};
use crate::lifecycle::{Phase, Verb};
use crate::open_disk;
use crate::served_disk::ServedDisk;

/// Longest wait for the verbs that run on disks.
const BUSY: Duration = Duration::from_secs(5);

impl DiskRegistry {
    /// Makes the storage of a folder follow the profile in it, and all disks on that storage.
    ///
    /// # Errors
    /// The folder cannot be accessed, or the process is shutting down.
    pub fn use_profile(&self, folder: &Path) -> Result<ProfileReply, RpcError> {
        let device = std::fs::metadata(folder).map_err(|error| {
            let message = format!("cannot open {}: {error}", folder.display());
            RpcError { code: code::FAILED, message }
        })?;
        let device = calibrate::whole_device(device.dev());
        let (profile, storage) = match open_disk::use_profile(folder, device) {
            Ok(Some(used)) => used,
            Ok(None) => return Ok(ProfileReply::default()),
            Err(note) => return Ok(ProfileReply { notes: vec![note], ..ProfileReply::default() }),
        };
        let mut reply = ProfileReply { profile: Some(profile), ..ProfileReply::default() };
        let deadline = Instant::now() + BUSY;
        let ids: Vec<_> = self.disks().by_id.keys().cloned().collect();
        for id in ids {
            match self.join_storages(&id, device, deadline) {
                Ok(true) => reply.disks.push(id),
                Ok(false) => {}
                Err(error) => reply.notes.push(format!(
                    "disk {id} does not use the profile yet: {}; pause and resume it, or attach it \
                     again",
                    error.message
                )),
            }
        }
        // It had to last until disks use it.
        drop(storage);
        Ok(reply)
    }

    /// Puts a disk on the storages of its files. Returns whether it is on that of `device`.
    fn join_storages(&self, id: &str, device: u64, deadline: Instant) -> Result<bool, RpcError> {
        // A disk that is being attached may have looked for the profile already.
        let is_busy = |disks: &mut Disks| {
            disks.by_id.get(id).is_some_and(|entry| matches!(entry.phase, Phase::Busy(..)))
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.ended.wait_timeout_while(self.disks(), left, is_busy);
        let (disks, _) = waited.unwrap_or_else(PoisonError::into_inner);
        disks.open()?;
        let present = disks.by_id.get(id).and_then(|entry| entry.served_disk.clone());
        let Some(served_disk) = present.filter(|present| present.is_on(device)) else {
            return Ok(false);
        };
        if !served_disk.is_scheduled() {
            self.run_verb(disks, id, Verb::Profile, ServedDisk::join_storages)?;
        }
        Ok(true)
    }
}

//! Merges of images below the tops of volumes, also while guests use them.
//!
//! The datapath copies the images to a new one. Then each volume changes to it: first the disks that
//! serve it, then its record. No lock is held during the copy, so snapshots, clones and destructions
//! go on: a volume that comes meanwhile has the former images, and changes as the others do.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use model::id::{SrId, Uuid, VdiId};
use model::image::ImageConvert;
use model::rpc::Replace;
use model::sr::SrFeature;
use tokio::time::{Instant, timeout_at};

use super::snapshots::Place;
use super::step_runner::missing;
use super::{CancelToken, Machines, StepError, VolumeLock};
use crate::ringway_io::DatapathError;
use crate::sr::{PresentMerge, SrError};

/// Most times that volumes with the former images are looked for. Each clone that is made meanwhile
/// may need one more.
const MAX_ROUNDS: usize = 16;

/// Most attempts of a copy whose process ends.
const MAX_ATTEMPTS: usize = 3;
/// Longest wait for a volume that changes to a merged image.
const CHANGE_DEADLINE: Duration = Duration::from_secs(5);

/// End of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeOutcome {
    /// There was nothing to merge.
    Nothing,
    /// Images have become one.
    Merged,
    /// The caller cancelled the copy.
    Cancelled,
}

/// State of a merge, for its observer.
#[derive(Clone, Copy, Debug)]
pub struct MergeState<'a> {
    /// Number of images that become one.
    pub count: u32,
    /// Part of the copy that is done, 0 to 1.
    pub part: f64,
    /// Volumes with these images, as far as they are known by now.
    pub users: &'a [VdiId],
}

impl Machines {
    /// Merges images of an SR of type `kind` once. The new image gets the id `into`. The images of the
    /// volumes `kept` stay as they are. A merge that an earlier caller began goes on. `cancel` has an
    /// effect until the copy is complete.
    ///
    /// May be dropped only if the process ends.
    ///
    /// # Errors
    /// The merge is given up, or the next call goes on with it. No content changes.
    pub async fn merge_images(
        &self,
        (sr, kind): (SrId, &str),
        (into, kept): (Uuid, BTreeSet<VdiId>),
        report: &(dyn Fn(MergeState<'_>) + Send + Sync),
        cancel: &CancelToken,
    ) -> Result<MergeOutcome, StepError> {
        let place = self.place((sr, kind), SrFeature::VdiSnapshot).await?;
        let Some(merge) = place.driver.begin_merge(sr, into, kept).await? else {
            return Ok(MergeOutcome::Nothing);
        };
        let users = place.driver.merge_users(sr).await?;
        let state = |part| MergeState { count: merge.count, part, users: &users };
        report(state(0.0));
        if !merge.is_complete && !copy(&place, &merge, &|part| report(state(part)), cancel).await? {
            return Ok(MergeOutcome::Cancelled);
        }
        report(state(1.0));
        for _ in 0..MAX_ROUNDS {
            for vdi in place.driver.merge_users(sr).await? {
                let _turn = self.lock_all([vdi]).await;
                self.replace_images(&place, vdi, &merge).await?;
                place.driver.switch_merge(sr, vdi).await?;
            }
            refuse_served(&place, &merge).await?;
            if place.driver.end_merge(sr).await? {
                return Ok(MergeOutcome::Merged);
            }
        }
        Err(in_use("volumes with the former images come again and again"))
    }

    /// As [`Machines::lock_volume`], but waits a moment if no machine has the volume: it may be changing
    /// to a merged image.
    pub async fn lock_unused_volume(&self, vdi: VdiId) -> Option<VolumeLock<'_>> {
        let until = Instant::now() + CHANGE_DEADLINE;
        if self.volumes.is_used(vdi) {
            return None;
        }
        let turn = timeout_at(until, self.volumes.lock_storage_calls(vdi)).await.ok();
        // A machine may have attached it meanwhile.
        let turn = turn.filter(|_| !self.volumes.is_used(vdi));
        let lock = VolumeLock { machines: self, vdi, turn };
        lock.turn.is_some().then_some(lock)
    }

    /// Has the disks that serve a volume replace the merged images by the new one.
    async fn replace_images(
        &self,
        place: &Place<'_>,
        vdi: VdiId,
        merge: &PresentMerge,
    ) -> Result<(), StepError> {
        let users = self.volumes.users(vdi);
        if users.is_empty() {
            return Ok(());
        }
        let disks = place.datapath.stats().await?.map(|stats| stats.disks).unwrap_or_default();
        let images: Vec<&Path> = merge.images.iter().map(AsRef::as_ref).collect();
        for (vbd, _) in users {
            let id = vbd.to_string();
            let Some(disk) = disks.iter().find(|disk| disk.id == id) else {
                let why = format!("no disk serves volume {vdi} now, and a machine has it");
                return Err(in_use(&why));
            };
            let present = &disk.backend;
            if !images.iter().any(|image| present.has_file(image)) {
                continue;
            }
            let backend = present.merged(&images, (&merge.into, merge.format));
            let backend = backend.ok_or_else(|| missing("other images are served for", vdi))?;
            let expect = present.clone();
            place.datapath.replace(&Replace { id, backend, expect }).await?;
        }
        Ok(())
    }
}

/// Copies the images to the new one. Returns false if the merge was given up because the caller
/// cancelled it.
async fn copy(
    place: &Place<'_>,
    merge: &PresentMerge,
    progress: &(dyn Fn(f64) + Send + Sync),
    cancel: &CancelToken,
) -> Result<bool, StepError> {
    let whole = ImageConvert::whole(merge.source.clone(), merge.into.clone(), merge.format);
    let convert = ImageConvert { layers: Some(merge.count), background: true, ..whole };
    let copy = async {
        let mut attempts = 1..MAX_ATTEMPTS;
        loop {
            match place.datapath.convert(&convert, progress).await {
                // The worker died, or was upgraded.
                Err(DatapathError::Broken { .. }) if attempts.next().is_some() => {}
                copied => return copied,
            }
        }
    };
    let copied = tokio::select! {
        // Dropping the copy ends it.
        () = cancel.cancelled() => None,
        copied = copy => Some(copied),
    };
    if let Some(Ok(())) = copied {
        return Ok(true);
    }
    // The answer may be lost, or late, and the image there. Then the merge is not given up.
    if !place.driver.end_merge(place.sr).await? {
        return Ok(true);
    }
    match copied {
        Some(Err(error)) => Err(error.into()),
        _ => Ok(false),
    }
}

/// Refuses to end a merge while a disk has one of the former images.
async fn refuse_served(place: &Place<'_>, merge: &PresentMerge) -> Result<(), StepError> {
    let disks = place.datapath.stats().await?.map(|stats| stats.disks).unwrap_or_default();
    let has_one = |image: &_| disks.iter().find(|disk| disk.backend.has_file(image));
    match merge.images.iter().find_map(|image| has_one(image)) {
        Some(disk) => Err(in_use(&format!("disk {} has the former images", disk.id))),
        None => Ok(()),
    }
}

fn in_use(why: &str) -> StepError {
    let why = format!("{why}: the next merge goes on with this one");
    SrError::Config { key: "coalesce".into(), why }.into()
}

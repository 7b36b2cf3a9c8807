//! Snapshots and clones of volumes, also while guests write them.
//!
//! A snapshot puts a new image over the images of a volume; the volume goes on in the new image, and
//! the snapshot has the others. The datapath of a guest does it while the guest runs, for several
//! disks at one instant. The images of a volume that no datapath writes are not in use, so an empty
//! image is created over them.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::id::{SrId, Uuid, VbdId, VdiId};
use model::image::{
    DEFAULT_IMAGE_DEADLINE_S, ImageConvert, ImageFormat, ImageResize, ImageSnapshotCall,
};
use model::report::DiskStats;
use model::rpc::SnapshotDisk;
use model::spec::FileRef;
use model::sr::SrFeature;
use model::vdi::automaton::{Access, VolumeState};

use super::step_runner::missing;
use super::{Machines, StepError, VolumeLock};
use crate::ringway_io::Datapath;
use crate::sr::{Layer, SnapshotOf, SrDriver, SrError, Volume};

/// Snapshot to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPlan {
    /// Volume that goes on.
    pub of: VdiId,
    /// New volume with its present content.
    pub snapshot: VdiId,
    /// Name of the new image.
    pub layer: Uuid,
}

/// SR with its driver.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) sr: SrId,
    pub(super) driver: &'a dyn SrDriver,
    pub(super) datapath: Arc<dyn Datapath>,
}

/// Volume that gets a new image.
struct Growing {
    vdi: VdiId,
    layer: Layer,
    /// Disk that a datapath serves for writing.
    disk: Option<String>,
}

impl Machines {
    /// Takes snapshots of volumes of one SR of type `kind`, all at one instant. Waits for other
    /// calls for these volumes. Returns the snapshots, and the volumes that go on.
    ///
    /// May be dropped between calls only if the process ends.
    ///
    /// # Errors
    /// No snapshot exists then. Volumes may have got an empty image more.
    pub async fn snapshot_volumes(
        &self,
        (sr, kind): (SrId, &str),
        plans: &[SnapshotPlan],
        unix_seconds: i64,
    ) -> Result<Vec<(Volume, Volume)>, StepError> {
        let place = self.place((sr, kind), SrFeature::VdiSnapshot).await?;
        let _turns = self.lock_all(plans.iter().map(|plan| plan.of)).await;
        let layers: Vec<_> = plans.iter().map(|plan| (plan.of, plan.layer)).collect();
        let grown = self.push_layers(&place, &layers).await?;
        let mut made = Vec::new();
        for (plan, present) in plans.iter().zip(grown) {
            let snapshot_of = SnapshotOf { vdi: plan.of, unix_seconds };
            match place.driver.add_snapshot(sr, plan.snapshot, snapshot_of).await {
                Ok(snapshot) => made.push((snapshot, present)),
                Err(error) => {
                    for (snapshot, _) in made {
                        // The next scan finds a snapshot that cannot be removed.
                        let _left = place.driver.destroy_volume(sr, snapshot.vdi).await;
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(made)
    }

    /// Creates a volume with the content of another one of the same SR, and shares its images. A volume
    /// that no guest writes shares its blocks instead, where the file system can do that.
    /// `layers` are the names of up to two new images: one for each of the two volumes.
    ///
    /// # Errors
    /// The new volume does not exist then. The other one may have got an empty image more.
    pub async fn clone_volume(
        &self,
        (sr, kind): (SrId, &str),
        (of, clone): (VdiId, VdiId),
        layers: [Uuid; 2],
    ) -> Result<Volume, StepError> {
        let place = self.place((sr, kind), SrFeature::VdiClone).await?;
        let _turns = self.lock_all([of]).await;
        let [own, others] = layers;
        let is_written = self.written_disk(of).is_some();
        if !is_written && let Some(volume) = place.driver.clone_file(sr, clone, of).await? {
            return Ok(volume);
        }
        if is_written || !place.driver.can_share(sr, of).await? {
            self.push_layers(&place, &[(of, others)]).await?;
        }
        place.driver.add_clone(sr, clone, of).await?;
        match self.push_layers(&place, &[(clone, own)]).await {
            Ok(mut grown) => grown.pop().ok_or_else(|| missing("no clone of volume", of)),
            Err(error) => {
                // The next attach of the SR removes an incomplete volume.
                let _left = place.driver.destroy_volume(sr, clone).await;
                Err(error)
            }
        }
    }

    /// Copies a volume, with all its bytes, to a new volume of this size in bytes, in the same or
    /// another SR. The caller makes sure that no guest writes it meanwhile. Dropping the future ends
    /// the copy.
    ///
    /// # Errors
    /// The new volume does not exist then.
    pub async fn copy_volume(
        &self,
        (from, vdi): ((SrId, &str), VdiId),
        (to, copy): ((SrId, &str), VdiId),
        bytes: u64,
        progress: &(dyn Fn(f64) + Send + Sync),
    ) -> Result<Volume, StepError> {
        let from = self.place(from, SrFeature::VdiAttach).await?;
        let to = self.place(to, SrFeature::VdiCreate).await?;
        let mut source = from.driver.images(from.sr, vdi).await?;
        // Partition tables count in blocks.
        let block_size = from.driver.block_size(from.sr, vdi).await?;
        let path = to.driver.prepare_copy(to.sr, copy, bytes, block_size).await?;
        let copied = loop {
            let convert = ImageConvert::whole(source.clone(), path.clone(), ImageFormat::Raw);
            let copied = from.datapath.convert(&convert, progress).await;
            match from.driver.images(from.sr, vdi).await {
                // A merge of images has removed some before they were opened.
                Ok(present) if copied.is_err() && present != source => source = present,
                _ => break copied,
            }
        };
        if let Err(error) = copied {
            // The image appears when it is complete, so there is nothing to remove in most cases.
            let _left = to.driver.destroy_volume(to.sr, copy).await;
            return Err(error.into());
        }
        Ok(to.driver.settle_layer(to.sr, copy, None).await?)
    }

    /// Grows a locked volume to this size in bytes, also while a guest writes it. The guest's device
    /// does not know the size yet.
    ///
    /// # Errors
    /// The volume may be larger then, which a repeated call notices.
    pub async fn resize_volume(
        &self,
        (sr, kind): (SrId, &str),
        lock: &VolumeLock<'_>,
        bytes: u64,
    ) -> Result<Volume, StepError> {
        let place = self.place((sr, kind), SrFeature::VdiResize).await?;
        let vdi = lock.vdi;
        if let Some(image) = place.driver.prepare_resize(sr, vdi, bytes).await? {
            let served = self.served_disks(&place, [vdi].into_iter()).await?;
            match served.get(&vdi) {
                Some(disk) => drop(place.datapath.resize(&disk.id, Some(bytes)).await?),
                None => {
                    let deadline_s = DEFAULT_IMAGE_DEADLINE_S;
                    let resize = ImageResize { image, size: bytes, deadline_s };
                    place.datapath.resize_image(&resize).await?;
                }
            }
        }
        Ok(place.driver.resize_volume(sr, vdi, bytes).await?)
    }

    /// Returns an SR of a type that has this feature.
    pub(super) async fn place(
        &self,
        (sr, kind): (SrId, &str),
        feature: SrFeature,
    ) -> Result<Place<'_>, StepError> {
        let driver = self.drivers.sr(kind);
        let driver = driver.ok_or_else(|| missing("no driver for storage of type", kind))?;
        if !driver.features().contains(&feature) {
            return Err(SrError::Unsupported.into());
        }
        Ok(Place { sr, driver: &**driver, datapath: self.drivers.io.of(sr).await? })
    }

    /// Locks volumes against other storage calls. In order, so that two callers never wait for each
    /// other.
    pub(super) async fn lock_all(
        &self,
        vdis: impl IntoIterator<Item = VdiId>,
    ) -> Vec<VolumeLock<'_>> {
        let mut vdis: Vec<_> = vdis.into_iter().collect();
        vdis.sort();
        vdis.dedup();
        let mut turns = Vec::new();
        for vdi in vdis {
            turns.push(self.wait_for_volume(vdi).await);
        }
        turns
    }

    /// Returns the disk through which a guest writes a volume, or may write it.
    fn written_disk(&self, vdi: VdiId) -> Option<VbdId> {
        self.volumes.users(vdi).into_iter().find_map(|(vbd, state)| match state {
            VolumeState::Attached(Access::Rw) | VolumeState::Activated(Access::Rw) => Some(vbd),
            _ => None,
        })
    }

    /// Puts a new image over each of these volumes, over all that guests write at one instant.
    /// Returns the volumes.
    pub(super) async fn push_layers(
        &self,
        place: &Place<'_>,
        layers: &[(VdiId, Uuid)],
    ) -> Result<Vec<Volume>, StepError> {
        let served = self.served_disks(place, layers.iter().map(|(vdi, _)| *vdi)).await?;
        let mut growing = Vec::new();
        let mut outcome = Ok(());
        for (vdi, layer) in layers {
            let disk = served.get(vdi);
            let prepared = place.driver.prepare_layer(place.sr, *vdi, *layer, top(disk)).await;
            match prepared {
                Ok(layer) => {
                    growing.push(Growing { vdi: *vdi, layer, disk: disk.map(|one| one.id.clone()) })
                }
                Err(error) => {
                    outcome = Err(StepError::from(error));
                    break;
                }
            }
        }
        if outcome.is_ok() {
            outcome = create(&*place.datapath, &growing).await;
        }
        let settled = self.settle(place, &growing).await;
        // Without its image a layer cannot be settled, so the cause goes first.
        outcome?;
        settled
    }

    /// Records which new images are in use. After an error only the datapath knows.
    async fn settle(
        &self,
        place: &Place<'_>,
        growing: &[Growing],
    ) -> Result<Vec<Volume>, StepError> {
        let served = self.served_disks(place, growing.iter().map(|one| one.vdi)).await?;
        let mut settled = Vec::new();
        for Growing { vdi, .. } in growing {
            let served = top(served.get(vdi));
            settled.push(place.driver.settle_layer(place.sr, *vdi, served).await);
        }
        // One that fails does not keep the others from being settled.
        Ok(settled.into_iter().collect::<Result<_, _>>()?)
    }

    /// Returns the served disks of those volumes that a guest writes. Fails if one is not served now:
    /// a `ringway-io` that has begun again opens its present images soon.
    async fn served_disks(
        &self,
        place: &Place<'_>,
        vdis: impl Iterator<Item = VdiId>,
    ) -> Result<BTreeMap<VdiId, DiskStats>, StepError> {
        let written: BTreeMap<String, VdiId> =
            vdis.filter_map(|vdi| Some((self.written_disk(vdi)?.to_string(), vdi))).collect();
        if written.is_empty() {
            return Ok(BTreeMap::new());
        }
        let stats = place.datapath.stats().await?;
        let disks = stats.map(|stats| stats.disks).unwrap_or_default();
        let known = disks.into_iter().filter_map(|disk| Some((*written.get(&disk.id)?, disk)));
        let served: BTreeMap<VdiId, DiskStats> = known.collect();
        match written.into_values().find(|vdi| !served.contains_key(vdi)) {
            Some(vdi) => {
                let why =
                    format!("no disk serves volume {vdi} now, and a machine has it: try again");
                Err(SrError::Config { key: "snapshot".into(), why }.into())
            }
            None => Ok(served),
        }
    }
}

/// Creates the new images: those of served disks at one instant, the others one by one.
async fn create(datapath: &dyn Datapath, growing: &[Growing]) -> Result<(), StepError> {
    for Growing { layer, .. } in growing.iter().filter(|one| one.disk.is_none()) {
        create_layer(datapath, layer).await?;
    }
    let served = growing.iter().filter_map(|one| {
        let id = one.disk.clone()?;
        Some(SnapshotDisk { id, file: one.layer.file.clone(), format: one.layer.format() })
    });
    let disks: Vec<_> = served.collect();
    if disks.is_empty() { Ok(()) } else { Ok(datapath.snapshot(&disks).await?) }
}

/// Creates an empty image over those of a volume that no datapath writes.
pub(super) async fn create_layer(datapath: &dyn Datapath, layer: &Layer) -> Result<(), StepError> {
    let unknown = || missing("no image file for", layer.file.display());
    let (base, base_format) = layer.base.image().ok_or_else(unknown)?;
    let base = base.path().ok_or_else(unknown)?.to_owned();
    let (path, format) = (layer.file.clone(), layer.format());
    let call = ImageSnapshotCall { base, base_format, path, format };
    Ok(datapath.create_layer(&call).await?)
}

/// Returns the name of the file that a disk writes.
fn top(disk: Option<&DiskStats>) -> Option<String> {
    let file = disk?.backend.files().next().and_then(FileRef::path)?;
    Some(file.file_name()?.to_str()?.to_owned())
}

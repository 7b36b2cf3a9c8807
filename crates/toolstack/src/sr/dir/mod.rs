//! SRs of type `dir`: raw images in a directory, on a local or network file system.
//!
//! # Layout
//! `<uuid>.raw` is a sparse volume, or an image that volumes share. `<uuid>.qcow2` is an image over
//! others, and `<uuid>.vdi` the record of a volume with several images. `.ringway-sr` names the SR of the directory, so that a mount
//! point without its file system does not look like an empty SR. `.ringway-storage-blocks` lists the
//! volumes that guests know with the block size of the storage. `.ringway-merge` names the merge of images
//! that is under way. `.ringway-profile` is the profile of
//! the storage (`model::calibration`). `.new-*` are incomplete files of a
//! crash, which the next attach removes. All other files are ignored.
//!
//! A new file is written under another name, synced, renamed, and the directory is synced. So it is
//! complete or does not exist.
//!
//! This module accesses no path. The SR's [worker](super::worker) does.

mod directory;
mod files;
mod image_tree;
mod marker;
mod merge;
mod merge_journal;
mod record;
mod storage_blocks;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::id::{SrId, Uuid, VdiId};
use model::spec::{Backend, BlockSize};
use model::vdi::automaton::Access;

use record::ImageName;

pub(crate) use directory::SrDirectory;
pub use image_tree::{ImageTree, TreeImage, TreeMerge, TreeVolume, image_tree};
pub use record::SnapshotOf;

use super::worker::{Host, SrRequest, SrResponse, WireMerge, Worker};
use super::{Config, Layer, PresentMerge, Space, SrDriver, SrError, Volume};
use crate::boxed_future::BoxFuture;

/// Configuration key of the directory.
pub const LOCATION: &str = "location";

/// Driver of SRs of type `dir`.
#[derive(Debug)]
pub struct DirDriver {
    host: Host,
    default: PathBuf,
    /// Attached SRs.
    attached: Mutex<BTreeMap<SrId, Attached>>,
    /// Workers of places that are not attached. Each place has its own, so that dead storage blocks
    /// no other.
    others: Mutex<BTreeMap<PathBuf, Worker>>,
}

/// Most places that are not attached but have a worker. Beyond that, calls with new places are
/// refused: they may all be on dead storage.
const MAX_OTHERS: usize = 32;

#[derive(Clone, Debug)]
struct Attached {
    place: PathBuf,
    worker: Worker,
}

impl DirDriver {
    /// Creates a driver. `default` is the directory of SRs whose configuration has none.
    pub fn new(host: Host, default: PathBuf) -> Self {
        Self { host, default, attached: Mutex::default(), others: Mutex::default() }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Worker>> {
        // Each change of the map is complete before it can panic.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the worker of a place that is not attached.
    fn other(&self, place: &Path) -> Result<Worker, SrError> {
        let mut others = self.others();
        if let Some(worker) = others.get(place) {
            return Ok(worker.clone());
        }
        // Places whose calls have ended need no worker any more.
        others.retain(|_, worker| worker.is_busy());
        if others.len() >= MAX_OTHERS {
            let why = format!("the storage at {MAX_OTHERS} unattached places does not answer");
            return Err(SrError::Worker(why));
        }
        let worker = Worker::new(&self.host);
        others.insert(place.into(), worker.clone());
        Ok(worker)
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<SrId, Attached>> {
        // Each change of the map is complete before it can panic.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, sr: SrId) -> Result<Attached, SrError> {
        self.attached().get(&sr).cloned().ok_or(SrError::NotAttached)
    }

    /// Returns the configured directory.
    fn place(&self, config: &Config) -> Result<PathBuf, SrError> {
        let Some(text) = config.get(LOCATION) else { return Ok(self.default.clone()) };
        let place = Path::new(text);
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if place.is_absolute() && place.components().all(plain) && !text.contains('\0') {
            return Ok(place.into());
        }
        let why = format!("{text:?} is not an absolute path without `..`");
        Err(SrError::Config { key: LOCATION.into(), why })
    }

    async fn work(&self, sr: SrId, sr_request: SrRequest) -> Result<SrResponse, SrError> {
        let Attached { place, worker } = self.of(sr)?;
        worker.call(sr, &place, sr_request).await
    }
}

impl SrDriver for DirDriver {
    fn kind(&self) -> &'static str {
        "dir"
    }

    fn create<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(async move {
            let place = self.place(config)?;
            self.other(&place)?.call(sr, &place, SrRequest::Create).await?.into_nothing()
        })
    }

    fn destroy<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(async move {
            let place = self.place(config)?;
            self.other(&place)?.call(sr, &place, SrRequest::Destroy).await?.into_nothing()?;
            self.others().remove(&place);
            Ok(())
        })
    }

    fn probe<'a>(&'a self, config: &'a Config) -> BoxFuture<'a, Result<Vec<SrId>, SrError>> {
        Box::pin(async move {
            let place = self.place(config)?;
            // The call is about no particular SR.
            let nobody = SrId(Uuid::default());
            let found =
                self.other(&place)?.call(nobody, &place, SrRequest::Probe).await?.into_srs()?;
            self.others().remove(&place);
            Ok(found)
        })
    }

    fn attach<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<Space, SrError>> {
        Box::pin(async move {
            let place = self.place(config)?;
            let before = self.of(sr).ok();
            if let Some(before) = before.as_ref().filter(|before| before.place != place) {
                let why =
                    format!("it is attached from {}: detach it first", before.place.display());
                return Err(SrError::Config { key: LOCATION.into(), why });
            }
            let worker = match before {
                Some(before) => before.worker,
                None => self.other(&place)?,
            };
            let (space, _) = worker.call(sr, &place, SrRequest::Attach).await?.into_sr()?;
            self.others().remove(&place);
            self.attached().entry(sr).or_insert_with(|| Attached { place, worker });
            Ok(space)
        })
    }

    fn folder(&self, sr: SrId) -> Option<PathBuf> {
        self.of(sr).ok().map(|attached| attached.place)
    }

    fn detach(&self, sr: SrId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(async move {
            // The worker exits by itself when its connection closes.
            self.attached().remove(&sr);
            Ok(())
        })
    }

    fn scan(&self, sr: SrId) -> BoxFuture<'_, Result<(Space, Vec<Volume>), SrError>> {
        Box::pin(async move { self.work(sr, SrRequest::Scan).await?.into_sr() })
    }

    fn create_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        let sr_request = SrRequest::CreateVolume { vdi: vdi.0, bytes };
        Box::pin(async move { self.work(sr, sr_request).await?.into_volume() })
    }

    fn destroy_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        let sr_request = SrRequest::DestroyVolume { vdi: vdi.0 };
        Box::pin(async move { self.work(sr, sr_request).await?.into_nothing() })
    }

    fn resize_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        let sr_request = SrRequest::ResizeVolume { vdi: vdi.0, bytes };
        Box::pin(async move { self.work(sr, sr_request).await?.into_volume() })
    }

    fn attach_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        access: Access,
    ) -> BoxFuture<'_, Result<(Backend, BlockSize), SrError>> {
        Box::pin(async move {
            let Attached { place, worker } = self.of(sr)?;
            let sr_request = SrRequest::FindVolume { vdi: vdi.0 };
            let found = worker.call(sr, &place, sr_request).await?.into_found()?;
            let (found, images, block_size) = found;
            let path = place.join(images.first().map_or("", String::as_str));
            if found.read_only && access == Access::Rw {
                let what = format!("{} cannot be written", path.display());
                let source = std::io::ErrorKind::PermissionDenied.into();
                return Err(SrError::Os { what, source });
            }
            Ok((backend(&place, &images)?, block_size))
        })
    }

    fn can_snapshot(&self) -> bool {
        true
    }

    fn prepare_layer(
        &self,
        sr: SrId,
        vdi: VdiId,
        layer: Uuid,
        served: Option<String>,
    ) -> BoxFuture<'_, Result<Layer, SrError>> {
        let sr_request = SrRequest::PrepareLayer { vdi: vdi.0, layer, served };
        Box::pin(async move {
            let Attached { place, worker } = self.of(sr)?;
            let images = worker.call(sr, &place, sr_request).await?.into_images()?;
            let file = place.join(ImageName::qcow2(layer).to_string());
            Ok(Layer { file, base: backend(&place, &images)? })
        })
    }

    fn settle_layer(
        &self,
        sr: SrId,
        vdi: VdiId,
        served: Option<String>,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        let sr_request = SrRequest::SettleLayer { vdi: vdi.0, served };
        Box::pin(async move { self.work(sr, sr_request).await?.into_volume() })
    }

    fn can_share(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<bool, SrError>> {
        let sr_request = SrRequest::CanShare { vdi: vdi.0 };
        Box::pin(async move { self.work(sr, sr_request).await?.into_is() })
    }

    fn add_snapshot(
        &self,
        sr: SrId,
        vdi: VdiId,
        snapshot_of: SnapshotOf,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        let SnapshotOf { vdi: of, unix_seconds } = snapshot_of;
        let snapshot = Some(unix_seconds);
        let sr_request = SrRequest::ShareImages { vdi: vdi.0, of: of.0, snapshot };
        Box::pin(async move { self.work(sr, sr_request).await?.into_volume() })
    }

    fn add_clone(&self, sr: SrId, vdi: VdiId, of: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        let sr_request = SrRequest::ShareImages { vdi: vdi.0, of: of.0, snapshot: None };
        Box::pin(async move { self.work(sr, sr_request).await?.into_nothing() })
    }

    fn images(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Backend, SrError>> {
        Box::pin(async move {
            let Attached { place, worker } = self.of(sr)?;
            let sr_request = SrRequest::FindVolume { vdi: vdi.0 };
            let (_, images, _) = worker.call(sr, &place, sr_request).await?.into_found()?;
            backend(&place, &images)
        })
    }

    fn prepare_copy(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<PathBuf, SrError>> {
        let sr_request = SrRequest::CheckRoom { bytes };
        Box::pin(async move {
            let Attached { place, worker } = self.of(sr)?;
            worker.call(sr, &place, sr_request).await?.into_nothing()?;
            Ok(place.join(directory::name(vdi)))
        })
    }

    fn begin_merge(
        &self,
        sr: SrId,
        into: Uuid,
        kept: BTreeSet<VdiId>,
    ) -> BoxFuture<'_, Result<Option<PresentMerge>, SrError>> {
        let kept = kept.into_iter().map(|vdi| vdi.0.to_string()).collect();
        let sr_request = SrRequest::BeginMerge { into, kept };
        Box::pin(async move {
            let Attached { place, worker } = self.of(sr)?;
            let merge = worker.call(sr, &place, sr_request).await?.into_merge()?;
            merge.map(|merge| present_merge(&place, &merge)).transpose()
        })
    }

    fn merge_users(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<VdiId>, SrError>> {
        Box::pin(async move { self.work(sr, SrRequest::MergeUsers).await?.into_vdis() })
    }

    fn switch_merge(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        let sr_request = SrRequest::SwitchMerge { vdi: vdi.0 };
        Box::pin(async move { self.work(sr, sr_request).await?.into_nothing() })
    }

    fn end_merge(&self, sr: SrId) -> BoxFuture<'_, Result<bool, SrError>> {
        Box::pin(async move { self.work(sr, SrRequest::EndMerge).await?.into_is() })
    }

    fn orphans(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<String>, SrError>> {
        Box::pin(async move { self.work(sr, SrRequest::Orphans).await?.into_images() })
    }

    // The process that serves a file opens and locks it. These calls do not access the directory,
    // so volumes of a missing SR can be detached.
    fn activate_volume(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn deactivate_volume(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn detach_volume(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn attached_volumes(&self, _sr: SrId) -> BoxFuture<'_, Result<Vec<VdiId>, SrError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// Returns the tree of these images of an SR, from the top down.
fn backend(place: &Path, images: &[String]) -> Result<Backend, SrError> {
    let mut tree = None;
    for name in images.iter().rev() {
        let unknown = || SrError::Worker(format!("its answer names an unknown image {name:?}"));
        let image = ImageName::parse(name).ok_or_else(unknown)?;
        let file = place.join(name).into();
        tree = Some(Backend::image_over(image.format(), file, tree).ok_or_else(unknown)?);
    }
    tree.ok_or_else(|| SrError::Worker("its answer names no image".into()))
}

/// Returns a merge with the paths of its images.
fn present_merge(place: &Path, merge: &WireMerge) -> Result<PresentMerge, SrError> {
    let WireMerge { chain, count, into, is_complete } = merge;
    let unknown = || SrError::Worker(format!("its answer names an unknown image {into:?}"));
    let images = chain.iter().take(usize::try_from(*count).unwrap_or(usize::MAX));
    Ok(PresentMerge {
        images: images.map(|name| place.join(name)).collect(),
        source: backend(place, chain)?,
        count: *count,
        format: ImageName::parse(into).ok_or_else(unknown)?.format(),
        into: place.join(into),
        is_complete: *is_complete,
    })
}

//! SRs of types `dir`, `ext` and `file`: images in a directory, on a local or network file system.
//!
//! # Layout
//! `<uuid>.raw` is a sparse volume, or an image that volumes share. `<uuid>.qcow2` and `<uuid>.vhd` are
//! images, most of them over others, and `<uuid>.vdi` is the record of a volume with such images. `.ringway-sr` names the SR of the directory, so that a mount
//! point without its file system does not look like an empty SR. `.ringway-storage-blocks` lists the
//! volumes that guests know with the block size of the storage. `.ringway-merge` names the merge of images
//! that is under way. `.ringway-profile` is the profile of
//! the storage (`model::calibration`). `.ringway-adopt` names the files of users that become volumes.
//! `.new-*` are incomplete files of a crash, which the next attach removes. All other files are
//! [foreign](super::foreign).
//!
//! A new file is written under another name, synced, renamed, and the directory is synced. So it is
//! complete or does not exist.
//!
//! This module accesses no path. The SR's [worker](super::worker) does.

mod adoption;
mod created;
mod directory;
mod files;
mod image_tree;
mod marker;
mod merge;
mod merge_journal;
mod record;
mod reflink;
mod reset;
mod resize;
mod scan;
mod storage_blocks;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model::id::{SrId, Uuid, VdiId};
use model::image::{ImageCreate, ImageFormat};
use model::spec::{Backend, BlockSize};
use model::sr::SrFeature;
use model::vdi::automaton::Access;

use record::ImageName;

pub(crate) use directory::SrDirectory;
pub use image_tree::{ImageTree, TreeImage, TreeMerge, TreeVolume, image_tree};
pub use record::SnapshotOf;

use super::foreign::{ForeignFile, ForeignVolume};
pub use super::places::LOCATION;
use super::places::{self, Attached, Places};
use super::worker::{Host, SrRequest, SrResponse, WireMerge};
use super::{Config, Layer, Names, PresentMerge, Space, SrDriver, SrError, SrScan, Volume};
use crate::boxed_future::BoxFuture;

/// Types of SRs in directories. `ext` and `file` are XenServer's names.
pub const DIR_TYPES: [&str; 3] = ["dir", "ext", "file"];
/// Key with which XenServer's `ext` type names a device to format.
const DEVICE: &str = "device";

/// Driver of SRs in directories.
#[derive(Debug)]
pub struct DirDriver {
    kind: &'static str,
    default: PathBuf,
    places: Places,
}

impl DirDriver {
    /// Creates a driver for this type. `default` is the directory of SRs whose configuration has
    /// none.
    pub fn new(kind: &'static str, host: Host, default: PathBuf) -> Self {
        Self { kind, default, places: Places::new(host) }
    }

    /// Returns the configured directory.
    fn place(&self, config: &Config) -> Result<PathBuf, SrError> {
        config
            .get(LOCATION)
            .map_or_else(|| Ok(self.default.clone()), |text| places::directory(text))
    }

    async fn work(&self, sr: SrId, sr_request: SrRequest) -> Result<SrResponse, SrError> {
        self.places.call(sr, sr_request).await
    }
}

impl SrDriver for DirDriver {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn features(&self) -> &'static [SrFeature] {
        SrFeature::ALL
    }

    fn check(&self, config: &Config) -> Result<(), SrError> {
        if let Some(device) = config.get(DEVICE) {
            let why = format!(
                "Ringway formats no devices: make a file system on {device}, mount it, and give \
                 its directory as {LOCATION}"
            );
            return Err(SrError::Config { key: DEVICE.into(), why });
        }
        places::check_keys(config, &[LOCATION])?;
        self.place(config).map(drop)
    }

    fn create<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(async move {
            let place = self.place(config)?;
            self.places.call_at(sr, &place, SrRequest::Create).await?.into_nothing()
        })
    }

    fn destroy<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(async move {
            let place = self.place(config)?;
            self.places.call_at(sr, &place, SrRequest::Destroy).await?.into_nothing()?;
            self.places.end(&place);
            Ok(())
        })
    }

    fn probe<'a>(&'a self, config: &'a Config) -> BoxFuture<'a, Result<Vec<SrId>, SrError>> {
        Box::pin(async move {
            let place = self.place(config)?;
            // The call is about no particular SR.
            let nobody = SrId(Uuid::default());
            let found = self.places.call_at(nobody, &place, SrRequest::Probe).await?.into_srs()?;
            self.places.end(&place);
            Ok(found)
        })
    }

    fn attach<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<Space, SrError>> {
        Box::pin(async move {
            let attached = self.places.attach(sr, self.place(config)?, SrRequest::Attach).await?;
            attached.into_space()
        })
    }

    fn folder(&self, sr: SrId) -> Option<PathBuf> {
        self.places.of(sr).ok().map(|attached| attached.place)
    }

    fn detach(&self, sr: SrId) -> BoxFuture<'_, Result<(), SrError>> {
        self.places.detach(sr);
        Box::pin(std::future::ready(Ok(())))
    }

    fn scan(&self, sr: SrId) -> BoxFuture<'_, Result<SrScan, SrError>> {
        Box::pin(async move { self.work(sr, SrRequest::Scan).await?.into_scan() })
    }

    fn space(&self, sr: SrId) -> BoxFuture<'_, Result<Option<Space>, SrError>> {
        Box::pin(async move { Ok(Some(self.work(sr, SrRequest::Space).await?.into_space()?)) })
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

    fn prepare_image(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
        format: ImageFormat,
    ) -> BoxFuture<'_, Result<ImageCreate, SrError>> {
        Box::pin(async move {
            let (size, Attached { place, worker }) =
                (directory::whole_units(bytes)?, self.places.of(sr)?);
            let sr_request = SrRequest::PrepareImage { vdi: vdi.0, bytes: size, format };
            worker.call(sr, &place, sr_request).await?.into_nothing()?;
            let path = place.join(ImageName::new(vdi.0, format).to_string());
            Ok(ImageCreate { path, format, size, backing: None, fixed: false })
        })
    }

    fn settle_image(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Volume, SrError>> {
        let sr_request = SrRequest::SettleImage { vdi: vdi.0 };
        Box::pin(async move { self.work(sr, sr_request).await?.into_volume() })
    }

    fn destroy_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        let sr_request = SrRequest::DestroyVolume { vdi: vdi.0 };
        Box::pin(async move { self.work(sr, sr_request).await?.into_nothing() })
    }

    fn prepare_resize(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Option<Backend>, SrError>> {
        let sr_request = SrRequest::PrepareResize { vdi: vdi.0, bytes };
        Box::pin(async move {
            let Attached { place, worker } = self.places.of(sr)?;
            let images = worker.call(sr, &place, sr_request).await?.into_images()?;
            if images.is_empty() { Ok(None) } else { backend(&place, &images).map(Some) }
        })
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
            let Attached { place, worker } = self.places.of(sr)?;
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

    fn prepare_layer(
        &self,
        sr: SrId,
        vdi: VdiId,
        layer: Uuid,
        served: Option<String>,
    ) -> BoxFuture<'_, Result<Layer, SrError>> {
        let sr_request = SrRequest::PrepareLayer { vdi: vdi.0, layer, served };
        Box::pin(async move {
            let Attached { place, worker } = self.places.of(sr)?;
            let images = worker.call(sr, &place, sr_request).await?.into_images()?;
            let top = images.first().and_then(|name| ImageName::parse(name));
            let top = top.ok_or_else(|| SrError::Worker("its answer names no image".into()))?;
            let file = place.join(top.layer(layer).to_string());
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

    fn set_reset_point(
        &self,
        sr: SrId,
        vdi: VdiId,
        point: Option<Uuid>,
    ) -> BoxFuture<'_, Result<(), SrError>> {
        let sr_request = SrRequest::SetResetPoint { vdi: vdi.0, point: point.map(VdiId) };
        Box::pin(async move { self.work(sr, sr_request).await?.into_nothing() })
    }

    fn prepare_reset(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Option<Layer>, SrError>> {
        let sr_request = SrRequest::PrepareReset { vdi: vdi.0 };
        Box::pin(async move {
            let Attached { place, worker } = self.places.of(sr)?;
            let images = worker.call(sr, &place, sr_request).await?.into_images()?;
            let Some((layer, below)) = images.split_first() else { return Ok(None) };
            Ok(Some(Layer { file: place.join(layer), base: backend(&place, below)? }))
        })
    }

    fn set_names(&self, sr: SrId, vdi: VdiId, names: Names) -> BoxFuture<'_, Result<(), SrError>> {
        let sr_request = SrRequest::SetNames { vdi: vdi.0, names };
        Box::pin(async move { self.work(sr, sr_request).await?.into_nothing() })
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

    fn clone_file(
        &self,
        sr: SrId,
        vdi: VdiId,
        of: VdiId,
    ) -> BoxFuture<'_, Result<Option<Volume>, SrError>> {
        let sr_request = SrRequest::CloneFile { vdi: vdi.0, of: of.0 };
        Box::pin(async move {
            match self.work(sr, sr_request).await? {
                SrResponse::Nothing => Ok(None),
                made => made.into_volume().map(Some),
            }
        })
    }

    fn add_clone(&self, sr: SrId, vdi: VdiId, of: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        let sr_request = SrRequest::ShareImages { vdi: vdi.0, of: of.0, snapshot: None };
        Box::pin(async move { self.work(sr, sr_request).await?.into_nothing() })
    }

    fn images(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Backend, SrError>> {
        Box::pin(async move {
            let Attached { place, worker } = self.places.of(sr)?;
            let sr_request = SrRequest::FindVolume { vdi: vdi.0 };
            let (_, images, _) = worker.call(sr, &place, sr_request).await?.into_found()?;
            backend(&place, &images)
        })
    }

    fn block_size(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<BlockSize, SrError>> {
        let sr_request = SrRequest::FindVolume { vdi: vdi.0 };
        Box::pin(async move { Ok(self.work(sr, sr_request).await?.into_found()?.2) })
    }

    fn prepare_copy(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
        block_size: BlockSize,
    ) -> BoxFuture<'_, Result<PathBuf, SrError>> {
        let storage_blocks = block_size == BlockSize::Storage;
        let sr_request = SrRequest::PrepareCopy { vdi: vdi.0, bytes, storage_blocks };
        Box::pin(async move {
            let Attached { place, worker } = self.places.of(sr)?;
            worker.call(sr, &place, sr_request).await?.into_nothing()?;
            Ok(place.join(directory::name(vdi)))
        })
    }

    fn prepare_import(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Layer, SrError>> {
        let sr_request = SrRequest::PrepareImport { vdi: vdi.0 };
        Box::pin(async move {
            let Attached { place, worker } = self.places.of(sr)?;
            let images = worker.call(sr, &place, sr_request).await?.into_images()?;
            let file = place.join(tree::import_name(vdi));
            Ok(Layer { file, base: backend(&place, &images)? })
        })
    }

    fn settle_import(
        &self,
        sr: SrId,
        vdi: VdiId,
        layer: Option<Uuid>,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        let sr_request = SrRequest::SettleImport { vdi: vdi.0, layer };
        Box::pin(async move { self.work(sr, sr_request).await?.into_volume() })
    }

    fn abandon_import(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        let sr_request = SrRequest::AbandonImport { vdi: vdi.0 };
        Box::pin(async move { self.work(sr, sr_request).await?.into_nothing() })
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
            let Attached { place, worker } = self.places.of(sr)?;
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

    fn foreign_files(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<ForeignFile>, SrError>> {
        Box::pin(async move { self.work(sr, SrRequest::ForeignFiles).await?.into_foreign() })
    }

    fn adopt(&self, sr: SrId, volumes: Vec<ForeignVolume>) -> BoxFuture<'_, Result<(), SrError>> {
        let sr_request = SrRequest::Adopt { volumes };
        Box::pin(async move { self.work(sr, sr_request).await?.into_nothing() })
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

//! SRs of type `golden`: one immutable image from which many machines boot.
//!
//! The SR has one volume, which any number of slots may write at a time: each slot that writes it gets
//! a layer of its own over the image ([`WriteCache`]). The datapath reads the image from its source
//! through a cache of the host. A disk without guests keeps this cache open while the SR is attached,
//! so that it stays warm when no machine runs.
//!
//! A source that has got a new image keeps its volume. Disks that are attached from then on have the
//! new image, and the next scan records its size.

mod config;
mod layers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::id::{SrId, Uuid, VbdId, VdiId};
use model::image::{ImageCreate, ImageFormat};
use model::spec::{Backend, BlockSize, DiskSpec, GoldenImage};
use model::sr::SrFeature;
use model::vbd::{Tuning, WriteCache};
use model::vdi::automaton::Access;

pub use config::{
    CACHE_SIZE, CACHE_SR, IDENTITY, RAM, RATE, SOURCE, WRITE_CACHE_OVERFLOW, WRITE_CACHE_RAM,
};
pub(crate) use layers::{layers, open_layers, remove_layers};

use self::config::GoldenConfig;
use self::layers::LayerName;
use super::places::Places;
use super::worker::{Host, SrRequest};
use super::{Config, Space, SrDriver, SrError, SrScan, Volume};
use crate::boxed_future::BoxFuture;
use crate::machines::DatapathProvider;
use crate::ringway_io::{Datapath, DatapathError};

/// Type of these SRs.
pub const GOLDEN: &str = "golden";
/// Name of the volume, from which its id is made. It stays if the source gets a new image.
const VOLUME: &str = "golden";

/// Driver of SRs of golden images.
#[derive(Debug)]
pub struct GoldenDriver {
    places: Places,
    datapaths: Arc<dyn DatapathProvider>,
    /// Directory of SRs whose configuration has none.
    default: PathBuf,
    /// Drivers of the SRs that may have caches.
    folders: Vec<Arc<dyn SrDriver>>,
    attached: Mutex<BTreeMap<SrId, GoldenConfig>>,
}

impl From<DatapathError> for SrError {
    fn from(error: DatapathError) -> Self {
        Self::Datapath(Box::new(error))
    }
}

/// Returns the disk that keeps the cache of an image open. While the next one is opened, there are
/// two.
fn holder(sr: SrId, which: &str, image: &GoldenImage) -> DiskSpec {
    let backend = Backend::Golden(Box::new(image.clone()));
    DiskSpec {
        read_only: true,
        activate: false,
        ..DiskSpec::without_socket(format!("golden-{which}-{sr}"), backend)
    }
}

fn volume_id(sr: SrId) -> VdiId {
    VdiId(Uuid::from_name(&sr.0, VOLUME))
}

fn done<T: Send + 'static>(value: T) -> BoxFuture<'static, Result<T, SrError>> {
    Box::pin(std::future::ready(Ok(value)))
}

impl GoldenDriver {
    /// Creates the driver. `default` is the directory of SRs whose configuration has none. Caches may
    /// be in the folders of SRs with one of the drivers `folders`.
    pub fn new(
        host: Host,
        datapaths: Arc<dyn DatapathProvider>,
        default: PathBuf,
        folders: Vec<Arc<dyn SrDriver>>,
    ) -> Self {
        Self { places: Places::new(host), datapaths, default, folders, attached: Mutex::default() }
    }

    fn parse(&self, config: &Config) -> Result<GoldenConfig, SrError> {
        self.parse_with(config, |sr| self.folders.iter().find_map(|driver| driver.folder(sr)))
    }

    fn parse_with(
        &self,
        config: &Config,
        folder: impl Fn(SrId) -> Option<PathBuf>,
    ) -> Result<GoldenConfig, SrError> {
        let info = rustix::system::sysinfo();
        let host_bytes = (info.totalram as u64).saturating_mul(info.mem_unit.into());
        GoldenConfig::parse(config, &self.default, host_bytes, folder)
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<SrId, GoldenConfig>> {
        // Each change of the map is complete before it can panic.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self, sr: SrId) -> Result<GoldenConfig, SrError> {
        self.attached().get(&sr).cloned().ok_or(SrError::NotAttached)
    }

    async fn datapath(&self, sr: SrId) -> Result<Arc<dyn Datapath>, SrError> {
        Ok(self.datapaths.of(sr).await?)
    }

    /// Opens the present image of the source, and keeps its cache open. Returns its size in bytes.
    async fn open(&self, sr: SrId, image: &GoldenImage) -> Result<u64, SrError> {
        let datapath = self.datapath(sr).await?;
        // Opened before the former one is closed, the cache of an unchanged image stays open.
        let next = holder(sr, "next", image);
        datapath.attach(&next).await?;
        let held = holder(sr, "held", image);
        datapath.detach(&held.id).await?;
        let opened = datapath.attach(&held).await;
        datapath.detach(&next.id).await?;
        Ok(opened?.geometry.size_bytes)
    }

    fn volume(sr: SrId, config: &GoldenConfig, bytes: u64) -> Volume {
        Volume {
            vdi: volume_id(sr),
            virtual_bytes: bytes,
            physical_bytes: 0,
            read_only: false,
            snapshot_of: None,
            resets: false,
            names: None,
            file_name: Some(config.name()),
            format: ImageFormat::Raw,
        }
    }

    /// Returns the backend of a slot whose writes stay: an image of its own over the golden image of
    /// which it was made.
    async fn persistent(
        &self,
        sr: SrId,
        slot: VbdId,
        config: GoldenConfig,
    ) -> Result<Backend, SrError> {
        let files = self.places.call(sr, SrRequest::Layers).await?.into_images()?;
        let mut named = files.iter().filter_map(|file| LayerName::parse(file));
        let made = named.find(|layer| layer.slot == slot && layer.identity.is_some());
        let layer = match made {
            Some(layer) => layer,
            None => self.create_layer(sr, slot, &config).await?,
        };
        let file = config.image.cache.join(layer.file_name());
        let image = GoldenImage { identity: layer.identity, ..config.image };
        let below = Some(Box::new(Backend::Golden(Box::new(image))));
        Ok(Backend::Qcow2 { file: file.into(), backing: below })
    }

    async fn create_layer(
        &self,
        sr: SrId,
        slot: VbdId,
        config: &GoldenConfig,
    ) -> Result<LayerName, SrError> {
        let size = self.open(sr, &config.image).await?;
        let datapath = self.datapath(sr).await?;
        let held = holder(sr, "held", &config.image);
        let disks = datapath.stats().await?.map(|stats| stats.disks).unwrap_or_default();
        let disk = disks.into_iter().find(|disk| disk.id == held.id);
        let identity = disk.and_then(|disk| disk.golden).map(|golden| golden.identity);
        let unusable = |why: &str| SrError::Config { key: SOURCE.into(), why: why.into() };
        let identity = identity.ok_or_else(|| unusable("its image is not open"))?;
        if identity.contains('/') {
            return Err(unusable("the identity of its image has a slash; choose another one"));
        }
        let layer = LayerName { slot, identity: Some(identity) };
        let create = ImageCreate {
            path: config.image.cache.join(layer.file_name()),
            format: ImageFormat::Qcow2,
            size,
            backing: None,
            fixed: false,
        };
        datapath.create_image(&create).await?;
        Ok(layer)
    }

    async fn remove_layers(
        &self,
        sr: SrId,
        slot: VbdId,
        volatile_only: bool,
    ) -> Result<(), SrError> {
        let request = SrRequest::RemoveLayers { slot: slot.0, volatile_only };
        self.places.call(sr, request).await?.into_nothing()
    }
}

impl SrDriver for GoldenDriver {
    fn kind(&self) -> &'static str {
        GOLDEN
    }

    fn features(&self) -> &'static [SrFeature] {
        SrFeature::OF_READERS
    }

    fn check(&self, config: &Config) -> Result<(), SrError> {
        // The SR of the cache may be plugged later.
        self.parse_with(config, |_| Some(PathBuf::new())).map(drop)
    }

    /// Creates the directory. The attach that follows opens the image.
    fn create<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(async move {
            let place = self.parse(config)?.image.cache;
            self.places.call_at(sr, &place, SrRequest::OpenLayers).await?.into_space().map(drop)
        })
    }

    /// Changes nothing: other SRs may share the directory.
    fn destroy<'a>(&'a self, _sr: SrId, _config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        done(())
    }

    /// Returns no SR: a source of an image names none.
    fn probe<'a>(&'a self, _config: &'a Config) -> BoxFuture<'a, Result<Vec<SrId>, SrError>> {
        done(Vec::new())
    }

    fn attach<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<Space, SrError>> {
        Box::pin(async move {
            let config = self.parse(config)?;
            let place = config.image.cache.clone();
            let opened = self.places.attach(sr, place, SrRequest::OpenLayers).await?;
            let space = opened.into_space()?;
            if let Err(error) = self.open(sr, &config.image).await {
                self.places.detach(sr);
                // A process that serves nothing may be left if it does not answer.
                let _left = self.datapaths.end(sr).await;
                return Err(error);
            }
            self.attached().insert(sr, config);
            Ok(space)
        })
    }

    fn detach(&self, sr: SrId) -> BoxFuture<'_, Result<(), SrError>> {
        self.attached().remove(&sr);
        self.places.detach(sr);
        Box::pin(async move { Ok(self.datapaths.end(sr).await?) })
    }

    fn scan(&self, sr: SrId) -> BoxFuture<'_, Result<SrScan, SrError>> {
        Box::pin(async move {
            let config = self.config(sr)?;
            let bytes = self.open(sr, &config.image).await?;
            let space = self.places.call(sr, SrRequest::OpenLayers).await?.into_space()?;
            Ok((space, vec![Self::volume(sr, &config, bytes)]).into())
        })
    }

    fn space(&self, sr: SrId) -> BoxFuture<'_, Result<Option<Space>, SrError>> {
        Box::pin(async move {
            Ok(Some(self.places.call(sr, SrRequest::OpenLayers).await?.into_space()?))
        })
    }

    fn images(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Backend, SrError>> {
        Box::pin(async move {
            let config = self.config(sr)?;
            match vdi == volume_id(sr) {
                true => Ok(Backend::Golden(Box::new(config.image))),
                false => Err(SrError::NoVolume(vdi)),
            }
        })
    }

    fn attach_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        _access: Access,
    ) -> BoxFuture<'_, Result<(Backend, BlockSize), SrError>> {
        Box::pin(async move {
            let backend = self.images(sr, vdi).await?;
            Ok((backend, BlockSize::Bytes(BlockSize::DEFAULT_BYTES)))
        })
    }

    fn attach_layer(
        &self,
        sr: SrId,
        slot: VbdId,
        tuning: Tuning,
        base: Backend,
    ) -> BoxFuture<'_, Result<Backend, SrError>> {
        Box::pin(async move {
            let config = self.config(sr)?;
            if tuning.write_cache == Some(WriteCache::Persistent) {
                return self.persistent(sr, slot, config).await;
            }
            let overflow = LayerName { slot, identity: None }.file_name();
            let overflow = config.image.cache.join(overflow);
            Ok(config.overlay(base, overflow, tuning.write_cache_overflow))
        })
    }

    fn overflow_size(&self, sr: SrId, wanted: Option<u64>) -> Result<Option<u64>, SrError> {
        Ok(self.config(sr)?.overflow_size(wanted))
    }

    fn detach_layer(&self, sr: SrId, slot: VbdId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.remove_layers(sr, slot, true))
    }

    fn destroy_layers(&self, sr: SrId, slot: VbdId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.remove_layers(sr, slot, false))
    }

    fn layers(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<VbdId>, SrError>> {
        Box::pin(async move {
            let files = self.places.call(sr, SrRequest::Layers).await?.into_images()?;
            Ok(files.iter().filter_map(|file| Some(LayerName::parse(file)?.slot)).collect())
        })
    }
}

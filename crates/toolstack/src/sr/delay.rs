//! Delayed storage: any driver, with additional delays from its SR's configuration.
//!
//! The start of a machine takes long if some disks of its storage are slow. The delays reproduce
//! that on one host, with real disks.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::id::{SrId, Uuid, VdiId};
use model::image::{ImageCreate, ImageFormat};
use model::spec::{Backend, BlockSize};
use model::sr::SrFeature;
use model::vdi::automaton::Access;
use tokio::time::sleep;

use super::foreign::{ForeignFile, ForeignVolume};
use super::{
    Config, Layer, Names, PresentMerge, SnapshotOf, Space, SrDriver, SrError, SrScan, Volume,
};
use crate::boxed_future::BoxFuture;

/// Type of delayed SRs in a directory.
pub const SLOW_DIR: &str = "slow-dir";
/// Additional time of an attach or a detach, in milliseconds.
pub const DELAY_MS: &str = "delay-ms";
/// Additional time for a slow disk, in milliseconds.
pub const SLOW_MS: &str = "slow-ms";
/// Interval of slow disks: one in so many is slow, in the order of their first calls; 0 for none.
pub const SLOW_EVERY: &str = "slow-every";
/// Longest delay, in milliseconds. An hour equals a hang for every purpose.
const MAX_DELAY_MS: u64 = 3_600_000;

/// Driver with delays.
#[derive(Debug)]
pub struct DelayedDriver {
    kind: &'static str,
    inner: Arc<dyn SrDriver>,
    srs: Mutex<HashMap<SrId, Delays>>,
}

/// Delays of one SR.
#[derive(Debug, Default)]
struct Delays {
    usual: Duration,
    slow: Duration,
    every: u64,
    /// Number of each volume, in the order of their first calls.
    seen: HashMap<VdiId, u64>,
}

impl Delays {
    fn parse(config: &Config) -> Result<Self, SrError> {
        let of = |key: &str| match config.get(key).map(|text| text.parse::<u64>()) {
            None => Ok(0),
            Some(Ok(number)) if number <= MAX_DELAY_MS => Ok(number),
            Some(_) => {
                let why = format!("a number up to {MAX_DELAY_MS} is expected");
                Err(SrError::Config { key: key.into(), why })
            }
        };
        let usual = Duration::from_millis(of(DELAY_MS)?);
        let slow = Duration::from_millis(of(SLOW_MS)?);
        Ok(Self { usual, slow, every: of(SLOW_EVERY)?, seen: HashMap::new() })
    }

    fn of(&mut self, vdi: VdiId) -> Duration {
        let next = u64::try_from(self.seen.len()).unwrap_or(u64::MAX);
        let number = *self.seen.entry(vdi).or_insert(next);
        let slow = self.every > 0 && number.is_multiple_of(self.every);
        if slow { self.slow } else { self.usual }
    }
}

impl DelayedDriver {
    /// Adds delays to `inner`. The new driver has its own type.
    pub fn new(kind: &'static str, inner: Arc<dyn SrDriver>) -> Self {
        Self { kind, inner, srs: Mutex::default() }
    }

    /// Waits for the additional time of a call for this volume.
    async fn wait(&self, sr: SrId, vdi: VdiId) {
        let delay = self.lock().get_mut(&sr).map(|delays| delays.of(vdi)).unwrap_or_default();
        if !delay.is_zero() {
            sleep(delay).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SrId, Delays>> {
        self.srs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the configuration of the inner driver, without the delays' keys.
fn own(config: &Config) -> Config {
    let ours = [DELAY_MS, SLOW_MS, SLOW_EVERY];
    let own = config.iter().filter(|(key, _)| !ours.contains(&key.as_str()));
    own.map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl SrDriver for DelayedDriver {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn features(&self) -> &'static [SrFeature] {
        self.inner.features()
    }

    fn check(&self, config: &Config) -> Result<(), SrError> {
        Delays::parse(config)?;
        self.inner.check(&own(config))
    }

    fn create<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(async move {
            Delays::parse(config)?;
            self.inner.create(sr, &own(config)).await
        })
    }

    fn destroy<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(async move { self.inner.destroy(sr, &own(config)).await })
    }

    fn probe<'a>(&'a self, config: &'a Config) -> BoxFuture<'a, Result<Vec<SrId>, SrError>> {
        Box::pin(async move {
            Delays::parse(config)?;
            self.inner.probe(&own(config)).await
        })
    }

    fn attach<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<Space, SrError>> {
        Box::pin(async move {
            let delays = Delays::parse(config)?;
            let space = self.inner.attach(sr, &own(config)).await?;
            self.lock().insert(sr, delays);
            Ok(space)
        })
    }

    fn detach(&self, sr: SrId) -> BoxFuture<'_, Result<(), SrError>> {
        self.inner.detach(sr)
    }

    fn scan(&self, sr: SrId) -> BoxFuture<'_, Result<SrScan, SrError>> {
        self.inner.scan(sr)
    }

    fn space(&self, sr: SrId) -> BoxFuture<'_, Result<Option<Space>, SrError>> {
        self.inner.space(sr)
    }

    fn create_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        self.inner.create_volume(sr, vdi, bytes)
    }

    fn destroy_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        self.inner.destroy_volume(sr, vdi)
    }

    fn prepare_image(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
        format: ImageFormat,
    ) -> BoxFuture<'_, Result<ImageCreate, SrError>> {
        self.inner.prepare_image(sr, vdi, bytes, format)
    }

    fn settle_image(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Volume, SrError>> {
        self.inner.settle_image(sr, vdi)
    }

    fn prepare_resize(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Option<Backend>, SrError>> {
        self.inner.prepare_resize(sr, vdi, bytes)
    }

    fn resize_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        self.inner.resize_volume(sr, vdi, bytes)
    }

    fn prepare_layer(
        &self,
        sr: SrId,
        vdi: VdiId,
        layer: Uuid,
        served: Option<String>,
    ) -> BoxFuture<'_, Result<Layer, SrError>> {
        self.inner.prepare_layer(sr, vdi, layer, served)
    }

    fn settle_layer(
        &self,
        sr: SrId,
        vdi: VdiId,
        served: Option<String>,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        self.inner.settle_layer(sr, vdi, served)
    }

    fn set_reset_point(
        &self,
        sr: SrId,
        vdi: VdiId,
        point: Option<Uuid>,
    ) -> BoxFuture<'_, Result<(), SrError>> {
        self.inner.set_reset_point(sr, vdi, point)
    }

    fn prepare_reset(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Option<Layer>, SrError>> {
        self.inner.prepare_reset(sr, vdi)
    }

    fn set_names(&self, sr: SrId, vdi: VdiId, names: Names) -> BoxFuture<'_, Result<(), SrError>> {
        self.inner.set_names(sr, vdi, names)
    }

    fn can_share(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<bool, SrError>> {
        self.inner.can_share(sr, vdi)
    }

    fn add_snapshot(
        &self,
        sr: SrId,
        vdi: VdiId,
        snapshot_of: SnapshotOf,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        self.inner.add_snapshot(sr, vdi, snapshot_of)
    }

    fn clone_file(
        &self,
        sr: SrId,
        vdi: VdiId,
        of: VdiId,
    ) -> BoxFuture<'_, Result<Option<Volume>, SrError>> {
        self.inner.clone_file(sr, vdi, of)
    }

    fn add_clone(&self, sr: SrId, vdi: VdiId, of: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        self.inner.add_clone(sr, vdi, of)
    }

    fn images(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Backend, SrError>> {
        self.inner.images(sr, vdi)
    }

    fn block_size(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<BlockSize, SrError>> {
        self.inner.block_size(sr, vdi)
    }

    fn prepare_copy(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
        block_size: BlockSize,
    ) -> BoxFuture<'_, Result<PathBuf, SrError>> {
        self.inner.prepare_copy(sr, vdi, bytes, block_size)
    }

    fn begin_merge(
        &self,
        sr: SrId,
        into: Uuid,
        kept: BTreeSet<VdiId>,
    ) -> BoxFuture<'_, Result<Option<PresentMerge>, SrError>> {
        self.inner.begin_merge(sr, into, kept)
    }

    fn merge_users(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<VdiId>, SrError>> {
        self.inner.merge_users(sr)
    }

    fn switch_merge(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        self.inner.switch_merge(sr, vdi)
    }

    fn end_merge(&self, sr: SrId) -> BoxFuture<'_, Result<bool, SrError>> {
        self.inner.end_merge(sr)
    }

    fn foreign_files(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<ForeignFile>, SrError>> {
        self.inner.foreign_files(sr)
    }

    fn adopt(&self, sr: SrId, volumes: Vec<ForeignVolume>) -> BoxFuture<'_, Result<(), SrError>> {
        self.inner.adopt(sr, volumes)
    }

    fn attach_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        access: Access,
    ) -> BoxFuture<'_, Result<(Backend, BlockSize), SrError>> {
        Box::pin(async move {
            self.wait(sr, vdi).await;
            self.inner.attach_volume(sr, vdi, access).await
        })
    }

    fn activate_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        self.inner.activate_volume(sr, vdi)
    }

    fn deactivate_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        self.inner.deactivate_volume(sr, vdi)
    }

    fn detach_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(async move {
            self.wait(sr, vdi).await;
            self.inner.detach_volume(sr, vdi).await
        })
    }

    fn attached_volumes(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<VdiId>, SrError>> {
        self.inner.attached_volumes(sr)
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uuid;
    use tokio::time::Instant;

    use super::*;
    use crate::sim::Sim;
    use crate::sr::sim::SimSr;

    fn vdi(n: u8) -> VdiId {
        VdiId(Uuid::from_random([n; 16]))
    }

    #[tokio::test(start_paused = true)]
    async fn every_tenth_disk_is_slow_both_ways() {
        let driver = DelayedDriver::new("slow-sim", Arc::new(SimSr::new(&Sim::new(), "sim")));
        let sr = SrId(Uuid::from_random([1; 16]));
        let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let config = [set(DELAY_MS, "50"), set(SLOW_MS, "500"), set(SLOW_EVERY, "10")].into();
        driver.attach(sr, &config).await.unwrap();
        for n in 0..20 {
            let expected = Duration::from_millis(if n % 10 == 0 { 500 } else { 50 });
            let began = Instant::now();
            driver.attach_volume(sr, vdi(n), Access::Rw).await.unwrap();
            assert_eq!(began.elapsed(), expected, "{n}");
        }
        let began = Instant::now();
        driver.detach_volume(sr, vdi(10)).await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_millis(500));
    }

    #[tokio::test]
    async fn what_is_no_delay_is_refused_by_its_key() {
        let driver = DelayedDriver::new("slow-sim", Arc::new(SimSr::new(&Sim::new(), "sim")));
        let sr = SrId(Uuid::from_random([1; 16]));
        for (key, value) in [(DELAY_MS, "x"), (SLOW_MS, "-1"), (SLOW_EVERY, "3600001")] {
            let config = [(key.to_owned(), value.to_owned())].into();
            let Err(SrError::Config { key: reported, .. }) = driver.attach(sr, &config).await
            else {
                panic!("{key}={value} is taken");
            };
            assert_eq!(reported, key);
        }
    }
}

//! Simulated storage without data.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::id::{SrId, Uuid, VdiId};
use model::image::ImageFormat;
use model::spec::{Backend, BlockSize};
use model::sr::SrFeature;
use model::vdi::automaton::Access;

use super::{Config, Layer, PresentMerge, SnapshotOf, Space, SrDriver, SrError, SrScan, Volume};
use crate::boxed_future::BoxFuture;
use crate::sim::{self, Call, CallKind, Sim, State, image};

/// Space of a simulated SR, in bytes.
const SR_BYTES: u64 = 1 << 50;

/// Storage of a simulated host.
#[derive(Clone, Debug)]
pub struct SimSr {
    sim: Arc<Sim>,
    kind: &'static str,
}

impl SimSr {
    /// Creates a driver for this SR type.
    pub fn new(sim: &Arc<Sim>, kind: &'static str) -> Self {
        Self { sim: Arc::clone(sim), kind }
    }

    async fn call<T>(
        &self,
        (call_kind, sr, vdi): (CallKind, SrId, Option<VdiId>),
        work: impl FnOnce(&mut State) -> Result<T, SrError>,
    ) -> Result<T, SrError> {
        let call = Call { device: vdi.map(|vdi| vdi.0), ..Call::new(call_kind).sr(sr) };
        let refuse = |why: String| SrError::Os { what: why, source: io::Error::other("simulated") };
        self.sim.call(call, work, refuse).await
    }
}

/// Returns a volume. A missing one is added: tests of machines create none.
fn volume(state: &mut State, sr: SrId, vdi: VdiId) -> &mut sim::Volume {
    state.volumes.entry((sr, vdi)).or_default()
}

fn space(state: &State, sr: SrId) -> Space {
    let used = state.volumes.iter().filter(|((of, _), _)| *of == sr).map(|(_, one)| one.bytes);
    Space { total: SR_BYTES, used: used.fold(0, u64::saturating_add), caches: None }
}

fn to_volume(vdi: VdiId, volume: &sim::Volume) -> Volume {
    let bytes = volume.bytes;
    Volume {
        vdi,
        virtual_bytes: bytes,
        physical_bytes: bytes,
        read_only: volume.snapshot_of.is_some(),
        snapshot_of: volume.snapshot_of,
        resets: volume.resets,
        names: None,
        file_name: None,
        format: ImageFormat::Raw,
    }
}

impl SrDriver for SimSr {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn features(&self) -> &'static [SrFeature] {
        SrFeature::ALL
    }

    fn check(&self, _config: &Config) -> Result<(), SrError> {
        Ok(())
    }

    fn create<'a>(&'a self, sr: SrId, _config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(self.call((CallKind::SrCreate, sr, None), |_| Ok(())))
    }

    fn destroy<'a>(&'a self, sr: SrId, _config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(self.call((CallKind::SrDestroy, sr, None), move |state| {
            if state.attached_srs.contains(&sr) {
                state.broke(format!("storage {sr} is destroyed and attached"));
            }
            match state.volumes.keys().filter(|(of, _)| *of == sr).count() {
                0 => Ok(()),
                volumes => Err(SrError::NotEmpty { volumes }),
            }
        }))
    }

    /// Returns no SR for every place.
    fn probe<'a>(&'a self, _config: &'a Config) -> BoxFuture<'a, Result<Vec<SrId>, SrError>> {
        let nobody = SrId(Uuid::default());
        Box::pin(self.call((CallKind::Probe, nobody, None), |_| Ok(Vec::new())))
    }

    fn attach<'a>(
        &'a self,
        sr: SrId,
        _config: &'a Config,
    ) -> BoxFuture<'a, Result<Space, SrError>> {
        Box::pin(self.call((CallKind::SrAttach, sr, None), move |state| {
            state.attached_srs.insert(sr);
            Ok(space(state, sr))
        }))
    }

    fn folder(&self, sr: SrId) -> Option<PathBuf> {
        Some(Path::new("/simulated").join(sr.to_string()))
    }

    fn detach(&self, sr: SrId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.call((CallKind::SrDetach, sr, None), move |state| {
            state.attached_srs.remove(&sr);
            Ok(())
        }))
    }

    fn scan(&self, sr: SrId) -> BoxFuture<'_, Result<SrScan, SrError>> {
        Box::pin(self.call((CallKind::Scan, sr, None), move |state| {
            let volumes = state.volumes.iter().filter(|((of, _), _)| *of == sr);
            let volumes = volumes.map(|((_, vdi), volume)| to_volume(*vdi, volume)).collect();
            Ok(SrScan { space: space(state, sr), volumes, ..SrScan::default() })
        }))
    }

    fn create_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(self.call((CallKind::CreateVolume, sr, Some(vdi)), move |state| {
            let free = SR_BYTES.saturating_sub(space(state, sr).used);
            if bytes > free {
                return Err(SrError::Full { needed: bytes, free });
            }
            let volume = volume(state, sr, vdi);
            volume.bytes = bytes;
            Ok(to_volume(vdi, volume))
        }))
    }

    fn destroy_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.call((CallKind::DestroyVolume, sr, Some(vdi)), move |state| {
            if state.volumes.remove(&(sr, vdi)).is_some_and(|volume| volume.attached.is_some()) {
                state.broke(format!("volume {vdi} is destroyed and attached"));
            }
            Ok(())
        }))
    }

    fn resize_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(self.call((CallKind::ResizeVolume, sr, Some(vdi)), move |state| {
            let volume = volume(state, sr, vdi);
            volume.bytes = volume.bytes.max(bytes);
            Ok(to_volume(vdi, volume))
        }))
    }

    /// Names an image that nothing creates: a simulated volume has no data.
    fn prepare_layer(
        &self,
        sr: SrId,
        vdi: VdiId,
        layer: Uuid,
        _served: Option<String>,
    ) -> BoxFuture<'_, Result<Layer, SrError>> {
        Box::pin(self.call((CallKind::PrepareLayer, sr, Some(vdi)), move |_| {
            let base = Backend::File(image(sr, vdi).into());
            Ok(Layer { file: image(sr, VdiId(layer)), base })
        }))
    }

    fn settle_layer(
        &self,
        sr: SrId,
        vdi: VdiId,
        _served: Option<String>,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(self.call((CallKind::SettleLayer, sr, Some(vdi)), move |state| {
            Ok(to_volume(vdi, volume(state, sr, vdi)))
        }))
    }

    fn can_share(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<bool, SrError>> {
        Box::pin(std::future::ready(Ok(true)))
    }

    fn add_snapshot(
        &self,
        sr: SrId,
        vdi: VdiId,
        snapshot_of: SnapshotOf,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(self.call((CallKind::AddSnapshot, sr, Some(vdi)), move |state| {
            let bytes = volume(state, sr, snapshot_of.vdi).bytes;
            let added = volume(state, sr, vdi);
            (added.bytes, added.snapshot_of) = (bytes, Some(snapshot_of));
            Ok(to_volume(vdi, added))
        }))
    }

    fn add_clone(&self, sr: SrId, vdi: VdiId, of: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.call((CallKind::AddClone, sr, Some(vdi)), move |state| {
            volume(state, sr, vdi).bytes = volume(state, sr, of).bytes;
            Ok(())
        }))
    }

    fn images(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Backend, SrError>> {
        Box::pin(std::future::ready(Ok(Backend::File(image(sr, vdi).into()))))
    }

    fn prepare_copy(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
        _block_size: BlockSize,
    ) -> BoxFuture<'_, Result<PathBuf, SrError>> {
        Box::pin(self.call((CallKind::PrepareCopy, sr, Some(vdi)), move |state| {
            volume(state, sr, vdi).bytes = bytes;
            Ok(image(sr, vdi))
        }))
    }

    fn set_reset_point(
        &self,
        sr: SrId,
        vdi: VdiId,
        point: Option<Uuid>,
    ) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.call((CallKind::SetResetPoint, sr, Some(vdi)), move |state| {
            volume(state, sr, vdi).resets = point.is_some();
            Ok(())
        }))
    }

    fn prepare_reset(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Option<Layer>, SrError>> {
        // A simulated volume has no data to give up.
        Box::pin(self.call((CallKind::PrepareReset, sr, Some(vdi)), move |state| {
            if volume(state, sr, vdi).attached.is_some() {
                state.broke(format!("volume {vdi} is reset and attached"));
            }
            Ok(None)
        }))
    }

    fn prepare_import(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Layer, SrError>> {
        Box::pin(self.call((CallKind::PrepareImport, sr, Some(vdi)), move |_| {
            let base = Backend::File(image(sr, vdi).into());
            Ok(Layer { file: image(sr, vdi), base })
        }))
    }

    fn settle_import(
        &self,
        sr: SrId,
        vdi: VdiId,
        _layer: Option<Uuid>,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(self.call((CallKind::SettleImport, sr, Some(vdi)), move |state| {
            Ok(to_volume(vdi, volume(state, sr, vdi)))
        }))
    }

    fn abandon_import(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.call((CallKind::AbandonImport, sr, Some(vdi)), |_| Ok(())))
    }

    /// All volumes of the SR have the images of a merge.
    fn begin_merge(
        &self,
        sr: SrId,
        into: Uuid,
        kept: BTreeSet<VdiId>,
    ) -> BoxFuture<'_, Result<Option<PresentMerge>, SrError>> {
        let state = self.sim.state();
        let merges = state.merges.get(&sr).copied().unwrap_or_default();
        let is_kept = state.volumes.keys().any(|(of, vdi)| *of == sr && kept.contains(vdi));
        let images = vec![image(sr, VdiId(into)).with_extension("upper")];
        let source = Backend::File(image(sr, VdiId(into)).into());
        let (into, format) = (image(sr, VdiId(into)), ImageFormat::Qcow2);
        let is_complete = merges.is_made;
        let merge = PresentMerge { images, source, count: 2, into, format, is_complete };
        let merge = (merges.left > 0 && !is_kept).then_some(merge);
        Box::pin(std::future::ready(Ok(merge)))
    }

    fn merge_users(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<VdiId>, SrError>> {
        let state = self.sim.state();
        let volumes = state.volumes.keys().filter(|(of, _)| *of == sr).map(|(_, vdi)| *vdi);
        Box::pin(std::future::ready(Ok(volumes.collect())))
    }

    fn switch_merge(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.call((CallKind::SwitchMerge, sr, Some(vdi)), |_| Ok(())))
    }

    /// A merge whose image was not made waits again.
    fn end_merge(&self, sr: SrId) -> BoxFuture<'_, Result<bool, SrError>> {
        if let Some(merges) = self.sim.state().merges.get_mut(&sr)
            && std::mem::take(&mut merges.is_made)
        {
            merges.left -= 1;
        }
        Box::pin(std::future::ready(Ok(true)))
    }

    fn attach_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        access: Access,
    ) -> BoxFuture<'_, Result<(Backend, BlockSize), SrError>> {
        Box::pin(self.call((CallKind::AttachVolume, sr, Some(vdi)), move |state| {
            let volume = volume(state, sr, vdi);
            let had = volume.attached;
            volume.attached = Some(access.max(had.unwrap_or(access)));
            if had.is_some_and(|had| had < access) {
                state.broke(format!("volume {vdi} is read and is to be written"));
            }
            Ok((Backend::File(image(sr, vdi).into()), BlockSize::Bytes(BlockSize::DEFAULT_BYTES)))
        }))
    }

    /// Any disk may have a write cache here, without a limit by default.
    fn overflow_size(&self, _sr: SrId, wanted: Option<u64>) -> Result<Option<u64>, SrError> {
        Ok(wanted)
    }

    fn activate_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.call((CallKind::ActivateVolume, sr, Some(vdi)), move |state| {
            let volume = volume(state, sr, vdi);
            volume.active = true;
            if volume.attached.is_none() {
                state.broke(format!("volume {vdi} is activated and not attached"));
            }
            Ok(())
        }))
    }

    fn deactivate_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.call((CallKind::DeactivateVolume, sr, Some(vdi)), move |state| {
            volume(state, sr, vdi).active = false;
            if state.is_served(sr, vdi, true) {
                state.broke(format!("volume {vdi} is deactivated and served"));
            }
            Ok(())
        }))
    }

    fn detach_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(self.call((CallKind::DetachVolume, sr, Some(vdi)), move |state| {
            let volume = volume(state, sr, vdi);
            volume.attached = None;
            let active = volume.active;
            if active || state.is_served(sr, vdi, false) {
                state.broke(format!("volume {vdi} is detached and in use"));
            }
            Ok(())
        }))
    }

    fn attached_volumes(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<VdiId>, SrError>> {
        Box::pin(self.call((CallKind::AttachedVolumes, sr, None), move |state| {
            let volumes = state.volumes.iter().filter(|((of, _), _)| *of == sr);
            let attached = volumes.filter(|(_, volume)| volume.attached.is_some());
            Ok(attached.map(|((_, vdi), _)| *vdi).collect())
        }))
    }
}

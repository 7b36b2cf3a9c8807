//! Simulated datapath and switch.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use model::calibration::StorageProfile;
use model::id::{SrId, Uuid, VbdId};
use model::image::{
    ImageConvert, ImageCreate, ImageInfo, ImageQuery, ImageResize, ImageSnapshotCall,
};
use model::image_stream::{ImageCopy, ImageExport, ImageImport, ImageImported};
use model::nic::{DEFAULT_MTU, NicLimits, NicSpec};
use model::report::{
    DiskState, DiskStats, FrameCounts, Geometry, NetworkStats, NicStats, PollReason, PollRefusals,
    PollStats, QueuePolling, ShareReport, Stats,
};
use model::rpc::{DiskReply, Replace, RpcError, SnapshotDisk, code};
use model::spec::{Backend, Caps, DiskShare, DiskSpec, FileRef, PollSpec};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::{Datapath, DatapathError, ExportStream, FullDisks, ImportStream, Switch};
use crate::boxed_future::BoxFuture;
use crate::machines::DatapathProvider;
use crate::sim::{Call, CallKind, Disk, Domain, Port, Sim, State, vdi_of};

/// Datapaths of a simulated host.
#[derive(Clone, Debug)]
pub struct SimPaths(pub(crate) Arc<Sim>);

impl DatapathProvider for SimPaths {
    fn of(&self, sr: SrId) -> BoxFuture<'_, Result<Arc<dyn Datapath>, DatapathError>> {
        let path: Arc<dyn Datapath> = Arc::new(SimPath { sim: Arc::clone(&self.0), sr });
        Box::pin(async move { Ok(path) })
    }

    fn end(&self, sr: SrId) -> BoxFuture<'_, Result<(), DatapathError>> {
        Box::pin(async move {
            let mut state = self.0.state();
            let ended = state.disks.extract_if(.., |_, disk| disk.sr == sr);
            let ended: Vec<String> = ended.map(|(id, _)| id).collect();
            ended.iter().for_each(|id| state.keep_disk(id));
            Ok(())
        })
    }

    fn calibrate(&self, sr: SrId, _folder: &Path) -> oneshot::Receiver<StorageProfile> {
        let (found, profile) = oneshot::channel();
        if let Some(known) = self.0.profile(sr) {
            let _ = found.send(known);
        }
        profile
    }

    fn full_disks(&self) -> Option<mpsc::Receiver<FullDisks>> {
        self.0.take_full_disks()
    }
}

/// Datapath of one SR.
#[derive(Debug)]
struct SimPath {
    sim: Arc<Sim>,
    sr: SrId,
}

fn refused(call_kind: CallKind, message: String) -> DatapathError {
    let source = RpcError { code: code::FAILED, message };
    DatapathError::Refused { what: format!("{call_kind:?}"), source }
}

impl SimPath {
    async fn call<T>(
        &self,
        (call_kind, id): (CallKind, &str),
        work: impl FnOnce(&mut State) -> Result<T, DatapathError>,
    ) -> Result<T, DatapathError> {
        let device = id.parse::<Uuid>().ok();
        let call = Call { device, ..Call::new(call_kind).sr(self.sr) };
        self.sim.call(call, work, |why| refused(call_kind, why)).await
    }

    /// Runs a call on an existing disk.
    async fn about<T>(
        &self,
        id: &str,
        ask: impl FnOnce(&mut Disk) -> T,
    ) -> Result<T, DatapathError> {
        let mut state = self.sim.state();
        let found = state.disks.get_mut(id).filter(|disk| disk.sr == self.sr).map(ask);
        match found {
            Some(answer) => {
                state.keep_disk(id);
                Ok(answer)
            }
            None => Err(refused(CallKind::Stats, format!("there is no disk {id}"))),
        }
    }
}

/// Returns the slot whose disk has this id.
fn vbd(id: &str) -> Option<VbdId> {
    id.parse().ok().map(VbdId)
}

fn geometry(disk: &Disk) -> Geometry {
    let size_bytes = match &disk.spec.backend {
        Backend::Null(size) | Backend::Memory(size) | Backend::Raw { size, .. } => *size,
        Backend::Model(model) => model.size,
        Backend::Golden(golden) => golden.size.unwrap_or(0),
        Backend::File(_)
        | Backend::Qcow2 { .. }
        | Backend::Vhd { .. }
        | Backend::Overlay { .. } => 0,
    };
    Geometry { size_bytes, block_size: 512, read_only: disk.spec.read_only }
}

fn state_of(disk: &Disk) -> DiskState {
    if disk.active { DiskState::Active } else { DiskState::Attached }
}

impl Datapath for SimPath {
    fn attach<'a>(&'a self, spec: &'a DiskSpec) -> BoxFuture<'a, Result<DiskReply, DatapathError>> {
        Box::pin(self.call((CallKind::Attach, &spec.id), move |state| {
            let vdi = spec.backend.files().next().and_then(FileRef::path).and_then(vdi_of);
            let Some(vdi) = vdi else {
                return Err(refused(CallKind::Attach, "no image of the simulator's".into()));
            };
            if state.disks.get(&spec.id).is_some_and(|disk| disk.spec != *spec) {
                let why = state.broke(format!("disk {} is there with another spec", spec.id));
                return Err(refused(CallKind::Attach, why));
            }
            if state.volumes.get(&(self.sr, vdi)).is_none_or(|one| one.attached.is_none()) {
                state.broke(format!("disk {} is of a volume that is not attached", spec.id));
            }
            let disk = Disk { sr: self.sr, spec: spec.clone(), vdi, active: false };
            let disk = state.disks.entry(spec.id.clone()).or_insert(disk);
            Ok(DiskReply {
                id: spec.id.clone(),
                state: state_of(disk),
                geometry: geometry(disk),
                notes: Vec::new(),
            })
        }))
    }

    fn activate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.call((CallKind::Activate, id), move |state| {
            let Some(disk) = state.disks.get_mut(id) else {
                let why = state.broke(format!("disk {id} is activated and not there"));
                return Err(refused(CallKind::Activate, why));
            };
            disk.active = true;
            let vdi = disk.vdi;
            if state.volumes.get(&(self.sr, vdi)).is_none_or(|one| !one.active) {
                state.broke(format!("disk {id} serves a volume that is not active"));
            }
            Ok(())
        }))
    }

    fn deactivate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.call((CallKind::Deactivate, id), move |state| {
            let Some(disk) = state.disks.get_mut(id) else { return Ok(()) };
            disk.active = false;
            if let Some(vm) = vbd(id).and_then(|vbd| state.guest_with(vbd)) {
                state.broke(format!("disk {id} is deactivated and {vm} has it"));
            }
            Ok(())
        }))
    }

    fn detach<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.call((CallKind::Detach, id), move |state| {
            if state.disks.remove(id).is_none() {
                return Ok(());
            }
            if let Some(vm) = vbd(id).and_then(|vbd| state.guest_with(vbd)) {
                state.broke(format!("disk {id} is detached and {vm} has it"));
            }
            Ok(())
        }))
    }

    fn resize_image<'a>(
        &'a self,
        _resize: &'a ImageResize,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        // A simulated volume has no image.
        Box::pin(std::future::ready(Ok(())))
    }

    fn resize<'a>(
        &'a self,
        id: &'a str,
        _bytes: Option<u64>,
    ) -> BoxFuture<'a, Result<u64, DatapathError>> {
        Box::pin(async move {
            let vdi = self.about(id, |disk| disk.vdi).await?;
            let volume = self.sim.state().volumes.get(&(self.sr, vdi)).copied();
            Ok(volume.unwrap_or_default().bytes)
        })
    }

    fn snapshot<'a>(
        &'a self,
        disks: &'a [SnapshotDisk],
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        // A simulated volume has no data, so it has no new image.
        Box::pin(self.call((CallKind::Snapshot, ""), move |state| {
            let none = disks.iter().find(|disk| !state.disks.contains_key(&disk.id));
            let why = |disk: &SnapshotDisk| format!("there is no disk {}", disk.id);
            none.map_or(Ok(()), |disk| Err(refused(CallKind::Snapshot, why(disk))))
        }))
    }

    fn replace<'a>(&'a self, replace: &'a Replace) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.about(&replace.id, |disk| disk.spec.backend = replace.backend.clone()))
    }

    fn create_image<'a>(
        &'a self,
        _create: &'a ImageCreate,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.call((CallKind::CreateLayer, ""), |_| Ok(())))
    }

    fn image_info<'a>(
        &'a self,
        _query: &'a ImageQuery,
    ) -> BoxFuture<'a, Result<ImageInfo, DatapathError>> {
        Box::pin(async {
            Err(refused(CallKind::CreateLayer, "no image of the simulator's".into()))
        })
    }

    fn create_layer<'a>(
        &'a self,
        _layer: &'a ImageSnapshotCall,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.call((CallKind::CreateLayer, ""), |_| Ok(())))
    }

    fn convert<'a>(
        &'a self,
        convert: &'a ImageConvert,
        progress: &'a (dyn Fn(f64) + Send + Sync),
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        progress(0.5);
        let is_merge = convert.layers.is_some();
        Box::pin(self.call((CallKind::Convert, ""), move |state| {
            if is_merge {
                state.merges.entry(self.sr).or_default().is_made = true;
            }
            Ok(())
        }))
    }

    fn copy<'a>(
        &'a self,
        _copy: &'a ImageCopy,
        progress: &'a (dyn Fn(f64) + Send + Sync),
    ) -> BoxFuture<'a, Result<ImageImported, DatapathError>> {
        progress(0.5);
        Box::pin(self.call((CallKind::Convert, ""), |_| Ok(ImageImported::Replacement)))
    }

    /// Sends the zeroes of the volume, whatever the format.
    fn export<'a>(
        &'a self,
        export: &'a ImageExport,
    ) -> BoxFuture<'a, Result<ExportStream, DatapathError>> {
        let path = export.source.files().next().and_then(FileRef::path);
        let vdi = path.and_then(vdi_of);
        Box::pin(async move {
            let bytes = self.call((CallKind::Export, ""), |state| {
                let volume = vdi.and_then(|vdi| state.volumes.get(&(self.sr, vdi)));
                Ok(volume.map_or(0, |volume| volume.bytes))
            });
            let bytes = bytes.await?;
            let (near, far) =
                UnixStream::pair().map_err(|error| refused(CallKind::Export, error.to_string()))?;
            let work = async move {
                let mut zeroes = tokio::io::repeat(0).take(bytes);
                let mut far = far;
                let sent = tokio::io::copy(&mut zeroes, &mut far).await;
                let sent = match sent {
                    Ok(_) => far.shutdown().await,
                    Err(error) => Err(error),
                };
                sent.map_err(|error| refused(CallKind::Export, error.to_string()))?;
                Ok(Value::Null)
            };
            Ok(ExportStream::new(bytes, near, work))
        })
    }

    /// Takes everything, and makes nothing of it.
    fn import<'a>(
        &'a self,
        _import: &'a ImageImport,
    ) -> BoxFuture<'a, Result<ImportStream, DatapathError>> {
        Box::pin(async move {
            self.call((CallKind::Import, ""), |_| Ok(())).await?;
            let failed = |error: std::io::Error| refused(CallKind::Import, error.to_string());
            let (near, mut far) = UnixStream::pair().map_err(failed)?;
            let work = async move {
                loop {
                    let bytes = far.read_u32().await.map_err(failed)?;
                    if bytes == 0 {
                        return Ok(json!(ImageImported::Replacement));
                    }
                    let mut frame = (&mut far).take(bytes.into());
                    let taken = tokio::io::copy(&mut frame, &mut tokio::io::sink()).await;
                    taken.map_err(failed)?;
                }
            };
            Ok(ImportStream::new(near, work))
        })
    }

    fn caps<'a>(&'a self, id: &'a str, caps: &'a Caps) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.about(id, |disk| disk.spec.caps = Some(*caps).filter(|one| !one.is_none())))
    }

    fn share<'a>(
        &'a self,
        id: &'a str,
        share: &'a DiskShare,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let share = Some(*share).filter(|share| *share != DiskShare::default());
        Box::pin(self.about(id, move |disk| disk.spec.share = share))
    }

    fn poll<'a>(
        &'a self,
        id: &'a str,
        poll: &'a PollSpec,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.about(id, |disk| disk.spec = disk.spec.clone().with_polling(*poll)))
    }

    fn stats(&self) -> BoxFuture<'_, Result<Option<Stats>, DatapathError>> {
        Box::pin(self.call((CallKind::Stats, ""), move |state| {
            let disks = state.disks.iter().filter(|(_, disk)| disk.sr == self.sr);
            let disks = disks.map(|(id, disk)| DiskStats {
                state: state_of(disk),
                geometry: geometry(disk),
                socket: disk.spec.socket.as_ref().map(|socket| socket.display().to_string()),
                caps: disk.spec.caps,
                share: Some(ShareReport {
                    share: disk.spec.share.unwrap_or_default(),
                    ..ShareReport::default()
                }),
                polling: Some(PollStats {
                    set: disk.spec.polling().resolve(),
                    queues: QueuePolling {
                        polling: false,
                        reason: PollReason::Never,
                        hits: 0,
                        misses: 0,
                        poll_seconds: 0.0,
                        saved_wakeup_us: 0.0,
                    },
                    refused: PollRefusals::default(),
                }),
                serial: disk.spec.serial.clone(),
                ..DiskStats::new(id.clone(), disk.spec.backend.clone(), 0)
            });
            Ok(Some(Stats { disks: disks.collect(), ..stats() }))
        }))
    }
}

/// Switch of a simulated host.
#[derive(Clone, Debug)]
pub struct SimSwitch(pub(crate) Arc<Sim>);

impl SimSwitch {
    async fn call<T>(
        &self,
        (call_kind, id): (CallKind, &str),
        work: impl FnOnce(&mut State) -> Result<T, DatapathError>,
    ) -> Result<T, DatapathError> {
        let call = Call { device: id.parse().ok(), ..Call::new(call_kind) };
        self.0.call(call, work, |why| refused(call_kind, why)).await
    }
}

impl Switch for SimSwitch {
    fn attach<'a>(
        &'a self,
        nic: &'a NicSpec,
        uplink: &'a str,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.call((CallKind::AttachNic, &nic.id), move |state| {
            if state.taps.get(uplink) != Some(&nic.network) {
                let why = state.broke(format!("{uplink} is not in bridge {}", nic.network));
                return Err(refused(CallKind::AttachNic, why));
            }
            let port = Port { nic: nic.clone(), uplink: uplink.into() };
            if state.ports.get(&nic.id).is_some_and(|there| *there != port) {
                let why = state.broke(format!("NIC {} is there with another spec", nic.id));
                return Err(refused(CallKind::AttachNic, why));
            }
            state.ports.insert(nic.id.clone(), port);
            state.keep_port(&nic.id);
            Ok(())
        }))
    }

    fn limit<'a>(
        &'a self,
        id: &'a str,
        limits: &'a NicLimits,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.call((CallKind::LimitNic, id), move |state| {
            if let Some(port) = state.ports.get_mut(id) {
                port.nic = port.nic.clone().with_limits(limits.clone());
                state.keep_port(id);
            }
            Ok(())
        }))
    }

    fn detach<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>> {
        Box::pin(self.call((CallKind::DetachNic, id), move |state| {
            let has = |domain: &Domain| domain.nics.keys().any(|vif| vif.to_string() == id);
            if state.domains.values().any(has) {
                state.broke(format!("NIC {id} is detached and a guest has it"));
            }
            state.ports.remove(id);
            state.keep_port(id);
            Ok(())
        }))
    }

    fn stats(&self) -> BoxFuture<'_, Result<Option<Stats>, DatapathError>> {
        Box::pin(self.call((CallKind::Stats, ""), |state| {
            let nics: Vec<NicStats> = state.ports.values().map(nic_stats).collect();
            let names: BTreeSet<&str> = nics.iter().map(|nic| nic.network.as_str()).collect();
            let network = |name: &&str| NetworkStats {
                name: (*name).to_owned(),
                mtu: DEFAULT_MTU,
                nics: nics.iter().filter(|nic| nic.network == *name).count() as u64,
                uplink: None,
            };
            let networks = names.iter().map(network).collect();
            Ok(Some(Stats { nics, networks, ..stats() }))
        }))
    }
}

fn nic_stats(Port { nic, .. }: &Port) -> NicStats {
    NicStats {
        id: nic.id.clone(),
        network: nic.network.clone(),
        socket: nic.socket.display().to_string(),
        mac: nic.mac,
        queues: nic.queues,
        vlan: nic.vlan,
        locked: nic.locked.is_some(),
        disabled: nic.disabled,
        rate: nic.rate,
        flood: nic.flood,
        connected: true,
        refused: None,
        frames: FrameCounts::default(),
    }
}

fn stats() -> Stats {
    Stats {
        version: "simulated".into(),
        pid: 0,
        uptime_seconds: 0.0,
        ports: Vec::new(),
        reactors: Vec::new(),
        reactors_reason: None,
        queues_moved: 0,
        disks: Vec::new(),
        nics: Vec::new(),
        networks: Vec::new(),
        poll_defaults: None,
        keeper: None,
        start: None,
    }
}

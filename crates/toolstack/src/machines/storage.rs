//! Storage steps of a slot's volume: attach, activate, deactivate and detach.
//!
//! Several slots, of one or several machines, may use a volume. The SR gets only the calls that
//! their combined state needs. The datapath has a disk for each slot. A drive has none: QEMU reads
//! its image itself.

use std::sync::Arc;

use model::domain::serial;
use model::id::{VbdId, VdiId};
use model::spec::{Backend, DiskShare, DiskSpec, FileRef};
use model::vbd::{Tuning, VbdKind};
use model::vdi::automaton::{Access, VolumeOp, VolumeState};
use tokio::time::Instant;

use super::observed::AttachedVolume;
use super::step_runner::{MachineStepRunner, missing};
use super::{DiskRecord, StepError, VolumeRef, names};
use crate::ringway_io::Datapath;
use crate::sr::{SrDriver, SrError};

/// Longest wait of a disk's stop for storage, in milliseconds. A forced shutdown must not wait for
/// hung storage.
const STOP_DEADLINE_MS: u64 = 10_000;

/// Registration of a slot's storage call, until dropped.
struct StorageCallGuard<'a>(&'a MachineStepRunner, VbdId);

impl<'a> StorageCallGuard<'a> {
    /// Registers the call; `None` if the step is already abandoned.
    fn begin(by: &'a MachineStepRunner, vbd: VbdId) -> Option<Self> {
        let mut observed = by.machine.observed();
        if by.given_up().contains(&vbd) {
            return None;
        }
        observed.called.insert((by.id, vbd), false);
        Some(Self(by, vbd))
    }
}

impl Drop for StorageCallGuard<'_> {
    fn drop(&mut self) {
        let left = self.0.machine.observed().called.remove(&(self.0.id, self.1));
        if left == Some(true) {
            self.0.machines.call_ended(&self.0.machine);
        }
    }
}

impl MachineStepRunner {
    /// Waits until no other call for the volume runs, then calls the storage.
    pub(super) async fn storage(&self, vbd: VbdId, op: VolumeOp) -> Result<(), StepError> {
        let attached_volume = match op {
            VolumeOp::Attach(access) => {
                let record = self.record(vbd)?;
                let source = record.source.clone();
                let source = source.ok_or_else(|| missing("there is no volume in slot", vbd))?;
                // An earlier daemon may have activated it.
                AttachedVolume {
                    activation_unknown: true,
                    ..AttachedVolume::new(record, source, access)
                }
            }
            _ => match self.held(vbd) {
                Some(attached_volume) => attached_volume,
                None => return nothing_held(vbd, op),
            },
        };
        let vdi = attached_volume.source.vdi;
        let turn = self.machines.volumes.lock_storage_calls(vdi).await;
        let began = Instant::now();
        let outcome = self.in_turn(vbd, op, attached_volume).await;
        if let (VolumeOp::Attach(_) | VolumeOp::Detach, Ok(())) = (op, &outcome) {
            self.machines.volumes.attach_times.took(vdi, began.elapsed());
        }
        drop(turn);
        self.machines.volumes.tidy(vdi);
        outcome
    }

    async fn in_turn(
        &self,
        vbd: VbdId,
        op: VolumeOp,
        attached_volume: AttachedVolume,
    ) -> Result<(), StepError> {
        let Some(_called) = StorageCallGuard::begin(self, vbd) else {
            return Err(missing("the operation has ended for slot", vbd));
        };
        // A call that an earlier run abandoned may have had the lock before, and may have detached
        // the volume.
        let now = self.held(vbd).filter(|now| now.source.vdi == attached_volume.source.vdi);
        match (op, now) {
            (VolumeOp::Attach(access), _) => self.attach(vbd, attached_volume, access).await,
            (VolumeOp::Activate, Some(attached_volume)) => {
                self.activate(vbd, &attached_volume).await
            }
            (VolumeOp::Deactivate, Some(attached_volume)) => {
                self.deactivate(vbd, &attached_volume).await
            }
            (VolumeOp::Detach, Some(attached_volume)) => self.detach(vbd, &attached_volume).await,
            (_, None) => nothing_held(vbd, op),
        }
    }

    fn held(&self, vbd: VbdId) -> Option<AttachedVolume> {
        self.machine.observed().disks.get(&vbd).cloned()
    }

    async fn attach(
        &self,
        vbd: VbdId,
        attached_volume: AttachedVolume,
        access: Access,
    ) -> Result<(), StepError> {
        let AttachedVolume { source, kind, .. } = attached_volume.clone();
        let VolumeRef { sr, vdi, .. } = source;
        let driver = self.driver(&source)?;
        let volumes = &self.machines.volumes;
        self.machine.observed().disks.insert(vbd, attached_volume);
        volumes.set(vdi, vbd, VolumeState::Attached(access));
        let most = volumes.others(vdi, vbd).access().map_or(access, |others| others.max(access));
        let (backend, block_size) = match driver.attach_volume(sr, vdi, most).await {
            Ok(attached) => attached,
            Err(error) => {
                if is_nothing_done(&error) {
                    self.let_go(vdi, vbd);
                }
                return Err(error.into());
            }
        };
        if kind == VbdKind::Cd {
            let Backend::File(FileRef::Path(file)) = backend else {
                return Err(missing("a drive needs an image in a file, unlike volume", vdi));
            };
            if let Some(attached_volume) = self.machine.observed().disks.get_mut(&vbd) {
                attached_volume.file = Some(file);
            }
            return Ok(());
        }
        // From here on, callers that change the settings apply them at the datapath.
        let _teller = self.machines.lock_settings(&vbd.to_string()).await;
        let backend = match access {
            Access::Rw => driver.attach_layer(sr, vbd, self.tuning(vbd)?, backend).await?,
            Access::Ro => backend,
        };
        let spec = self.spec(self.record(vbd)?, &source, (backend, access))?;
        let spec = DiskSpec { block_size: Some(block_size), ..spec };
        self.datapath(&source).await?.attach(&spec).await?;
        Ok(())
    }

    async fn activate(
        &self,
        vbd: VbdId,
        attached_volume: &AttachedVolume,
    ) -> Result<(), StepError> {
        let AttachedVolume { source, kind, access, .. } = attached_volume;
        let VolumeRef { sr, vdi, .. } = *source;
        self.machines.volumes.set(vdi, vbd, VolumeState::Activated(*access));
        self.unsure(vbd, true);
        self.driver(source)?.activate_volume(sr, vdi).await?;
        if *kind != VbdKind::Cd {
            self.datapath(source).await?.activate(&vbd.to_string()).await?;
        }
        self.unsure(vbd, false);
        Ok(())
    }

    async fn deactivate(
        &self,
        vbd: VbdId,
        attached_volume: &AttachedVolume,
    ) -> Result<(), StepError> {
        let AttachedVolume { source, kind, access, .. } = attached_volume;
        let VolumeRef { sr, vdi, .. } = *source;
        self.unsure(vbd, true);
        if *kind != VbdKind::Cd {
            self.datapath(source).await?.deactivate(&vbd.to_string()).await?;
        }
        let volumes = &self.machines.volumes;
        if !matches!(volumes.others(vdi, vbd), VolumeState::Activated(_)) {
            gone_is_done(self.driver(source)?.deactivate_volume(sr, vdi).await)?;
        }
        volumes.set(vdi, vbd, VolumeState::Attached(*access));
        self.unsure(vbd, false);
        Ok(())
    }

    async fn detach(&self, vbd: VbdId, attached_volume: &AttachedVolume) -> Result<(), StepError> {
        let AttachedVolume { source, kind, .. } = attached_volume;
        let VolumeRef { sr, vdi, .. } = *source;
        let state = self.machines.volumes.state(vdi, vbd);
        if attached_volume.activation_unknown || matches!(state, VolumeState::Activated(_)) {
            self.deactivate(vbd, attached_volume).await?;
        }
        if *kind != VbdKind::Cd {
            self.datapath(source).await?.detach(&vbd.to_string()).await?;
            gone_is_done(self.driver(source)?.detach_layer(sr, vbd).await)?;
        }
        if self.machines.volumes.others(vdi, vbd) == VolumeState::Detached {
            gone_is_done(self.driver(source)?.detach_volume(sr, vdi).await)?;
        }
        self.let_go(vdi, vbd);
        Ok(())
    }

    /// Returns the tuning of a slot's layer. Its kind stays that of the operation.
    fn tuning(&self, vbd: VbdId) -> Result<Tuning, StepError> {
        let tuning = self.record(vbd)?.tuning;
        let now = self.machines.records.disk_settings(vbd);
        let write_cache_overflow = now.map_or(tuning, |(_, now)| now).write_cache_overflow;
        Ok(Tuning { write_cache_overflow, ..tuning })
    }

    fn unsure(&self, vbd: VbdId, unsure: bool) {
        if let Some(attached_volume) = self.machine.observed().disks.get_mut(&vbd) {
            attached_volume.activation_unknown = unsure;
        }
    }

    fn let_go(&self, vdi: VdiId, vbd: VbdId) {
        self.machine.observed().disks.remove(&vbd);
        self.machines.volumes.set(vdi, vbd, VolumeState::Detached);
    }

    fn driver(&self, source: &VolumeRef) -> Result<&dyn SrDriver, StepError> {
        let found = self.machines.drivers.sr(&source.sr_kind);
        let none = || missing("no driver for storage of type", &source.sr_kind);
        found.map(|driver| &**driver).ok_or_else(none)
    }

    async fn datapath(&self, source: &VolumeRef) -> Result<Arc<dyn Datapath>, StepError> {
        Ok(self.machines.drivers.io.of(source.sr).await?)
    }

    fn spec(
        &self,
        disk: &DiskRecord,
        source: &VolumeRef,
        (backend, access): (Backend, Access),
    ) -> Result<DiskSpec, StepError> {
        let vbd = disk.vbd;
        // The number of queues and the cache mode stay those of the operation.
        let now = self.machines.records.disk_settings(vbd);
        let (limits, tuning) = now.unwrap_or((disk.limits, disk.tuning));
        let socket = names::socket(&self.machines.settings.run, source.sr, vbd);
        let spec = DiskSpec {
            queues: self.queues(vbd)?,
            read_only: access == Access::Ro,
            serial: Some(serial(disk.userdevice, source.vdi)),
            cache: disk.tuning.cache.unwrap_or_default(),
            caps: Some(limits.caps).filter(|caps| !caps.is_none()),
            share: Some(limits.share).filter(|share| *share != DiskShare::default()),
            stop_deadline_ms: STOP_DEADLINE_MS,
            activate: false,
            ..DiskSpec::new(vbd.to_string(), socket, backend)
        };
        Ok(spec.with_polling(tuning.poll))
    }
}

/// Returns the result for a slot without a volume: already taken down, or not ready for activation.
fn nothing_held(vbd: VbdId, op: VolumeOp) -> Result<(), StepError> {
    match op {
        VolumeOp::Deactivate | VolumeOp::Detach => Ok(()),
        VolumeOp::Attach(_) | VolumeOp::Activate => {
            Err(missing("no volume is attached for slot", vbd))
        }
    }
}

/// Returns whether the SR refused before it had any effect.
fn is_nothing_done(error: &SrError) -> bool {
    match error {
        SrError::NoVolume(_)
        | SrError::NotAttached
        | SrError::Vanished { .. }
        | SrError::Config { .. }
        | SrError::Unsupported
        | SrError::NotEmpty { .. }
        | SrError::Full { .. } => true,
        SrError::Late { .. } | SrError::Os { .. } | SrError::Worker(_) | SrError::Datapath(_) => {
            false
        }
    }
}

/// Treats a missing volume as taken down.
pub(super) fn gone_is_done(outcome: Result<(), SrError>) -> Result<(), SrError> {
    match outcome {
        Err(SrError::NoVolume(_) | SrError::NotAttached | SrError::Vanished { .. }) => Ok(()),
        other => other,
    }
}

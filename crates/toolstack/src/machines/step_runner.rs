//! Plan steps, each of them one driver call. [`storage`](super::storage) has the steps of storage,
//! and [`interfaces`](super::interfaces) those of interfaces.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::id::VbdId;
use model::plan::{DomainState, Effect, RunState, StepAction};
use model::vdi::automaton::VolumeOp;
use model::vm::PowerState;

use super::memory::MemoryShortfall;
use super::observed::{Machine, RunId};
use super::{DiskRecord, MachineRecord, Machines, StepError, names};
use crate::boxed_future::BoxFuture;
use crate::exec::{Progress, ProgressFn, StepRunner};
use crate::hv::{CdMedium, DiskPlug, HvError, Hypervisor};

/// Runner of one machine's plan.
pub(super) struct MachineStepRunner {
    pub(super) machines: Arc<Machines>,
    pub(super) machine: Arc<Machine>,
    pub(super) id: RunId,
    pub(super) machine_record: MachineRecord,
    progress: ProgressFn,
    /// Slots whose step was abandoned before the storage was called.
    abandoned_before_call: Mutex<BTreeSet<VbdId>>,
}

impl StepRunner for MachineStepRunner {
    type Error = StepError;

    fn run_step(&self, verb: StepAction) -> BoxFuture<'_, Result<(), StepError>> {
        match verb {
            StepAction::VbdReset(vbd) => Box::pin(self.reset(vbd)),
            StepAction::VbdAttach(vbd, access) => {
                Box::pin(self.storage(vbd, VolumeOp::Attach(access)))
            }
            StepAction::VbdActivate(vbd) => Box::pin(self.storage(vbd, VolumeOp::Activate)),
            StepAction::VbdDeactivate(vbd) => Box::pin(self.storage(vbd, VolumeOp::Deactivate)),
            StepAction::VbdDetach(vbd) => Box::pin(self.storage(vbd, VolumeOp::Detach)),
            StepAction::VbdPlug(_)
            | StepAction::VbdUnplug(_)
            | StepAction::VbdInsert(_)
            | StepAction::VbdEject(_) => Box::pin(self.disk(verb)),
            StepAction::VifCreate(_)
            | StepAction::VifPlug(_)
            | StepAction::VifUnplug(_)
            | StepAction::VifDestroy(_) => Box::pin(self.vif(verb)),
            _ => Box::pin(self.domain(verb)),
        }
    }

    /// Only storage calls continue after an abandonment: a dropped call would continue anyway, in a
    /// worker or in `ringway-io`.
    fn abandon_step(&self, verb: StepAction) -> bool {
        let (StepAction::VbdAttach(vbd, _)
        | StepAction::VbdActivate(vbd)
        | StepAction::VbdDeactivate(vbd)
        | StepAction::VbdDetach(vbd)) = verb
        else {
            return false;
        };
        let mut observed = self.machine.observed();
        // A call that an earlier run abandoned may still run for the same slot, so match the run
        // id.
        if let Some(left) = observed.called.get_mut(&(self.id, vbd)) {
            *left = true;
            return true;
        }
        self.given_up().insert(vbd);
        false
    }

    fn record_effects(&self, effects: &[Effect]) {
        self.machine.observed().apply_effects(effects);
        self.machines.records.record_effects(self.machine.vm, effects);
        if effects.contains(&Effect::Power(PowerState::Halted)) {
            self.machines.boots.ended(self.machine.vm);
        }
    }

    fn progress(&self, now: Progress) {
        (self.progress)(now);
    }
}

impl MachineStepRunner {
    pub(super) fn new(
        machines: Arc<Machines>,
        machine: Arc<Machine>,
        machine_record: MachineRecord,
        progress: ProgressFn,
    ) -> Self {
        let id = RunId(machines.next_carrier.fetch_add(1, Ordering::Relaxed));
        Self {
            machines,
            machine,
            id,
            machine_record,
            progress,
            abandoned_before_call: Mutex::default(),
        }
    }

    /// Locks the abandoned slots. Lock order: the observed state first, if both are locked.
    pub(super) fn given_up(&self) -> MutexGuard<'_, BTreeSet<VbdId>> {
        self.abandoned_before_call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hv(&self) -> &dyn Hypervisor {
        &*self.machines.drivers.hv
    }

    async fn domain(&self, verb: StepAction) -> Result<(), StepError> {
        let (hv, vm) = (self.hv(), self.machine.vm);
        match verb {
            StepAction::TakeMemory(bytes) => {
                let short =
                    |MemoryShortfall { needed, available }| StepError::Memory { needed, available };
                self.machines.take_memory(vm, bytes).map_err(short)?;
            }
            StepAction::TakeBootPlace => self.machines.boots.take_place(vm).await,
            StepAction::DomainCreate(domid) => {
                // Until the call succeeds, it is unknown whether a domain was created.
                self.machine.observed().domain =
                    DomainState::Present { domid, run: RunState::Unresponsive };
                self.machines.boots.created(vm);
                let spec = self.machines.with_boot_images(&self.machine_record.spec).await?;
                hv.create(vm, domid, &spec).await?;
                self.machines.memory.made(vm);
                self.machine.observed().runs(RunState::Created);
            }
            StepAction::DomainRun => {
                hv.run(vm).await?;
                self.machines.boots.running(vm);
                self.machine.observed().runs(RunState::Running);
            }
            StepAction::DomainPause => {
                hv.pause(vm).await?;
                self.machine.observed().runs(RunState::Paused);
            }
            StepAction::DomainAsk(what) => match hv.request_guest(vm, what).await {
                // A domain that does not exist needs no request.
                Ok(()) | Err(HvError::Absent) => {}
                Err(error) => return Err(error.into()),
            },
            StepAction::DomainAwaitEnd => {
                let exit = hv.wait_exit(vm).await?;
                self.machine.observed().runs(RunState::Ended(exit));
            }
            StepAction::DomainKill => {
                hv.kill(vm).await?;
                self.machines.memory.release(vm);
                self.machines.boots.ended(vm);
                self.machine.observed().no_domain(DomainState::Remains);
            }
            StepAction::DomainForget => {
                hv.forget(vm).await?;
                self.machines.boots.ended(vm);
                self.machine.observed().no_domain(DomainState::Absent);
            }
            // The other steps do not concern the domain, and a record needs no call.
            _ => {}
        }
        Ok(())
    }

    async fn disk(&self, verb: StepAction) -> Result<(), StepError> {
        let (hv, vm) = (self.hv(), self.machine.vm);
        match verb {
            StepAction::VbdPlug(vbd) => hv.plug_disk(vm, &self.plug(vbd)?).await?,
            StepAction::VbdUnplug(vbd) => hv.unplug_disk(vm, vbd).await?,
            StepAction::VbdInsert(vbd) => {
                let held = self
                    .machine
                    .observed()
                    .disks
                    .get(&vbd)
                    .and_then(|attached_volume| attached_volume.file.clone());
                let file = held.ok_or_else(|| missing("no image is reachable for drive", vbd))?;
                hv.set_medium(vm, vbd, Some(&CdMedium { file })).await?;
            }
            StepAction::VbdEject(vbd) => hv.set_medium(vm, vbd, None).await?,
            _ => {}
        }
        Ok(())
    }

    fn plug(&self, vbd: VbdId) -> Result<DiskPlug, StepError> {
        let DiskRecord { userdevice, boot_index, .. } = *self.record(vbd)?;
        let held = self
            .machine
            .observed()
            .disks
            .get(&vbd)
            .map(|attached_volume| attached_volume.source.sr);
        let sr = held.ok_or_else(|| missing("no volume is attached for disk", vbd))?;
        let socket = names::socket(&self.machines.settings.run, sr, vbd);
        Ok(DiskPlug { vbd, userdevice, socket, queues: self.queues(vbd)?, boot_index })
    }

    /// Returns the queues of a disk: one by default. The PCI slot and the guest's CPUs limit it.
    pub(super) fn queues(&self, vbd: VbdId) -> Result<u16, StepError> {
        let disk = self.record(vbd)?;
        let place = model::domain::pci::disk(disk.userdevice);
        let most = place.map_or(1, |place| place.most_queues).min(self.machine_record.spec.vcpus);
        Ok(disk.tuning.queues.unwrap_or(1).min(most).max(1))
    }

    pub(super) fn record(&self, vbd: VbdId) -> Result<&DiskRecord, StepError> {
        let found = self.machine_record.disks.iter().find(|disk| disk.vbd == vbd);
        found.ok_or_else(|| missing("no record of disk", vbd))
    }
}

pub(super) fn missing(what: &str, of: impl std::fmt::Display) -> StepError {
    StepError::NoDriver(format!("{what} {of}"))
}

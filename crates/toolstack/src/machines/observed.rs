//! Observed state of one machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::id::{Domid, VbdId, VifId, VmId};
use model::plan::{
    DiskState, DomainState, Effect, MachineOp, MachineState, Medium, RunState, VifState,
};
use model::vbd::VbdKind;
use model::vdi::automaton::{Access, VolumeState};
use model::vm::PowerState;
use model::vm::exits::{ExitAction, next};

use super::op_queue::OpQueue;
use super::volume_users::VolumeUsers;
use super::{DiskRecord, MachineRecord, VolumeRef};
use crate::hv::DomainInfo;

/// Machine with its queued operations and its observed state.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) vm: VmId,
    queue: Mutex<OpQueue>,
    observed: Mutex<Observed>,
}

/// Observed state. A device that a call may have created counts as existing.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) domain: DomainState,
    /// True if the process has gone without a step of this daemon.
    died: bool,
    /// Slots whose volume is attached, or may be. [`VolumeUsers`] has its state.
    pub(super) disks: BTreeMap<VbdId, AttachedVolume>,
    /// Disks of the guest, and drives with a medium.
    pub(super) plugged: BTreeSet<VbdId>,
    /// Network interfaces of the guest.
    pub(super) nics: BTreeSet<VifId>,
    /// Bridge of each interface whose NIC the switch may have.
    pub(super) ports: BTreeMap<VifId, String>,
    /// Running storage calls, by run and slot. True if the call was abandoned.
    pub(super) called: BTreeMap<(RunId, VbdId), bool>,
}

/// Id of a plan run. A call abandoned by an earlier run may still be active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunId(pub(super) u64);

/// Attached volume of a slot. The record may have changed since.
#[derive(Clone, Debug)]
pub(super) struct AttachedVolume {
    pub(super) source: VolumeRef,
    pub(super) kind: VbdKind,
    pub(super) userdevice: u8,
    pub(super) access: Access,
    /// Image file, for a drive.
    pub(super) file: Option<PathBuf>,
    /// True if the activation state is unknown: the last call for it has not succeeded.
    pub(super) activation_unknown: bool,
}

impl AttachedVolume {
    pub(super) fn new(disk: &DiskRecord, source: VolumeRef, access: Access) -> Self {
        Self {
            source,
            kind: disk.kind,
            userdevice: disk.userdevice,
            access,
            file: None,
            activation_unknown: false,
        }
    }
}

impl Machine {
    pub(super) fn new(vm: VmId) -> Self {
        let observed = Observed {
            domain: DomainState::Absent,
            died: false,
            disks: BTreeMap::new(),
            plugged: BTreeSet::new(),
            nics: BTreeSet::new(),
            ports: BTreeMap::new(),
            called: BTreeMap::new(),
        };
        Self { vm, queue: Mutex::default(), observed: Mutex::new(observed) }
    }

    pub(super) fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, OpQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observed {
    /// Returns whether the machine can be removed from the registry.
    pub(super) fn is_empty(&self) -> bool {
        self.domain == DomainState::Absent
            && !self.died
            && self.disks.is_empty()
            && self.ports.is_empty()
            && self.called.is_empty()
    }

    /// Applies the hypervisor's answer. The devices of a silent domain stay unchanged.
    pub(super) fn update_domain(&mut self, domain_info: Option<DomainInfo>) {
        let remains = domain_info.is_some();
        let Some(DomainInfo { domid, run: Some(run), disks, nics, .. }) = domain_info else {
            let died = self.died || matches!(self.domain, DomainState::Present { .. });
            self.no_domain(if remains { DomainState::Remains } else { DomainState::Absent });
            self.died = died;
            return;
        };
        self.died = false;
        self.domain = DomainState::Present { domid, run };
        if run != RunState::Unresponsive {
            (self.plugged, self.nics) = (disks, nics);
        }
    }

    /// Returns whether the guest ended by itself and the record does not show it yet. The follower
    /// of domain events then handles it.
    pub(super) fn exit_is_handled_elsewhere(&self, machine_record: &MachineRecord) -> bool {
        let alive = matches!(machine_record.power, PowerState::Running | PowerState::Paused);
        let ended = match self.domain {
            DomainState::Present { run: RunState::Ended(exit), .. } => {
                next(exit, &machine_record.after) != ExitAction::Keep
            }
            DomainState::Present { .. } => false,
            DomainState::Absent | DomainState::Remains => self.died,
        };
        machine_record.followed && alive && ended
    }

    /// Marks the domain as silent after the hypervisor did not answer.
    pub(super) fn mark_unknown(&mut self) {
        if let DomainState::Present { run, .. } = &mut self.domain {
            *run = RunState::Unresponsive;
        }
    }

    pub(super) fn no_domain(&mut self, domain: DomainState) {
        self.domain = domain;
        self.died = false;
        self.plugged.clear();
        self.nics.clear();
    }

    pub(super) fn runs(&mut self, to: RunState) {
        if let DomainState::Present { run, .. } = &mut self.domain {
            *run = to;
        }
    }

    pub(super) fn apply_effects(&mut self, effects: &[Effect]) {
        for effect in effects {
            match *effect {
                Effect::Plugged(vbd, true) => drop(self.plugged.insert(vbd)),
                Effect::Plugged(vbd, false) => drop(self.plugged.remove(&vbd)),
                Effect::Vif(vif, true) => drop(self.nics.insert(vif)),
                Effect::Vif(vif, false) => drop(self.nics.remove(&vif)),
                Effect::Volume(..) | Effect::Medium(..) | Effect::Power(_) | Effect::Domid(_) => {}
            }
        }
    }

    /// Returns whether a slot has another volume attached than recorded. A start would use the
    /// wrong one.
    pub(super) fn has_stale_volumes(&self, machine_record: &MachineRecord) -> bool {
        let same = |(vbd, attached_volume): (&VbdId, &AttachedVolume)| {
            let disk = machine_record.disks.iter().find(|disk| disk.vbd == *vbd);
            let source = disk.and_then(|disk| disk.source.as_ref());
            source.is_some_and(|source| source.vdi == attached_volume.source.vdi)
        };
        !self.disks.iter().all(same)
    }

    /// Returns whether an abandoned call for the slot still runs.
    fn is_left(&self, vbd: VbdId) -> bool {
        self.called.iter().any(|((_, of), left)| *of == vbd && *left)
    }

    /// Returns whether the guest has a disk that may not be served, and no abandoned call is about
    /// to clarify it.
    pub(super) fn has_unserved(&self) -> bool {
        let unserved = |vbd: &VbdId| {
            self.disks.get(vbd).is_some_and(|attached_volume| attached_volume.activation_unknown)
                && !self.is_left(*vbd)
        };
        self.plugged.iter().any(unserved)
    }

    /// Returns the state for the planner.
    pub(super) fn state(
        &self,
        (op, fresh): (&MachineOp, Domid),
        machine_record: &MachineRecord,
        volumes: &VolumeUsers,
    ) -> MachineState {
        let known = |disk: &DiskRecord| {
            self.disks
                .get(&disk.vbd)
                .cloned()
                .or_else(|| Some(AttachedVolume::new(disk, disk.source.clone()?, disk.access)))
        };
        let mut disks: Vec<_> = machine_record
            .disks
            .iter()
            .map(|disk| {
                let (vbd, attached_volume) = (disk.vbd, known(disk));
                let (kind, userdevice) = (disk.kind, disk.userdevice);
                let state =
                    self.disk((vbd, kind, userdevice, disk.access), attached_volume.as_ref());
                self.seen(DiskState { resets: disk.resets, ..state }, op, volumes)
            })
            .collect();
        // Volumes that are attached but not recorded any more are detached.
        let is_stray = |vbd: &VbdId| !machine_record.disks.iter().any(|disk| disk.vbd == *vbd);
        for (vbd, attached_volume) in self.disks.iter().filter(|(vbd, _)| is_stray(vbd)) {
            let is =
                (*vbd, attached_volume.kind, attached_volume.userdevice, attached_volume.access);
            disks.push(self.seen(self.disk(is, Some(attached_volume)), op, volumes));
        }
        let vifs = machine_record.vifs.iter().map(|vif| vif.vif);
        let strays =
            self.ports.keys().filter(|vif| !machine_record.vifs.iter().any(|one| one.vif == **vif));
        let vif = |vif| VifState {
            vif,
            created: self.ports.contains_key(&vif),
            plugged: self.nics.contains(&vif),
        };
        MachineState {
            power: machine_record.power,
            domain: self.domain,
            fresh,
            spec: machine_record.spec.clone(),
            disks,
            vifs: vifs.chain(strays.copied()).map(vif).collect(),
            after: machine_record.after,
            deadlines: machine_record.deadlines,
        }
    }

    fn disk(
        &self,
        (vbd, kind, userdevice, access): (VbdId, VbdKind, u8, Access),
        attached_volume: Option<&AttachedVolume>,
    ) -> DiskState {
        let medium = |attached_volume: &AttachedVolume| Medium {
            vdi: attached_volume.source.vdi,
            sr: attached_volume.source.sr,
        };
        let (medium, plugged) = (attached_volume.map(medium), self.plugged.contains(&vbd));
        let (volume, took, resets) = (VolumeState::Detached, Duration::ZERO, false);
        DiskState { vbd, kind, userdevice, medium, access, resets, volume, plugged, took }
    }

    /// Adds the volume's state to a disk.
    ///
    /// For a reconciliation, a volume with an abandoned call counts as already in its target state:
    /// the end of that call reconciles it. A guest's disk must be served. So a volume whose
    /// activation is unknown counts as attached only, and is activated again.
    fn seen(&self, disk: DiskState, op: &MachineOp, volumes: &VolumeUsers) -> DiskState {
        let Some(Medium { vdi, .. }) = disk.medium else { return disk };
        let unsure = self
            .disks
            .get(&disk.vbd)
            .is_some_and(|attached_volume| attached_volume.activation_unknown);
        let volume = match (volumes.state(vdi, disk.vbd), disk.plugged) {
            (state, _) if *op != MachineOp::Reconcile => state,
            (_, true) if self.is_left(disk.vbd) => VolumeState::Activated(disk.access),
            (_, false) if self.is_left(disk.vbd) => VolumeState::Detached,
            (VolumeState::Activated(access), true) if unsure => VolumeState::Attached(access),
            (state, _) => state,
        };
        DiskState { volume, took: volumes.attach_times.of(vdi), ..disk }
    }
}

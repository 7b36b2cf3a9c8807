//! Parts that several plans share.

use std::collections::BTreeMap;

use super::costs::weight;
use super::{
    Cancel, DiskState, DomainState, Effect, MachineState, Medium, Plan, Slots, Step, StepAction,
    StepId,
};
use crate::id::{VbdId, VdiId, VifId};
use crate::vdi::automaton::{VolumeOp, VolumeState, apply, steps};

/// A plan under construction.
pub(super) struct PlanBuilder<'a> {
    pub(super) state: &'a MachineState,
    plan: Plan,
}

/// Teardown steps: for each resource, the step after which it is free.
#[derive(Default)]
pub(super) struct TeardownSteps {
    /// Step that ends the domain.
    pub(super) domain: Option<StepId>,
    /// Step that removes the last remains of the domain.
    pub(super) forgotten: Option<StepId>,
    /// Steps that detach the volumes.
    pub(super) disks: BTreeMap<VbdId, StepId>,
    /// Steps that remove the host's ends of the interfaces.
    pub(super) vifs: BTreeMap<VifId, StepId>,
}

impl TeardownSteps {
    /// Returns the steps after which no slot of the machine uses this volume.
    pub(super) fn of_volume(&self, state: &MachineState, vdi: VdiId) -> Vec<StepId> {
        let slots = state.disks.iter().filter(|disk| disk.medium.is_some_and(|one| one.vdi == vdi));
        slots.filter_map(|disk| self.disks.get(&disk.vbd)).copied().collect()
    }

    /// Returns all teardown steps.
    pub(super) fn all(&self) -> Vec<StepId> {
        let devices = self.disks.values().chain(self.vifs.values());
        self.domain.iter().chain(&self.forgotten).chain(devices).copied().collect()
    }
}

impl<'a> PlanBuilder<'a> {
    pub(super) fn new(state: &'a MachineState) -> Self {
        Self { state, plan: Plan::default() }
    }

    pub(super) fn finish(self) -> Plan {
        self.plan
    }

    /// Returns a step without slots that can be cancelled, with the costs of its action.
    pub(super) fn step(&self, verb: StepAction, after: impl IntoIterator<Item = StepId>) -> Step {
        Step {
            after: after.into_iter().collect(),
            deadline: self.state.deadlines.of(&verb),
            weight: weight(&verb),
            slots: Slots::None,
            begun: false,
            cancel: Cancel::Before,
            then: Vec::new(),
            if_failed: Vec::new(),
            verb,
        }
    }

    pub(super) fn add(&mut self, mut step: Step) -> StepId {
        let before = step.after.iter().filter_map(|id| self.plan.steps.get(id.0));
        let mut chain = before.filter(|one| one.slots != Slots::None && one.works_with(&step));
        step.begun = step.slots != Slots::None && chain.next().is_some();
        debug_assert!(step.after.iter().all(|id| id.0 < self.plan.steps.len()));
        self.plan.steps.push(step);
        StepId(self.plan.steps.len() - 1)
    }

    /// Adds a step that only records effects.
    pub(super) fn record(
        &mut self,
        then: Vec<Effect>,
        after: impl IntoIterator<Item = StepId>,
    ) -> StepId {
        let step = self.step(StepAction::Record, after);
        self.add(Step { then, cancel: Cancel::Never, ..step })
    }

    /// Adds the steps that bring a volume from one state to another, and returns them in order.
    /// There are none if the volume is in the goal state. Teardown steps cannot be cancelled.
    pub(super) fn volume(
        &mut self,
        disk: &DiskState,
        medium: Medium,
        (from, to): (VolumeState, VolumeState),
        after: impl IntoIterator<Item = StepId>,
    ) -> Vec<(VolumeOp, StepId)> {
        let mut way = Vec::new();
        let mut after: Vec<StepId> = after.into_iter().collect();
        for (op, as_before) in steps(from, to) {
            let vbd = disk.vbd;
            let (verb, cancel) = match op {
                VolumeOp::Attach(access) => (StepAction::VbdAttach(vbd, access), Cancel::Before),
                VolumeOp::Activate => (StepAction::VbdActivate(vbd), Cancel::Before),
                VolumeOp::Deactivate => (StepAction::VbdDeactivate(vbd), Cancel::Never),
                VolumeOp::Detach => (StepAction::VbdDetach(vbd), Cancel::Never),
            };
            let reached = apply(as_before, op).unwrap_or(as_before);
            let slots = Slots::Device { sr: medium.sr };
            let then = vec![Effect::Volume(vbd, reached)];
            let if_failed = vec![Effect::Volume(vbd, as_before)];
            let step = self.step(verb, std::mem::take(&mut after));
            let id = self.add(Step { slots, cancel, then, if_failed, ..step });
            after.push(id);
            way.push((op, id));
        }
        way
    }

    /// Adds the step that resets a detached volume.
    pub(super) fn reset(
        &mut self,
        disk: &DiskState,
        medium: Medium,
        after: impl IntoIterator<Item = StepId>,
    ) -> StepId {
        let step = self.step(StepAction::VbdReset(disk.vbd), after);
        self.add(Step { slots: Slots::Device { sr: medium.sr }, ..step })
    }

    /// Adds the teardown of everything that exists of a machine: its domain, then each device.
    pub(super) fn clear(&mut self, after: Option<StepId>, kill: Cancel) -> TeardownSteps {
        let state = self.state;
        let mut teardown_steps = TeardownSteps { domain: after, ..TeardownSteps::default() };
        if let DomainState::Present { .. } = state.domain {
            let step = self.step(StepAction::DomainKill, after);
            teardown_steps.domain =
                Some(self.add(Step { cancel: kill, then: gone(state), ..step }));
        }
        if state.domain != DomainState::Absent {
            let step = self.step(StepAction::DomainForget, teardown_steps.domain);
            let step = Step { cancel: Cancel::Never, then: gone(state), ..step };
            teardown_steps.forgotten = Some(self.add(step));
        }
        for disk in &state.slow_first() {
            let Some(medium) = disk.medium else { continue };
            let way = (disk.volume, VolumeState::Detached);
            if let Some((_, last)) = self.volume(disk, medium, way, teardown_steps.domain).last() {
                teardown_steps.disks.insert(disk.vbd, *last);
            }
        }
        for vif in state.vifs.iter().filter(|vif| vif.created) {
            let last = self.vif_destroy(vif.vif, teardown_steps.domain);
            teardown_steps.vifs.insert(vif.vif, last);
        }
        teardown_steps
    }

    pub(super) fn vif_create(&mut self, vif: VifId, after: Option<StepId>) -> StepId {
        let step = self.step(StepAction::VifCreate(vif), after);
        self.add(Step { slots: Slots::Network, ..step })
    }

    pub(super) fn vif_destroy(&mut self, vif: VifId, after: Option<StepId>) -> StepId {
        let step = self.step(StepAction::VifDestroy(vif), after);
        self.add(Step { slots: Slots::Network, cancel: Cancel::Never, ..step })
    }

    pub(super) fn vif_plug(
        &mut self,
        vif: VifId,
        after: impl IntoIterator<Item = StepId>,
    ) -> StepId {
        let step = self.step(StepAction::VifPlug(vif), after);
        let (then, if_failed) = (vec![Effect::Vif(vif, true)], vec![Effect::Vif(vif, false)]);
        self.add(Step { then, if_failed, ..step })
    }
}

/// Returns the effects of having no domain, except for the power state.
pub(super) fn gone(state: &MachineState) -> Vec<Effect> {
    let disks = state.disks.iter().map(|disk| Effect::Plugged(disk.vbd, false));
    let vifs = state.vifs.iter().map(|vif| Effect::Vif(vif.vif, false));
    [Effect::Domid(None)].into_iter().chain(disks).chain(vifs).collect()
}

//! Start: the plan creates the domain and activates the volumes concurrently. Each disk is plugged
//! as soon as the domain and its volume are ready. The CPUs run when all of that has ended.

use std::collections::BTreeMap;

use super::builder::{PlanBuilder, TeardownSteps};
use super::{Cancel, DiskState, Effect, MachineState, Medium, Plan, Step, StepAction, StepId};
use crate::id::VdiId;
use crate::vbd::VbdKind;
use crate::vdi::automaton::{Access, VolumeOp, VolumeState};
use crate::vm::PowerState;

pub(super) fn start(state: &MachineState, paused: bool) -> Plan {
    let mut plan_builder = PlanBuilder::new(state);
    // Remove what a failure may have left. It is not reused: it may be attached for reading only.
    // Normally there is nothing, and this adds no step.
    let teardown_steps = plan_builder.clear(None, Cancel::Before);
    build_domain(
        &mut plan_builder,
        &teardown_steps,
        if paused { Boot::Paused } else { Boot::InTurn },
    );
    plan_builder.finish()
}

pub(super) fn unpause(state: &MachineState) -> Plan {
    let mut plan_builder = PlanBuilder::new(state);
    run(&mut plan_builder, Vec::new());
    plan_builder.finish()
}

/// Way in which a new domain boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boot {
    /// When other machines that boot leave room for it.
    InTurn,
    /// At once, as after a reboot: its users wait already.
    AtOnce,
    /// Not at all: its CPUs are stopped.
    Paused,
}

/// Adds the steps that create a domain with all devices of the machine.
pub(super) fn build_domain(
    plan_builder: &mut PlanBuilder<'_>,
    teardown_steps: &TeardownSteps,
    boot: Boot,
) {
    let state = plan_builder.state;
    let disks = in_order(state);
    let memory = StepAction::TakeMemory(state.spec.host_bytes(disks.len()));
    let memory = plan_builder
        .step(memory, teardown_steps.domain.into_iter().chain(teardown_steps.forgotten));
    let mut memory = plan_builder.add(memory);
    if boot == Boot::InTurn {
        // Storage is attached meanwhile.
        let place = plan_builder.step(StepAction::TakeBootPlace, [memory]);
        memory = plan_builder.add(place);
    }
    let create = plan_builder.step(StepAction::DomainCreate(state.fresh), [memory]);
    let then = vec![Effect::Domid(Some(state.fresh))];
    let create = plan_builder.add(Step { then, ..create });
    let mut all = vec![create];
    let mut written: BTreeMap<VdiId, Vec<StepId>> = BTreeMap::new();
    for (disk, medium) in disks {
        // A volume that is attached for reading cannot be attached for writing. So writers come
        // first, after all former users of the volume have released it.
        let writers = written.entry(medium.vdi).or_default();
        let mut before = teardown_steps.of_volume(state, medium.vdi);
        if disk.access == Access::Ro {
            before.extend(writers.iter());
        }
        // Only writers change the content. Several share one reset: before the first attach.
        if disk.resets && disk.access == Access::Rw && writers.is_empty() {
            before = vec![plan_builder.reset(&disk, medium, before)];
        } else if disk.resets && disk.access == Access::Rw {
            before.extend(writers.iter());
        }
        let way = (VolumeState::Detached, VolumeState::Activated(disk.access));
        let way = plan_builder.volume(&disk, medium, way, before);
        let attach = attached(&way);
        if disk.access == Access::Rw {
            writers.extend(attach);
        }
        let active = way.last().map(|(_, id)| *id);
        all.extend(active);
        all.push(give(plan_builder, &disk, medium, Some(create), (attach, active)));
    }
    for vif in &state.vifs {
        let end = plan_builder.vif_create(vif.vif, teardown_steps.vifs.get(&vif.vif).copied());
        all.push(plan_builder.vif_plug(vif.vif, [create, end]));
    }
    if boot == Boot::Paused {
        plan_builder.record(vec![Effect::Power(PowerState::Paused)], all);
    } else {
        run(plan_builder, all);
    }
}

/// Returns the step that attaches the volume, if there is one.
pub(super) fn attached(way: &[(VolumeOp, StepId)]) -> Option<StepId> {
    way.iter().find(|(op, _)| matches!(op, VolumeOp::Attach(_))).map(|(_, id)| *id)
}

/// Adds the step that plugs a disk, or inserts a medium. A disk waits for its attach only, because
/// an attached volume provides the disk's configuration. A drive reads at once and needs an active
/// volume.
pub(super) fn give(
    plan_builder: &mut PlanBuilder<'_>,
    disk: &DiskState,
    medium: Medium,
    domain: Option<StepId>,
    (attach, active): (Option<StepId>, Option<StepId>),
) -> StepId {
    let plugged = Effect::Plugged(disk.vbd, true);
    let (verb, ready, then) = match disk.kind {
        VbdKind::Cd => {
            let medium = Effect::Medium(disk.vbd, Some(medium.vdi));
            (StepAction::VbdInsert(disk.vbd), active, vec![plugged, medium])
        }
        _ => (StepAction::VbdPlug(disk.vbd), attach, vec![plugged]),
    };
    let step = plan_builder.step(verb, domain.into_iter().chain(ready));
    plan_builder.add(Step { then, if_failed: vec![Effect::Plugged(disk.vbd, false)], ..step })
}

/// Returns the slots that have a medium: slow ones first, then by position. Slots that only read a
/// volume that another slot writes come last.
fn in_order(state: &MachineState) -> Vec<(DiskState, Medium)> {
    let filled = |disk: &DiskState| disk.medium.map(|medium| (*disk, medium));
    let mut disks: Vec<_> = state.slow_first().iter().filter_map(filled).collect();
    let written: Vec<VdiId> = disks
        .iter()
        .filter(|(disk, _)| disk.access == Access::Rw)
        .map(|(_, medium)| medium.vdi)
        .collect();
    disks.sort_by_key(|(disk, medium)| disk.access == Access::Ro && written.contains(&medium.vdi));
    disks
}

fn run(plan_builder: &mut PlanBuilder<'_>, after: Vec<StepId>) {
    let then = vec![Effect::Power(PowerState::Running)];
    let step = plan_builder.step(StepAction::DomainRun, after);
    plan_builder.add(Step { then, ..step });
}

//! Plans that plug and unplug devices while a guest runs.

use super::builder::PlanBuilder;
use super::start::{attached, give};
use super::{
    DiskState, DomainState, Effect, MachineState, Medium, Plan, RunState, Step, StepAction,
};
use crate::id::{VbdId, VifId};
use crate::refusal::Refusal;
use crate::vbd::VbdKind;
use crate::vdi::automaton::{Access, VolumeState};
use crate::vm::PowerState;

pub(super) fn disk(state: &MachineState, vbd: VbdId) -> Result<Plan, Refusal> {
    let disk = no_drive(state, vbd, "insert a medium")?;
    if disk.plugged {
        return Err(Refusal::AlreadyAttached);
    }
    fill(state, &disk)
}

pub(super) fn insert(state: &MachineState, vbd: VbdId) -> Result<Plan, Refusal> {
    let disk = drive(state, vbd)?;
    if disk.plugged {
        return Err(Refusal::NotEmpty);
    }
    fill(state, &disk)
}

pub(super) fn disk_out(state: &MachineState, vbd: VbdId, force: bool) -> Result<Plan, Refusal> {
    let disk = no_drive(state, vbd, "eject its medium")?;
    let held = disk.plugged || disk.volume != VolumeState::Detached;
    let medium = disk.medium.filter(|_| held).ok_or(Refusal::AlreadyDetached)?;
    Ok(empty(state, &disk, medium, force))
}

pub(super) fn eject(state: &MachineState, vbd: VbdId) -> Result<Plan, Refusal> {
    let disk = drive(state, vbd)?;
    let medium = disk.medium.ok_or(Refusal::Empty)?;
    Ok(empty(state, &disk, medium, false))
}

pub(super) fn vif(state: &MachineState, vif: VifId) -> Result<Plan, Refusal> {
    let seen = state.vif(vif)?;
    with_domain(state)?;
    if seen.plugged {
        return Err(Refusal::AlreadyAttached);
    }
    let mut plan_builder = PlanBuilder::new(state);
    // Recreate what a failure left: it may belong to another network.
    let gone = seen.created.then(|| plan_builder.vif_destroy(vif, None));
    let end = plan_builder.vif_create(vif, gone);
    plan_builder.vif_plug(vif, [end]);
    Ok(plan_builder.finish())
}

pub(super) fn vif_out(state: &MachineState, vif: VifId) -> Result<Plan, Refusal> {
    let seen = state.vif(vif)?;
    with_domain(state)?;
    if !seen.plugged && !seen.created {
        return Err(Refusal::AlreadyDetached);
    }
    let mut plan_builder = PlanBuilder::new(state);
    let then = vec![Effect::Vif(vif, false)];
    let out = if seen.plugged {
        let if_failed = vec![Effect::Vif(vif, true)];
        let step = plan_builder.step(StepAction::VifUnplug(vif), None);
        plan_builder.add(Step { then, if_failed, ..step })
    } else {
        // The guest has already released the interface.
        plan_builder.record(then, None)
    };
    if seen.created {
        plan_builder.vif_destroy(vif, Some(out));
    }
    Ok(plan_builder.finish())
}

/// Returns the plan that activates a slot's volume and plugs it into the guest.
fn fill(state: &MachineState, disk: &DiskState) -> Result<Plan, Refusal> {
    let medium = disk.medium.ok_or(Refusal::Empty)?;
    let reads = |other: &DiskState| {
        let same = other.vbd != disk.vbd && other.medium.is_some_and(|one| one.vdi == medium.vdi);
        same && other.volume.access() == Some(Access::Ro)
    };
    // A volume that is attached for reading must not be attached for writing as well.
    if disk.access == Access::Rw && state.disks.iter().any(reads) {
        return Err(Refusal::VdiInUse);
    }
    let mut plan_builder = PlanBuilder::new(state);
    // Detach what a failure left: its access mode, and whether it serves, are unknown.
    let left = plan_builder.volume(disk, medium, (disk.volume, VolumeState::Detached), None);
    let left = left.last().map(|(_, id)| *id);
    let way = (VolumeState::Detached, VolumeState::Activated(disk.access));
    let way = plan_builder.volume(disk, medium, way, left);
    let active = way.last().map(|(_, id)| *id);
    give(&mut plan_builder, disk, medium, None, (attached(&way), active));
    Ok(plan_builder.finish())
}

/// Returns the plan that unplugs a slot's volume from the guest and detaches it.
fn empty(state: &MachineState, disk: &DiskState, medium: Medium, force: bool) -> Plan {
    let mut plan_builder = PlanBuilder::new(state);
    let vbd = disk.vbd;
    let drive = disk.kind == VbdKind::Cd;
    let verb = if drive { StepAction::VbdEject(vbd) } else { StepAction::VbdUnplug(vbd) };
    let then = vec![Effect::Plugged(vbd, false)];
    let out = if disk.plugged {
        let if_failed = vec![Effect::Plugged(vbd, true)];
        let step = plan_builder.step(verb, None);
        plan_builder.add(Step { then, if_failed, ..step })
    } else {
        // The guest has already released the disk.
        plan_builder.record(then, None)
    };
    // A forced unplug does not wait for the guest. The guest's disk fails until it is
    // released.
    let after = (!force).then_some(out);
    let way = (disk.volume, VolumeState::Detached);
    let last = plan_builder.volume(disk, medium, way, after).last().map(|(_, id)| *id).or(after);
    if drive {
        plan_builder.record(vec![Effect::Medium(vbd, None)], last);
    }
    plan_builder.finish()
}

/// Returns a disk that can be plugged and unplugged. `instead` names the operation for a drive.
fn no_drive(state: &MachineState, vbd: VbdId, instead: &str) -> Result<DiskState, Refusal> {
    let disk = state.disk(vbd)?;
    with_domain(state)?;
    if disk.kind == VbdKind::Cd {
        let drives = format!("drives are not plugged or unplugged; {instead}");
        return Err(Refusal::NotAllowed(drives));
    }
    Ok(disk)
}

fn drive(state: &MachineState, vbd: VbdId) -> Result<DiskState, Refusal> {
    let disk = state.disk(vbd)?;
    with_domain(state)?;
    if disk.kind == VbdKind::Cd { Ok(disk) } else { Err(Refusal::NotRemovable) }
}

/// Checks that the machine has a guest that can plug and unplug devices.
fn with_domain(state: &MachineState) -> Result<(), Refusal> {
    match state.domain {
        DomainState::Present {
            run: RunState::Created | RunState::Running | RunState::Paused,
            ..
        } => Ok(()),
        DomainState::Present { run: RunState::Ended(_) | RunState::Unresponsive, .. } => {
            let stands = "the guest does not run; shut the machine down, by force if need be";
            Err(Refusal::NotAllowed(stands.into()))
        }
        DomainState::Absent | DomainState::Remains => Err(Refusal::BadPowerState {
            expected: &[PowerState::Running, PowerState::Paused],
            actual: state.power,
        }),
    }
}

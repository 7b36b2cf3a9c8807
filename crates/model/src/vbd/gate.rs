//! Gate of operations on a disk slot.

use super::{VbdFacts, VbdKind, VbdOp};
use crate::refusal::{Feature, OngoingOp, Refusal};
use crate::vdi::automaton::Access;
use crate::vdi::{VdiFacts, VdiOp};
use crate::vm::{PowerState, Strictness, VmFacts, check_device};

/// Checks whether `op` may begin on `vbd` of `vm`.
///
/// The first matching rule refuses, in this order: a running operation; a device that is not
/// unpluggable, not removable, empty or not empty; the power state, and whether the device is
/// attached or detached already; operations of the machine; guest features; operations that a drive
/// does not support; the control domain; operations that Ringway does not implement; the disk and
/// its other users.
///
/// # Errors
/// The first refusal.
pub fn check(op: VbdOp, vbd: &VbdFacts, vm: &VmFacts, how: Strictness) -> Result<(), Refusal> {
    if let Some(other) = vbd.current.first() {
        return Refusal::beside(OngoingOp::Vbd(*other));
    }
    check_medium(op, vbd)?;
    check_power(op, vbd.attached, vm.power)?;
    if is_hotplug(op) {
        check_device(vm, Feature::HotplugVbd, vm.guest.hotplug_vbd, how)?;
        if vbd.kind == VbdKind::Cd {
            let way = "drives are not plugged or unplugged while a machine runs; insert and eject";
            return Err(Refusal::NotAllowed(way.into()));
        }
    }
    if vm.is_control_domain {
        return Err(Refusal::IsControlDomain);
    }
    let floppy = vbd.kind == VbdKind::Floppy && !is_unplug(op);
    if floppy || matches!(op, VbdOp::Pause | VbdOp::Unpause) {
        return Err(Refusal::NotImplemented);
    }
    match &vbd.vdi {
        Some(vdi) if is_taking(op) => check_disk(vbd, vdi),
        _ => Ok(()),
    }
}

/// Returns the operations that a client may see as possible now, in the order of [`VbdOp::ALL`].
pub fn allowed(vbd: &VbdFacts, vm: &VmFacts) -> Vec<VbdOp> {
    let all = VbdOp::ALL.iter().copied();
    all.filter(|op| check(*op, vbd, vm, Strictness::Strict).is_ok()).collect()
}

fn is_unplug(op: VbdOp) -> bool {
    matches!(op, VbdOp::Unplug | VbdOp::UnplugForce)
}

/// Returns whether the operation needs a running guest that takes part.
fn is_hotplug(op: VbdOp) -> bool {
    op == VbdOp::Plug || is_unplug(op)
}

/// Returns whether the operation begins to use the disk.
fn is_taking(op: VbdOp) -> bool {
    matches!(op, VbdOp::Attach | VbdOp::Plug | VbdOp::Insert)
}

fn check_medium(op: VbdOp, vbd: &VbdFacts) -> Result<(), Refusal> {
    match op {
        VbdOp::Unplug | VbdOp::UnplugForce if !vbd.unpluggable => Err(Refusal::NotUnpluggable),
        VbdOp::Insert | VbdOp::Eject if vbd.kind != VbdKind::Cd => Err(Refusal::NotRemovable),
        VbdOp::Eject if vbd.empty => Err(Refusal::Empty),
        VbdOp::Insert if !vbd.empty => Err(Refusal::NotEmpty),
        _ => Ok(()),
    }
}

fn check_power(op: VbdOp, attached: bool, power: PowerState) -> Result<(), Refusal> {
    let expected: &'static [PowerState] = match op {
        VbdOp::Attach => return Ok(()),
        VbdOp::Plug | VbdOp::Unplug | VbdOp::UnplugForce => &[PowerState::Running],
        VbdOp::Pause | VbdOp::Unpause => &[PowerState::Paused, PowerState::Running],
        VbdOp::Insert | VbdOp::Eject => {
            &[PowerState::Halted, PowerState::Paused, PowerState::Running]
        }
    };
    if !expected.contains(&power) {
        return Err(Refusal::BadPowerState { expected, actual: power });
    }
    match op {
        VbdOp::Plug if attached => Err(Refusal::AlreadyAttached),
        VbdOp::Unplug | VbdOp::UnplugForce if !attached => Err(Refusal::AlreadyDetached),
        _ => Ok(()),
    }
}

/// Checks whether this slot may use the disk, given its other users.
fn check_disk(vbd: &VbdFacts, vdi: &VdiFacts) -> Result<(), Refusal> {
    let reads = |op: &VdiOp| matches!(op, VdiOp::Copy | VdiOp::Mirror);
    if let Some(op) = vdi.current.iter().find(|op| !reads(op)) {
        return Refusal::beside(OngoingOp::Vdi(*op));
    }
    if vdi.missing {
        return Err(Refusal::VdiMissing);
    }
    if !vdi.sr_attached {
        return Err(Refusal::SrNotAttached);
    }
    // A plugged disk is in use already; a drive may get another medium.
    if vbd.attached && !vbd.empty {
        return Ok(());
    }
    let writes = vbd.mode == Access::Rw;
    let mut others = vdi.users.iter().filter(|user| user.holds());
    let taken = others.any(|user| writes || user.access == Access::Rw);
    if taken && !vdi.sharable {
        return Err(Refusal::VdiInUse);
    }
    if writes && vdi.read_only { Err(Refusal::VdiReadOnly) } else { Ok(()) }
}

#[cfg(test)]
mod tests;

//! Gate of operations on a machine.

mod table;

use super::facts::{GuestFeatures, Strictness, Tristate, VmFacts};
use super::{PowerState, VmOp};
use crate::refusal::{Feature, OngoingOp, Refusal};
use table::{is_for_snapshot, is_for_template, is_offered, is_served};

pub use table::power_states;

/// Checks whether `op` may begin on `vm`.
///
/// The first matching rule refuses, in this order: a block that a user has set; the power state;
/// running operations; operations that are not for templates, then not for snapshots; operations
/// that are only for those; the control domain; guest abilities; operations that Ringway does not
/// implement.
///
/// # Errors
/// The first refusal.
pub fn check(op: VmOp, vm: &VmFacts, how: Strictness) -> Result<(), Refusal> {
    if let Some(reason) = vm.blocked.get(&op) {
        return Err(Refusal::Blocked { reason: reason.clone() });
    }
    let expected = power_states(op, vm.is_snapshot);
    if !expected.contains(&vm.power) {
        return Err(Refusal::BadPowerState { expected, actual: vm.power });
    }
    if let Some(other) = conflict(op, &vm.current) {
        return Refusal::beside(OngoingOp::Vm(other));
    }
    check_kind(op, vm)?;
    if vm.power == PowerState::Running && matches!(op, VmOp::CleanShutdown | VmOp::CleanReboot) {
        check_shutdown(vm.guest, how)?;
    }
    if is_served(op, vm.power) { Ok(()) } else { Err(Refusal::NotImplemented) }
}

/// Returns the operations that a client may see as possible now: those that it can call, if the
/// guest has reported the abilities. They are in the order of [`VmOp::ALL`].
pub fn allowed(vm: &VmFacts) -> Vec<VmOp> {
    let offered = VmOp::ALL.iter().copied().filter(|op| is_offered(*op));
    offered.filter(|op| check(*op, vm, Strictness::Strict).is_ok()).collect()
}

/// Returns the first running operation that conflicts with `op`.
fn conflict(op: VmOp, current: &[VmOp]) -> Option<VmOp> {
    current.iter().copied().find(|other| !beside(op, *other, current.len()))
}

/// Returns whether `op` may begin while `other` runs, as one of `running` operations.
fn beside(op: VmOp, other: VmOp, running: usize) -> bool {
    let both = |of: &[VmOp]| of.contains(&op) && of.contains(&other);
    match (op, other) {
        // These end hung operations, which notice that.
        (VmOp::HardShutdown, _) => other != VmOp::HardShutdown,
        (VmOp::HardReboot, _) => !matches!(other, VmOp::HardShutdown | VmOp::HardReboot),
        // These change nothing.
        (VmOp::AssertOperationValid | VmOp::UpdateAllowedOperations, _) => true,
        (VmOp::Snapshot, VmOp::SnapshotWithQuiesce) => running == 1,
        // A migration itself starts these.
        (
            VmOp::MetadataExport
            | VmOp::CleanShutdown
            | VmOp::CleanReboot
            | VmOp::Start
            | VmOp::StartOn,
            VmOp::MigrateSend,
        ) => running == 1,
        _ => {
            both(&[VmOp::Clone, VmOp::Copy, VmOp::Export])
                || both(&[VmOp::Snapshot, VmOp::Checkpoint])
                || both(&[VmOp::GetBootRecord])
        }
    }
}

/// Refuses an operation that is not for this kind of machine.
fn check_kind(op: VmOp, vm: &VmFacts) -> Result<(), Refusal> {
    if vm.is_template && !vm.is_snapshot && !is_for_template(op, vm.is_default_template) {
        return Err(Refusal::IsTemplate);
    }
    if vm.is_snapshot && !is_for_snapshot(op) {
        return Err(Refusal::IsSnapshot);
    }
    if op == VmOp::Provision && !vm.is_template {
        return Err(Refusal::NotTemplate);
    }
    if op == VmOp::Revert && !vm.is_snapshot {
        return Err(Refusal::NotSnapshot);
    }
    let is_read_only = matches!(
        op,
        VmOp::AssertOperationValid
            | VmOp::UpdateAllowedOperations
            | VmOp::DataSourceOp
            | VmOp::MetadataExport
    );
    if vm.is_control_domain && !is_read_only {
        return Err(Refusal::IsControlDomain);
    }
    Ok(())
}

/// Refuses a clean shutdown or reboot if the guest cannot be asked.
fn check_shutdown(guest: GuestFeatures, how: Strictness) -> Result<(), Refusal> {
    let can = match (guest.shutdown, guest.drivers, how) {
        (Tristate::Yes, _, _) | (Tristate::Unknown, Tristate::Yes, _) => true,
        (Tristate::No, _, _) => false,
        // The power button needs no Ringway driver.
        (Tristate::Unknown, _, how) => how == Strictness::Lenient,
    };
    if can { Ok(()) } else { Err(Refusal::LacksFeature(Feature::Shutdown)) }
}

/// Checks whether a device of `vm` may be plugged or unplugged now. The machine must not be about
/// to end or stop, and its guest must have the ability. `reported` is what the guest has reported
/// about this ability.
pub(crate) fn check_device(
    vm: &VmFacts,
    feature: Feature,
    reported: Tristate,
    how: Strictness,
) -> Result<(), Refusal> {
    if let Some(op) = vm.current.iter().find(|op| takes_devices(**op)) {
        return Refusal::beside(OngoingOp::Vm(*op));
    }
    match (reported, vm.guest.drivers, how) {
        (Tristate::Yes, _, _) | (Tristate::Unknown, Tristate::Yes, _) => Ok(()),
        (Tristate::No, _, _) => Err(Refusal::LacksFeature(feature)),
        (Tristate::Unknown, Tristate::Unknown, Strictness::Lenient) => Ok(()),
        (Tristate::Unknown, _, _) => Err(Refusal::MissingDrivers),
    }
}

/// Returns whether the operation plugs or unplugs devices, or keeps the guest from doing its part.
fn takes_devices(op: VmOp) -> bool {
    matches!(
        op,
        VmOp::CleanShutdown
            | VmOp::Shutdown
            | VmOp::HardShutdown
            | VmOp::CleanReboot
            | VmOp::HardReboot
            | VmOp::Start
            | VmOp::StartOn
            | VmOp::Resume
            | VmOp::ResumeOn
            | VmOp::Suspend
            | VmOp::Checkpoint
            | VmOp::Pause
            | VmOp::PoolMigrate
            | VmOp::MigrateSend
            | VmOp::PowerStateReset
    )
}

#[cfg(test)]
mod tests;
